"""Strategies with experts: numbers against one device's, ledgers and state against what is worked out by hand.

Two layers, 16 sequences of 8 tokens, 24 wide, 8 experts of 40, 2 for each token, 1.25 times the slots that balance needs: 3.
"""

from dataclasses import replace
from typing import NamedTuple

import jax
import pytest

from lab.decoder_experiments.step import on_one_device, random_tokens
from lab.ledger import Kind
from lab.models.shape import DecoderShape
from lab.strategies import program
from lab.strategies.data_parallel import DATA_PARALLEL
from lab.strategies.expert_parallel import EXPERT_PARALLEL
from lab.strategies.hierarchical_experts import HIERARCHICAL_EXPERTS
from lab.strategies.memory import static_bytes
from lab.strategies.sequence_parallel import SEQUENCE_PARALLEL
from lab.strategies.strategy import Strategy
from lab.strategies.tensor_parallel import TENSOR_PARALLEL
from lab.strategies.zero1 import ZERO1
from lab.strategies.zero3 import ZERO3
from meshes.axes import Axes
from meshes.errors import Unusable
from tests.lab.strategies.test_numerics import assert_equal_to_one_device, on_8_devices

SHAPE = DecoderShape(layers=2, batch=16, length=8, embed=24, kv_heads=4, queries=2, head_dim=6, mlp=40, vocab=72, experts=8)
DATA_EXPERT, FSDP_EXPERT = Axes.parse("data=2,expert=4"), Axes.parse("fsdp=2,expert=4")
# Bytes of 2 sequences in the 3 slots of 8 experts, and of one layer's weights, in bf16.
SLOTS, ROUTER, ONE_MATRIX = 2 * 8 * 3 * 24 * 2, 24 * 8 * 2, 2 * 24 * 40 * 2


def rows(strategy, axes, kind, **sizes):
    found = strategy.predict(replace(SHAPE, **sizes), axes).transfers
    return {("+".join(t.axes), t.scope, t.phase, t.executions, t.payload_bytes) for t in found if t.kind is kind}


@pytest.mark.parametrize(("remat", "backward"), [("none", 2), ("selective", 2), ("dots", 4), ("names", 4), ("full", 4)])
def test_four_all_to_alls_a_layer_and_six_where_it_is_recomputed(remat, backward):
    both = ("layers/mlp/dispatch", "layers/mlp/combine")
    expected = {("expert", scope, phase, n, SLOTS) for scope in both for phase, n in (("forward", 2), ("backward", backward))}
    assert rows(DATA_PARALLEL | EXPERT_PARALLEL, DATA_EXPERT, Kind.ALL_TO_ALL, remat=remat) == expected


def test_two_levels_send_every_buffer_twice():
    flat = rows(EXPERT_PARALLEL | DATA_PARALLEL, DATA_EXPERT, Kind.ALL_TO_ALL)
    assert rows(HIERARCHICAL_EXPERTS, DATA_EXPERT, Kind.ALL_TO_ALL) == flat | {("data", *row[1:]) for row in flat}


def test_gradients_of_experts_are_summed_over_data_and_of_the_router_over_both_axes():
    sums = rows(DATA_PARALLEL | EXPERT_PARALLEL, DATA_EXPERT, Kind.ALL_REDUCE)
    in_mlp = {row for row in sums if row[1].startswith("layers/mlp/") and "norm" not in row[1]}
    experts = {("data", f"layers/mlp/{name}", "backward", 2, ONE_MATRIX) for name in ("gate", "up", "down")}
    assert in_mlp == experts | {("data+expert", "layers/mlp/router", "backward", 2, ROUTER)}
    assert ("expert", "clip", "update", 1, 4) in sums


def test_experts_over_all_ranks_sum_no_gradient_of_an_expert():
    sums = rows(HIERARCHICAL_EXPERTS, DATA_EXPERT, Kind.ALL_REDUCE)
    assert not {row for row in sums if row[1] in ("layers/mlp/gate", "layers/mlp/up", "layers/mlp/down")}


# 2 layers of 1,728 * 2 in attention, 48 in norms, 192 in a router and 8 experts of 2,880; ends 3,480.
DENSE, EXPERTS = 2 * (3_456 + 48 + 192) + 3_480, 2 * 8 * 2_880


@pytest.mark.parametrize(("strategy", "share"), [(DATA_PARALLEL | EXPERT_PARALLEL, 4), (HIERARCHICAL_EXPERTS, 8)], ids=["beside data", "two levels"])
def test_a_device_holds_12_bytes_for_each_parameter_of_its_experts_and_of_all_that_is_dense(strategy, share):
    assert SHAPE.parameters == DENSE + EXPERTS
    assert static_bytes(strategy, SHAPE, DATA_EXPERT) == 12 * (DENSE + EXPERTS // share) + 4 + 2 * 4 * 16


class Sharded(NamedTuple):
    strategy: Strategy
    axes: Axes
    style: str
    shape: DecoderShape


LONGER = replace(SHAPE, length=16, dtype="f32")


@pytest.mark.parametrize(
    "case",
    [
        Sharded(DATA_PARALLEL | EXPERT_PARALLEL, DATA_EXPERT, "explicit", replace(LONGER, capacity_factor=4.0, shared=1, accumulation=2)),
        Sharded(ZERO3 | EXPERT_PARALLEL, FSDP_EXPERT, "declared", replace(LONGER, capacity_factor=0.5, top_k=1, remat="dots")),
        Sharded(HIERARCHICAL_EXPERTS, DATA_EXPERT, "explicit", replace(LONGER, capacity_factor=1.0, remat="none")),
    ],
    ids=["none dropped", "half dropped", "two levels"],
)
def test_loss_and_every_gradient_are_those_of_one_device(case):
    state, tokens = program.initial_state(case.strategy, case.shape), random_tokens(case.shape)
    with jax.default_matmul_precision("highest"):
        expected = jax.jit(on_one_device(case.shape))(state, *tokens)
    assert_equal_to_one_device(on_8_devices(program.gradients, case, state), expected)


@pytest.mark.parametrize(
    ("strategy", "axes", "sizes", "message"),
    [
        (EXPERT_PARALLEL, Axes.parse("expert=8"), {"experts": 12}, "dim 'experts' of size 12 does not split over expert=8; make it a multiple of 8"),
        (EXPERT_PARALLEL, Axes.parse("expert=8"), {"experts": 0}, "experts=0 with experts split over expert: nothing to split; set experts to a multiple of the axis"),
        (EXPERT_PARALLEL, Axes.parse("expert=8"), {"batch": 12}, "dim 'batch' of size 12 does not split over expert=8; make it a multiple of 8"),
        (
            ZERO1 | EXPERT_PARALLEL,
            DATA_EXPERT,
            {},
            "gradients scattered over data (ZeRO-1 or 2) of weights with copies along expert: those would not be summed; use ZeRO-3 or data parallelism beside it",
        ),
        (TENSOR_PARALLEL, Axes.parse("tensor=4"), {}, "experts=8 with hidden dims split over tensor: experts take whole hidden dims; drop that axis, or set experts=0"),
        (SEQUENCE_PARALLEL, Axes.parse("tensor=4"), {}, "experts=8 with hidden dims split over tensor: experts take whole hidden dims; drop that axis, or set experts=0"),
    ],
)
def test_what_does_not_split_is_refused_in_one_line(strategy, axes, sizes, message):
    with pytest.raises(Unusable) as refused:
        strategy.check(replace(SHAPE, **sizes), axes)
    assert str(refused.value) == message
