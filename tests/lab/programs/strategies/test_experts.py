"""Strategies with experts: numbers against one device's, ledgers and state against what is worked out by hand.

Two layers, 16 sequences of 8 tokens, 24 wide, 8 experts of 40, 2 for each token, 1.25 times the slots that balance
needs: 3.
"""

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest

from lab.core.ledger import Kind
from lab.harness.decoder.step import on_one_device, random_tokens
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.programs.memory.state import static_bytes
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies import program
from lab.programs.strategies.context_parallel import ULYSSES
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.expert_parallel import EXPERT_PARALLEL
from lab.programs.strategies.hierarchical_experts import HIERARCHICAL_EXPERTS
from lab.programs.strategies.node_limited_experts import NODE_LIMITED_EXPERTS
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.tensor_parallel import TENSOR_PARALLEL, sum_of_weights
from lab.programs.strategies.update import (
    clipping,
    is_weight,
    optimizer,
    squares,
    updated,
)
from lab.programs.strategies.zero1 import ZERO1
from lab.programs.strategies.zero3 import ZERO3
from tests.lab.programs.strategies.test_numerics import (
    assert_equal_to_one_device,
    on_8_devices,
)
from tests.long_tests import one_in

SHAPE = DecoderShape(
    layers=2, batch=16, length=8, embed=24, kv_heads=4, queries=2, head_dim=6, mlp=40, vocab=72, experts=8
)
DATA_EXPERT, FSDP_EXPERT = Axes.parse("data=2,expert=4"), Axes.parse("fsdp=2,expert=4")
# Bytes of 2 sequences in the 3 slots of 8 experts, and of one layer's weights, in bf16.
SLOTS, ROUTER, ONE_MATRIX = 2 * 8 * 3 * 24 * 2, 24 * 8 * 2, 2 * 24 * 40 * 2


def rows(strategy, axes, kind, **sizes):
    found = strategy.predict(replace(SHAPE, **sizes), axes).transfers
    return {("+".join(t.axes), t.scope, t.phase, t.executions, t.payload_bytes) for t in found if t.kind is kind}


@pytest.mark.parametrize(("remat", "backward"), [("none", 2), ("selective", 2), ("dots", 4), ("names", 4), ("full", 4)])
def test_four_all_to_alls_a_layer_and_six_where_it_is_recomputed(remat, backward):
    both = ("layers/mlp/dispatch", "layers/mlp/combine")
    expected = {
        ("expert", scope, phase, n, SLOTS) for scope in both for phase, n in (("forward", 2), ("backward", backward))
    }
    assert rows(DATA_PARALLEL | EXPERT_PARALLEL, DATA_EXPERT, Kind.ALL_TO_ALL, remat=remat) == expected


def test_two_levels_send_every_buffer_twice():
    flat = rows(EXPERT_PARALLEL | DATA_PARALLEL, DATA_EXPERT, Kind.ALL_TO_ALL)
    assert rows(HIERARCHICAL_EXPERTS, DATA_EXPERT, Kind.ALL_TO_ALL) == flat | {("data", *row[1:]) for row in flat}


def test_tokens_and_weights_that_are_as_many_bytes_cross_both():
    alike = replace(SHAPE, dtype="f32", embed=8, experts=16, nodes=2, top_k=2, mlp=16)
    crossing = [
        t
        for t in NODE_LIMITED_EXPERTS.predict(alike, DATA_EXPERT).transfers
        if (t.scope, t.phase) == ("layers/mlp/across", "forward")
    ]
    assert len(crossing) == 2 and len(set(crossing)) == 1


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


