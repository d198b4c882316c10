"""Claims on context parallelism, decided by hand-made ledgers: what theory asks for confirms all but what is disputed,
and any other refutes."""

from dataclasses import replace

import numpy as np
import pytest

from lab.attention.order import CONTIGUOUS, ZIGZAG
from lab.core.ledger import Kind, Ledger, Part
from lab.experiments.ch17_zigzag import blocks_in_sight
from lab.harness.claim import Claim
from lab.harness.decoder.step import SMALL
from lab.harness.registry import load
from lab.meshes.axes import Axes
from lab.settle import Verdict
from tests.experiments.part_claims import flipped, on_8_devices
from tests.experiments.part_claims import more as more_of_part

MESH, HYBRID = Axes.of({"data": 2, "context": 4}), Axes.of({"ring": 2, "ulysses": 4})
SIZES = {
    "ch17_ring_attention": {"remat": "full"},
    "ch17_zigzag": {"remat": "none"},
    "ch17_gathered_keys": {"remat": "full"},
    "ch17_ulysses": {"remat": "full"},
    "ch17_window": {"remat": "none", "window": 12},
}
DISPUTED = {
    "ch17_ring_attention": [],
    "ch17_zigzag": ["4-5:D-38"],
    "ch17_gathered_keys": ["6-8:D-120"],
    "ch17_ulysses": ["4-5:D-36"],
    "ch17_window": [],
}
# Blocks that a device multiplies in each layer: half at 3 hops and 3/4 of its own; two hops and its own.
BLOCKS = {"ch17_zigzag": 2.25, "ch17_window": 3}


def measured(name: str, executions: int = 0, blocks: float = 0, axes: Axes = MESH) -> Ledger:
    """As theory has it, or with more of each transfer of attention and more products."""
    shape = replace(SMALL, **SIZES[name])
    ideal = load(name).predict(shape, axes)
    changed = tuple(
        replace(t, executions=t.executions + executions) if "/core/" in t.scope else t for t in ideal.transfers
    )
    # 8 x 8 tokens of 16 heads of 4, seven products, and one of each row; 64 tokens with six products of every weight.
    of_blocks = shape.layers * 2 * 64 * 16 * 4 * (7 * 8 * (BLOCKS.get(name, 0) + blocks) + 1)
    return replace(ideal, transfers=changed, flops=int(6 * 64 * (shape.layer_matrices + 48 * 96) + of_blocks))


def claims(name: str, axes: Axes = MESH, **more) -> tuple[Claim, ...]:
    return load(name).claims(replace(SMALL, **SIZES[name]), axes, measured(name, axes=axes, **more))


@pytest.mark.compiles
@pytest.mark.parametrize("name", SIZES)
def test_what_theory_asks_for_confirms_all_but_what_is_disputed(name):
    decided = [claim for claim in claims(name) if claim.verdict != "calculated"]
    assert [claim.disputed for claim in decided if claim.verdict == "refuted"] == DISPUTED[name] and len(decided) > len(
        DISPUTED[name]
    )


@pytest.mark.parametrize("name", SIZES)
def test_one_rank_decides_nothing(name):
    assert claims(name, Axes.of({"data": 8, "context": 1})) == ()


@pytest.mark.compiles
@pytest.mark.parametrize("name", SIZES)
def test_a_message_too_many_is_a_surprise(name):
    assert any(claim.is_undisputed_refutation for claim in claims(name, executions=SMALL.layers))


def test_gradients_that_travel_in_half_of_float32_are_a_surprise():
    asked = measured("ch17_ring_attention")
    halved = tuple(
        replace(t, payload_bytes=t.payload_bytes // 2) if t.scope.endswith("core/key_gradients") else t
        for t in asked.transfers
    )
    shape = replace(SMALL, **SIZES["ch17_ring_attention"])
    found = load("ch17_ring_attention").claims(shape, MESH, replace(asked, transfers=halved))
    assert [claim.statement for claim in found if claim.is_undisputed_refutation] == [
        "keys and values again and their gradients home: 6P-4 messages"
    ]


def with_gradients_summed(executions: int, payload_times: int = 1) -> str:
    """The verdict on gathered keys where the compiler sums their gradients whole and joins both sums, so that neither
    has a name."""
    asked, shape = measured("ch17_gathered_keys"), replace(SMALL, **SIZES["ch17_gathered_keys"])
    scattered = [t for t in asked.transfers if t.kind == "reduce_scatter"]
    parts = tuple(Part(t.dtype, t.payload_bytes * payload_times) for t in scattered)
    summed = replace(
        scattered[0],
        kind=Kind.ALL_REDUCE,
        executions=executions,
        scope="",
        parts=parts,
        payload_bytes=sum(p.payload_bytes for p in parts),
    )
    kept = tuple(t for t in asked.transfers if t not in scattered)
    return str(load("ch17_gathered_keys").claims(shape, MESH, replace(asked, transfers=(*kept, summed)))[-1].verdict)


def test_2_sums_a_layer_of_what_should_be_scattered_decide_nothing_and_any_other_number_or_size_refutes():
    assert with_gradients_summed(SMALL.layers) == "calculated"
    assert with_gradients_summed(2 * SMALL.layers) == with_gradients_summed(1, payload_times=SMALL.layers) == "refuted"


@pytest.mark.parametrize(("window", "hops"), [(8, 1), (9, 1), (10, 2)])
def test_a_window_over_chunks_of_8_counts_tokens_before_ones_own(window, hops):
    shape, ring = replace(SMALL, remat="none", window=window), load("ch17_window")
    found = ring.claims(shape, MESH, replace(ring.predict(shape, MESH), flops=0))[0]
    assert (str(found.verdict), f"= {hops} hops" in found.evidence) == ("confirmed", True)


@pytest.mark.compiles
@pytest.mark.parametrize("name", BLOCKS)
def test_a_quarter_of_a_block_too_many_is_a_surprise(name):
    assert any(claim.is_undisputed_refutation for claim in claims(name, blocks=0.25))


@pytest.mark.compiles
def test_contiguous_ranks_have_half_to_3_and_a_half_blocks_in_sight_and_zigzag_2_each():
    shape = replace(SMALL, length=32)
    assert blocks_in_sight(CONTIGUOUS, shape, 4).tolist() == [0.5, 1.5, 2.5, 3.5]
    assert blocks_in_sight(ZIGZAG, shape, 4).tolist() == [2.0] * 4
    seen = np.tri(32).reshape(4, 8, 32).sum(axis=(1, 2)) - 4
    assert (seen / 64).tolist() == [0.5, 1.5, 2.5, 3.5]


@pytest.mark.compiles
def test_ulysses_inside_and_a_ring_outside_send_exactly_that_and_compute_what_one_device_does():
    result = on_8_devices("ch17_hybrid")
    assert result.verdict is Verdict.EXACT and result.is_fine


def test_a_message_too_many_refutes_both_volumes_of_the_hybrid():
    assert flipped("ch17_hybrid", HYBRID, more_of_part("hybrid")) == {
        "ch17.hybrid_usp",
        "heads are split already when the ring starts",
    }
