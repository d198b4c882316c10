"""Context parallelism's terms against numbers worked out by hand: two layers, 16 sequences of 8 tokens, 4 x 2 heads of
6, bf16; and numbers beside other strategies."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from lab.attention.order import CONTIGUOUS, ZIGZAG
from lab.core.ledger import Kind
from lab.harness.decoder.step import random_tokens
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.programs.models.decoder import initial
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies import program
from lab.programs.strategies.context_parallel import (
    GATHERED_KEYS,
    RING,
    ULYSSES,
    ZIGZAG_RING,
)
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.sequence_parallel import SEQUENCE_PARALLEL
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.tensor_parallel import TENSOR_PARALLEL
from lab.programs.strategies.zero1 import ZERO1, ZERO2
from lab.programs.strategies.zero3 import ZERO3
from tests.lab.programs.strategies.test_numerics import assert_equal_to_one_device
from tests.long_tests import one_in

SHAPE = DecoderShape(layers=2, batch=16, length=8, embed=24, kv_heads=4, queries=2, head_dim=6, mlp=40, vocab=72)
MESH = Axes.of({"data": 2, "context": 4})
# Keys of 8 sequences' 2 tokens: 8 x 2 x 4 x 6 x 2 bytes.
N = 768


def in_core(
    strategy: Strategy, shape: DecoderShape = SHAPE, axes: Axes = MESH
) -> dict[tuple[str, str], tuple[int, int]]:
    """Executions and payload by the last part of the scope and the phase."""
    rows = [t for t in (DATA_PARALLEL | strategy).predict(shape, axes).transfers if "/core/" in t.scope]
    assert {t.axes for t in rows} == {("context",)}
    return {
        (t.scope.removeprefix("layers/attention/core/"), f"{t.phase} {t.kind}"): (t.executions, t.payload_bytes)
        for t in rows
    }


def test_a_ring_of_4_sends_3_hops_in_each_of_3_passes_and_float32_gradients_3_and_home():
    permutes = {
        ("s", "forward"): (6, N),
        ("s", "backward"): (12, N),
        ("_gradients", "backward"): (6, 2 * N),
    }
    expected = {
        (f"{name}{what}", f"{phase} collective_permute"): row
        for name in ("key", "value")
        for (what, phase), row in permutes.items()
    }
    home = {(f"home/{name}_gradients", "backward collective_permute"): (2, N) for name in ("key", "value")}
    assert in_core(RING) == in_core(ZIGZAG_RING) == expected | home


@pytest.mark.parametrize(("window", "executions"), [(1, 0), (2, 2), (3, 2), (4, 4), (8, 6)])
def test_chunks_of_2_go_as_many_hops_as_a_window_needs(window, executions):
    assert in_core(RING, replace(SHAPE, window=window))[("keys", "forward collective_permute")] == (executions, N)


def test_gathered_keys_are_4_times_a_ranks_own_twice_and_scattered_once():
    rows = {"forward all_gather": (2, 4 * N), "backward all_gather": (2, 4 * N), "backward reduce_scatter": (2, 4 * N)}
    assert in_core(GATHERED_KEYS) == {
        (scope, row): value for scope in ("keys", "values") for row, value in rows.items()
    }


@pytest.mark.parametrize("sizes", [{}, {"kv_heads": 2, "queries": 4}, {"kv_heads": 1, "queries": 8}])
def test_ulysses_exchanges_keys_of_a_head_for_every_rank(sizes):
    rows = in_core(ULYSSES, replace(SHAPE, **sizes))
    assert rows[("queries", "forward all_to_all")] == rows[("outputs", "forward all_to_all")] == (2, 2 * N)
    assert rows[("keys", "forward all_to_all")] == rows[("values", "forward all_to_all")] == (2, N)
    assert rows[("keys", "backward all_to_all")] == (4, N)


def test_with_scores_alone_made_again_outputs_are_not_exchanged_again():
    rows = in_core(ULYSSES, replace(SHAPE, remat="selective"))
    assert (rows[("outputs", "backward all_to_all")], rows[("queries", "backward all_to_all")]) == (
        (2, 2 * N),
        (4, 2 * N),
    )


def test_gradients_and_loss_are_summed_over_all_that_splits_tokens():
    summed = {t.axes for t in (DATA_PARALLEL | RING).predict(SHAPE, MESH).transfers if t.kind is Kind.ALL_REDUCE}
    assert summed == {("data", "context")}


@pytest.mark.parametrize("strategy", [RING, GATHERED_KEYS, ULYSSES])
def test_a_sequence_of_6_on_4_ranks_is_refused(strategy):
    with pytest.raises(
        UsageError, match="dim 'length' of size 6 is not divisible by context=4; make it a multiple of 4"
    ):
        strategy.predict(replace(SHAPE, length=6), MESH)


def test_a_zigzag_sequence_of_12_on_4_ranks_is_refused():
    with pytest.raises(
        UsageError, match="length=12 is not divisible by 4 ranks with 2 pieces each; make it a multiple of 8"
    ):
        ZIGZAG_RING.predict(replace(SHAPE, length=12), MESH)


@pytest.mark.parametrize("sizes", [{"kv_heads": 6}, {"kv_heads": 2, "queries": 3}])
def test_heads_that_do_not_split_are_refused_by_ulysses(sizes):
    with pytest.raises(UsageError, match="are not divisible by 4 ranks; make one a multiple of the other"):
        ULYSSES.predict(replace(SHAPE, **sizes), MESH)


def test_a_zigzag_ring_of_a_full_mask_is_refused_before_anything_is_compiled():
    with pytest.raises(
        UsageError, match="zigzag order with causal=False, window=0.*use contiguous order, or causal=True and window=0"
    ):
        ZIGZAG_RING.predict(replace(SHAPE, causal=False), MESH)


@pytest.mark.parametrize(("zero", "dtype", "e"), [(ZERO1, "bf16", 2), (ZERO2, "f32", 4)], ids=["1", "2"])
def test_gradients_that_zero_1_and_2_scatter_over_data_are_summed_over_context_as_their_parts(zero, dtype, e):
    shape = replace(SHAPE, dtype="bf16")
    whole = shape.layers * shape.embed * shape.mlp
    (part,) = [
        t for t in (zero | RING).predict(shape, MESH).transfers if (t.scope, t.kind) == ("layers/mlp/up", "all_reduce")
    ]
    assert (part.axes, part.dtype, part.payload_bytes) == (("context",), dtype, e * whole // MESH["data"])


@pytest.mark.parametrize(("one", "other"), [(RING, ULYSSES), (GATHERED_KEYS, ZIGZAG_RING)])
def test_two_kinds_of_attention_over_ranks_do_not_compose(one, other):
    with pytest.raises(UsageError, match="two strategies both set the hook 'positions'"):
        one | other


SMALL = DecoderShape(
    layers=2, batch=8, length=16, embed=24, kv_heads=4, queries=2, head_dim=6, mlp=40, vocab=48, dtype="f32"
)
COMPOSED = {
    "data x ring x tensor, window": (
        DATA_PARALLEL | RING | TENSOR_PARALLEL,
        "data=2,context=2,tensor=2",
        "explicit",
        CONTIGUOUS,
        {"window": 6, "remat": "selective"},
    ),
    "fsdp x zigzag, accumulated": (
        ZERO3 | ZIGZAG_RING,
        "fsdp=2,context=4",
        "explicit",
        ZIGZAG,
        {"accumulation": 2, "remat": "dots"},
    ),
    "data x ulysses x sequence": (
        DATA_PARALLEL | ULYSSES | SEQUENCE_PARALLEL,
        "data=2,context=2,tensor=2",
        "explicit",
        CONTIGUOUS,
        {"remat": "names"},
    ),
    "fsdp x gathered, full mask": (
        ZERO3 | GATHERED_KEYS,
        "fsdp=2,context=4",
        "explicit",
        CONTIGUOUS,
        {"causal": False},
    ),
}


@pytest.mark.compiles
@pytest.mark.parametrize("name", one_in(2, COMPOSED))
def test_beside_other_strategies_loss_and_gradients_are_those_of_one_device(name):
    strategy, axes, style, order, sizes = COMPOSED[name]
    shape, axes = replace(SMALL, **sizes), Axes.parse(axes)
    tokens = random_tokens(shape)
    find, shapes = program.gradients(strategy, style, shape, make_mesh(parse_target("cpu:8"), axes))
    at = np.asarray(order.whole(shape.length, axes["context"]))
    state = program.initial_state(strategy, shape)
    arguments = jax.device_put(
        (state, *(x[:, at] for x in tokens)), jax.tree.map(lambda x: x.sharding, shapes), may_alias=False
    )
    with jax.default_matmul_precision("highest"):
        expected = jax.jit(jax.value_and_grad(program.mean_loss), static_argnums=3)(
            initial(shape), *tokens, replace(shape, remat="none")
        )
        assert_equal_to_one_device(find(*arguments), expected)