@pytest.mark.parametrize(
    ("strategy", "share"),
    [(DATA_PARALLEL | EXPERT_PARALLEL, 4), (HIERARCHICAL_EXPERTS, 8)],
    ids=["beside data", "two levels"],
)
def test_a_device_holds_12_bytes_for_each_parameter_of_its_experts_and_of_all_that_is_dense(strategy, share):
    assert SHAPE.parameters == DENSE + EXPERTS
    assert static_bytes(strategy, SHAPE, DATA_EXPERT) == 12 * (DENSE + EXPERTS // share) + 4 + 2 * 4 * 16


class Sharded(NamedTuple):
    strategy: Strategy
    axes: Axes
    style: str
    shape: DecoderShape


LONGER = replace(SHAPE, length=16, dtype="f32")
FEW_NODES = replace(
    LONGER, router="sigmoid_bias", nodes=4, node_limit=2, top_k=4, z=0.01, capacity_factor=0.7, shared=1
)


def with_biases(state: program.TrainState) -> program.TrainState:
    """That move some choices: at first all are 0."""
    biased = program.each(
        state.master,
        lambda w: (
            w.get_value() + 0.02 * np.arange(w.shape[-1], dtype=np.float32) if "bias" in w.dims else w.get_value()
        ),
    )
    return state._replace(master=biased)


@cache
def one_device(shape: DecoderShape) -> Any:
    state = with_biases(program.initial_state(EXPERT_PARALLEL, shape))
    with jax.default_matmul_precision("highest"):
        return jax.jit(on_one_device(shape))(state, *random_tokens(shape))


@pytest.mark.compiles
@pytest.mark.parametrize(
    "case",
    one_in(
        2,
        [
            Sharded(
                DATA_PARALLEL | EXPERT_PARALLEL,
                DATA_EXPERT,
                "explicit",
                replace(LONGER, capacity_factor=4.0, shared=1, accumulation=2),
            ),
            Sharded(
                ZERO3 | EXPERT_PARALLEL,
                FSDP_EXPERT,
                "declared",
                replace(LONGER, capacity_factor=0.5, top_k=1, remat="dots"),
            ),
            Sharded(HIERARCHICAL_EXPERTS, DATA_EXPERT, "explicit", replace(LONGER, capacity_factor=1.0, remat="none")),
            Sharded(ZERO3 | EXPERT_PARALLEL, FSDP_EXPERT, "declared", FEW_NODES),
            Sharded(NODE_LIMITED_EXPERTS, DATA_EXPERT, "explicit", FEW_NODES),
            Sharded(DATA_PARALLEL | EXPERT_PARALLEL, DATA_EXPERT, "declared", replace(LONGER, router="expert_choice")),
            Sharded(ZERO3 | EXPERT_PARALLEL, FSDP_EXPERT, "explicit", replace(LONGER, dispatch="padded", top_k=3)),
        ],
    ),
    ids=[
        "none dropped",
        "half dropped",
        "two levels",
        "biased, two nodes of four",
        "a copy a node",
        "experts choose",
        "dropless",
    ],
)
def test_loss_and_every_gradient_are_those_of_one_device(case):
    state = with_biases(program.initial_state(case.strategy, case.shape))
    assert_equal_to_one_device(on_8_devices(program.gradients, case, state), one_device(case.shape))


@pytest.mark.compiles
def test_loads_beyond_the_mean_stand_for_a_biases_gradient_and_are_not_clipped_by_or_with_others():
    _, gradients = one_device(FEW_NODES)
    (excess_LE,) = (g.get_value() for g in jax.tree.leaves(gradients, is_leaf=is_weight) if "bias" in g.dims)
    assert np.abs(excess_LE).max() > 4 and float(np.abs(np.sum(excess_LE, -1)).max()) == 0
    others = {path: g for path, g in flat(gradients).items() if "bias" not in g.dims}
    assert float(squares(gradients, dict.fromkeys({g.dims for g in others.values()}, 1))) == pytest.approx(
        float(optax.tree.norm(others) ** 2), rel=1e-6
    )
    clipped, _ = clipping().update(gradients, clipping().init(gradients))
    assert float(optax.tree.norm({path: g for path, g in flat(clipped).items() if path in others})) == pytest.approx(1)


def flat(tree: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path): w for path, w in jax.tree.leaves_with_path(tree, is_leaf=is_weight)}


@pytest.mark.compiles
def test_a_step_moves_every_bias_by_a_thousandth_towards_balance():
    shape = replace(LONGER, router="sigmoid_bias")
    state = program.initial_state(EXPERT_PARALLEL, shape)
    gradients = program.each(
        state.master, lambda w: np.arange(-3.0, 5.0)[None] * np.ones(w.shape) if "bias" in w.dims else w.get_value()
    )
    new, _ = updated(optimizer(), gradients, state.moments, state.master)
    (bias_LE,) = (w.get_value() for w in jax.tree.leaves(new, is_leaf=is_weight) if "bias" in w.dims)
    np.testing.assert_allclose(bias_LE, [[1e-3] * 3 + [0] + [-1e-3] * 4] * 2, rtol=1e-6)


# A rank has 2 sequences of 8 tokens, 2 copies of each, in bf16; 8 experts and 4 ranks have a count each. Two nodes of
# four: 5 slots for 8 tokens on each.
COPIES, COUNTS, CROSSING = 2 * 8 * 2 * 24 * 2, 4 * (8 + 4), 2 * 4 * 5 * 24 * 2


@pytest.mark.parametrize(
    ("dispatch", "kind", "buffers"),
    [("padded", Kind.ALL_TO_ALL, {4 * COPIES: 2}), ("ragged", Kind.RAGGED_ALL_TO_ALL, {COPIES: 2})],
)
def test_without_slots_counts_go_once_a_pass_and_rows_six_times_a_layer(dispatch, kind, buffers):
    found = {
        k: rows(DATA_PARALLEL | EXPERT_PARALLEL, DATA_EXPERT, k, dispatch=dispatch)
        for k in (Kind.ALL_TO_ALL, Kind.RAGGED_ALL_TO_ALL)
    }
    phases = {"forward": 2, "backward": 4}
    counts = {("expert", "layers/mlp/visit", phase, 2, COUNTS) for phase in phases}
    moves = {
        ("expert", "layers/mlp/visit", phase, n * times, size)
        for phase, n in phases.items()
        for size, times in buffers.items()
    }
    assert found[kind] - counts == moves and found[Kind.ALL_TO_ALL] >= counts


def test_tokens_cross_once_a_node_with_the_weights_of_two_experts_and_come_home_added_up():
    found = rows(NODE_LIMITED_EXPERTS, DATA_EXPERT, Kind.ALL_TO_ALL, nodes=4, node_limit=2)
    tokens = {("data", "layers/mlp/across", phase, n, CROSSING) for phase, n in (("forward", 2), ("backward", 4))}
    weights = {(*row[:4], 2 * 4 * 5 * 2 * 4) for row in tokens}
    home = {("data", "layers/mlp/home", phase, 2, CROSSING) for phase in ("forward", "backward")}
    assert {row for row in found if row[0] == "data"} == tokens | weights | home
    assert {row for row in found if row[0] == "expert"} == rows(
        DATA_PARALLEL | EXPERT_PARALLEL, DATA_EXPERT, Kind.ALL_TO_ALL
    )


def test_loads_of_all_ranks_are_summed_in_f32():
    sums = {
        t
        for t in (DATA_PARALLEL | EXPERT_PARALLEL).predict(replace(SHAPE, router="sigmoid_bias"), DATA_EXPERT).transfers
        if t.scope == "layers/mlp/bias"
    }
    assert {(t.axes, t.dtype, t.payload_bytes, t.executions) for t in sums} == {(("data", "expert"), "f32", 4 * 8, 2)}


@pytest.mark.parametrize(
    ("strategy", "axes", "sizes", "message"),
    [
        (
            EXPERT_PARALLEL,
            Axes.parse("expert=8"),
            {"experts": 12},
            "dim 'experts' of size 12 is not divisible by expert=8; make it a multiple of 8",
        ),
        (
            EXPERT_PARALLEL,
            Axes.parse("expert=8"),
            {"experts": 0},
            "experts=0 and experts are sharded over expert; set experts to a multiple of the axis, or drop the axis",
        ),
        (
            EXPERT_PARALLEL,
            Axes.parse("expert=8"),
            {"batch": 12},
            "dim 'batch' of size 12 is not divisible by expert=8; make it a multiple of 8",
        ),
        (
            ZERO1 | ZERO3,
            Axes.parse("data=2,fsdp=4"),
            {},
            "mesh data=2,fsdp=4: ZeRO-1 or 2 shards over data what fsdp shards first; put data last, as in "
            "fsdp=4,data=2",
        ),
        (
            NODE_LIMITED_EXPERTS,
            DATA_EXPERT,
            {},
            "dim 'nodes' of size 1 is not divisible by data=2; make it a multiple of 2",
        ),
    ],
)
def test_what_does_not_split_is_refused_in_one_line(strategy, axes, sizes, message):
    with pytest.raises(UsageError) as refused:
        strategy.check(replace(SHAPE, **sizes), axes)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("strategy", "style", "sizes", "message"),
    [
        (
            DATA_PARALLEL | EXPERT_PARALLEL,
            "declared",
            {"dispatch": "padded"},
            "dispatch=padded in the declared style: .*; set dispatch=slots, or --style explicit",
        ),
        (
            DATA_PARALLEL | EXPERT_PARALLEL,
            "explicit",
            {"dispatch": "ragged"},
            "dispatch=ragged on CPUs.*or set dispatch=padded",
        ),
        (
            HIERARCHICAL_EXPERTS,
            "explicit",
            {"dispatch": "padded"},
            "dispatch=padded over two levels of links: .*or dispatch=slots",
        ),
    ],
)
def test_tokens_that_cannot_be_sent_so_are_refused_in_one_line(strategy, style, sizes, message):
    mesh = make_mesh(parse_target("cpu:8"), DATA_EXPERT)

    def lowered():
        function, arguments = program.step(strategy, style, replace(SHAPE, **sizes), mesh)
        return function.lower(*arguments)

    with pytest.raises(UsageError, match=message):
        lowered()


@pytest.mark.parametrize(
    ("strategy", "axes", "message"),
    [
        (EXPERT_PARALLEL | TENSOR_PARALLEL, "expert=4,tensor=2", "a layer's work sharded over tensor in the declared"),
        (EXPERT_PARALLEL | ULYSSES, "expert=4,context=2", "a layer's work sharded over context in the declared"),
        (ZERO1 | EXPERT_PARALLEL, "data=2,expert=4", "weights replicated over expert as well in the declared style"),
    ],
    ids=["tensor", "context", "ZeRO-1"],
)
def test_sums_that_a_partitioner_finishes_where_they_begin_are_for_the_explicit_style(strategy, axes, message):
    step, mesh = program.step, make_mesh(parse_target("cpu:8"), Axes.parse(axes))
    with pytest.raises(UsageError, match=f"{message}.*use --style explicit"):
        step(strategy, "declared", SHAPE, mesh)
    step(strategy, "explicit", SHAPE, mesh)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "beside"), [(DATA_PARALLEL, "data"), (ZERO3, "fsdp")])
def test_experts_along_an_axis_before_the_last_that_splits_the_batch_are_for_the_explicit_style(strategy, beside):
    step, mesh = program.step, make_mesh(parse_target("cpu:8"), Axes.parse(f"expert=4,{beside}=2"))
    with pytest.raises(UsageError, match=f"put expert last, as in {beside}=2,expert=4, or --style explicit"):
        step(strategy | EXPERT_PARALLEL, "declared", SHAPE, mesh)
    step(strategy | EXPERT_PARALLEL, "explicit", SHAPE, mesh)
    alone = make_mesh(parse_target("cpu:8"), Axes.parse(f"expert=8,{beside}=1"))
    step(strategy | EXPERT_PARALLEL, "declared", SHAPE, alone)


@pytest.mark.parametrize(("router", "copies"), [("softmax", 128 * 2), ("expert_choice", 16 * 8 * 3)])
def test_ranks_of_a_tensor_axis_sum_a_number_for_each_copy_of_a_token_or_for_each_slot(router, copies):
    (summed,) = sum_of_weights(TENSOR_PARALLEL, replace(SHAPE, router=router), Axes.parse("tensor=4"))
    assert (summed.payload_bytes, summed.executions, summed.axes) == (4 * copies, 2, ("tensor",))
