"""Chapters 18 and 35: experts over ranks in ledgers made by hand, routers in numbers, and a ragged all-to-all by its
definition."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from lab.book.experts import distinct_nodes
from lab.core.ledger import Kind, Memory
from lab.experiments import (
    ch18_constraint_order,
    ch18_dropless,
    ch18_expert_parallel,
    ch18_router_gradients,
    ch18_routing,
    ch35_routing,
)
from lab.harness.question import answer
from lab.harness.registry import load
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.programs.memory.state import static_bytes
from lab.programs.models import dropless, routers
from lab.settle import Verdict
from tests.experiments.part_claims import claims, flipped, ideal, more, on_8_devices
from tests.long_tests import long_but

TWO_HOSTS, EIGHT = Axes.of({"data": 2, "expert": 8}), Axes.of({"expert": 8})
DISPUTED = {
    "ch18_expert_parallel": (["4-5:D-43", "6-8:D-129", "4-5:D-44", "6-8:D-24"], TWO_HOSTS),
    "ch18_hierarchical": ([], TWO_HOSTS),
    "ch18_dropless": ([], EIGHT),
    "ch18_dropless_step": ([], TWO_HOSTS),
    "ch18_fsdp_experts": ([], Axes.of({"fsdp": 2, "expert": 8})),
    "ch35_node_limit": ([], TWO_HOSTS),
}


@pytest.mark.parametrize("name", DISPUTED)
def test_what_theory_asks_for_confirms_all_but_what_is_disputed(name):
    items, axes = DISPUTED[name]
    assert [c.disputed for c in claims(name, axes) if c.verdict != "confirmed"] == items


def test_loads_that_stand_for_gradients_of_biases_are_no_gradients_of_others():
    shape = replace(load("ch18_expert_parallel").parameters, router="sigmoid_bias")
    found = ch18_expert_parallel.claims(shape, TWO_HOSTS, ch18_expert_parallel.STRATEGY.predict(shape, TWO_HOSTS))
    assert [c.disputed for c in found if c.verdict != "confirmed"] == DISPUTED["ch18_expert_parallel"][0]


def of_each_of_2_micro_batches(t, layers):
    """A sum of gradients as declared: a layer's in bf16 for each micro-batch, all else in bf16 after the last."""
    if t.kind is not Kind.ALL_REDUCE or t.phase != "backward":
        return t
    if not t.scope.startswith("layers/"):
        return replace(t, phase="update", dtype="bf16", payload_bytes=t.payload_bytes // 2)
    return replace(t, dtype="bf16", payload_bytes=t.payload_bytes // 2 // layers, executions=2 * layers)


@pytest.mark.parametrize(
    ("change", "more"),
    [(lambda t: t, []), (lambda t: over_both(t), [None])],
    ids=["as they are", "experts over both axes"],
)
def test_gradients_that_2_micro_batches_sum_apart_count_once(change, more):
    shape = replace(load("ch18_expert_parallel").parameters, accumulation=2)
    asked = ch18_expert_parallel.STRATEGY.predict(shape, TWO_HOSTS)
    apart = replace(
        asked, transfers=tuple(change(of_each_of_2_micro_batches(t, shape.layers)) for t in asked.transfers)
    )
    found = [
        c for c in ch18_expert_parallel.claims(shape, TWO_HOSTS, apart) if c.id in ("ch18.ep_dp", "ch25.grad_sync_5d")
    ]
    assert [c.disputed for c in found if c.verdict == "refuted"] == [*more, "4-5:D-44", "6-8:D-24"]


@pytest.mark.parametrize("name", DISPUTED)
def test_one_rank_decides_nothing(name):
    axes = DISPUTED[name][1]
    assert claims(name, Axes(axes.names, (1,) * len(axes.names))) == ()


def over_both(t):
    return replace(t, axes=("data", "expert")) if t.scope == "layers/mlp/up" else t


def apart(t):
    return replace(t, executions=t.executions + 1) if t.kind is Kind.ALL_TO_ALL and t.axes == ("data",) else t


def larger(t):
    return replace(t, payload_bytes=2 * t.payload_bytes) if t.kind is Kind.ALL_TO_ALL and t.axes == ("data",) else t


def for_every_expert(t):
    """As if a token crossed for each of its four experts, not for each of its two nodes."""
    return replace(t, payload_bytes=2 * t.payload_bytes) if t.axes == ("data",) and t.dtype == "bf16" else t


@pytest.mark.parametrize(
    ("name", "change", "statements"),
    [
        ("ch18_expert_parallel", more("layers/mlp/dispatch"), {"ch18.moe_comm"}),
        ("ch18_expert_parallel", more("layers/mlp/combine", 0, 4), {"ch18.moe_comm", "ch18.capacity"}),
        ("ch18_expert_parallel", over_both, {"ch18.ep_dp"}),
        ("ch18_hierarchical", apart, {"A40"}),
        ("ch18_hierarchical", larger, {"as many bytes cross between nodes", "(G-1)/G n + (N-1)/N n are sent"}),
        ("ch18_dropless", more("ragged", 0, 4), {"A39", "counts go first"}),
        (
            "ch18_dropless_step",
            more("layers/mlp/visit", 0, 4),
            {"a ragged exchange in a whole step", "counts go first in a whole step"},
        ),
        (
            "ch18_fsdp_experts",
            more("layers/mlp/gate"),
            {"experts' gradients are summed over the ranks that share no expert"},
        ),
        ("ch35_node_limit", for_every_expert, {"a token crosses once for each node, M copies at most"}),
        ("ch18_dropless", more("padded", 0, 4), {"without a ragged all-to-all the worst case is sent"}),
    ],
    ids=[
        "an all-to-all more",
        "a slot more",
        "experts over both axes",
        "levels apart",
        "twice across",
        "room",
        "a row more",
        "a scatter more",
        "for every expert",
        "padding",
    ],
)
def test_another_ledger_refutes_what_it_should(name, change, statements):
    assert flipped(name, DISPUTED[name][1], change) == statements


@pytest.mark.parametrize(
    ("extra", "padding", "verdict"), [(0, 0, "confirmed"), (4, 0, "refuted"), (508, 508, "confirmed")]
)
def test_arguments_without_padding_hold_an_eighth_of_the_experts(extra, padding, verdict):
    experiment = load("ch18_expert_parallel")
    held = static_bytes(ch18_expert_parallel.STRATEGY, experiment.parameters, TWO_HOSTS)
    memory = Memory(arguments=held + extra, outputs=0, temporaries=0, aliased=0, peak=None, padding=padding)
    found = experiment.claims(
        experiment.parameters, TWO_HOSTS, replace(ideal("ch18_expert_parallel", TWO_HOSTS), memory=memory)
    )
    assert [str(c.verdict) for c in found if c.id == "ch18.placement"] == [verdict]


@pytest.mark.compiles
def test_padded_parts_on_8_devices_send_exactly_that_and_compute_what_one_does():
    result = on_8_devices("ch18_dropless")
    assert result.verdict is Verdict.EXACT and result.is_fine


def by_definition(x, output, input_offsets, send_sizes, output_offsets, recv_sizes, *, axis_name):
    """What `jax.lax.ragged_all_to_all` says it does, row by row of all ranks' buffers."""
    everything = [jax.lax.all_gather(each, axis_name) for each in (x, input_offsets, send_sizes, output_offsets)]
    me, row = jax.lax.axis_index(axis_name), jnp.arange(output.shape[0])
    for x_ND, start_P, size_P, there_P in zip(*everything, strict=True):
        inside = (row >= there_P[me]) & (row < there_P[me] + size_P[me])
        output = jnp.where(inside[:, None], x_ND.at[row - there_P[me] + start_P[me]].get(mode="clip"), output)
    return output


@pytest.mark.compiles
def test_a_ragged_all_to_all_moves_rows_and_gradients_as_the_padded_one(monkeypatch):
    """Where tokens prefer some ranks; CPUs have none, so that its definition stands in."""
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", by_definition)
    mesh, draw, P = make_mesh(parse_target("cpu:8"), EIGHT), np.random.default_rng(0), PartitionSpec("expert")
    x_TD, logits_TE, w_EDD = (draw.normal(size=n).astype(np.float32) for n in ((48, 4), (48, 16), (16, 4, 4)))
    logits_TE += np.linspace(0, 1, 16, dtype=np.float32)

    def found(move):
        layer = jax.shard_map(partial(ch18_dropless.layer, move), mesh=mesh, in_specs=(P, P, P), out_specs=P)
        return jax.jit(jax.value_and_grad(lambda *args: jnp.sum(layer(*args) ** 2), (0, 1, 2)))(x_TD, logits_TE, w_EDD)

    for a, b in zip(*map(jax.tree.leaves, map(found, (dropless.ragged, dropless.padded))), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)


QUESTIONS = [
    (ch18_routing, {}, ["4-5:D-52", "4-5:D-54"]),
    (ch18_router_gradients, {}, ["4-5:D-51", "4-5:D-50", "4-5:D-45"]),
    (ch35_routing, {"tokens": "1024", "steps": "200"}, ["6-8:D-135", "6-8:D-131", "6-8:D-134"]),
]


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("module", "settings", "items"), long_but(QUESTIONS[:2], QUESTIONS), ids=["whom", "gradients", "many small experts"]
)
def test_routers_confirm_all_but_what_is_disputed(module, settings, items):
    found = answer(module.EXPERIMENT, settings)
    assert found.is_fine and [c.disputed for c in found.claims if c.verdict == "refuted"] == items


@pytest.mark.compiles
def test_a_bias_that_never_moves_balances_nothing(monkeypatch):
    monkeypatch.setattr(routers, "rebalanced", lambda bias_E, load_E, rate: bias_E)
    (balance, _) = ch35_routing._bias(ch35_routing.Assumed(steps=40))
    assert balance.verdict == "refuted"


@pytest.mark.compiles
def test_a_normalised_gate_of_one_trains_no_router(monkeypatch):
    monkeypatch.setattr(routers, "weights", lambda gate_Tk: gate_Tk / gate_Tk.sum(-1, keepdims=True))
    assert ch18_router_gradients._top_1(ch18_router_gradients.Assumed())[0].verdict == "refuted"


@pytest.mark.compiles
def test_eight_of_256_experts_lie_on_5_29_of_8_nodes():
    assumed = ch35_routing.Assumed(tokens=1024)
    found = ch35_routing._visited(ch35_routing.chosen(assumed, False), assumed)
    assert distinct_nodes(256, 8, 8) == pytest.approx(5.295, abs=1e-3) and found == pytest.approx(5.295, abs=0.05)


@pytest.mark.compiles
def test_held_to_its_own_device_first_a_dispatch_is_two_all_to_alls_of_43008_elements():
    found = answer(ch18_constraint_order.EXPERIMENT, {"target": "cpu:8"})
    sent = {row.what: row.value for row in found.rows}
    assert {sent[f"{how}, held to its own device, then to its experts"] for how in ("looked up", "multiplied")} == {
        43_008
    }
    assert sent["multiplied, held to its experts at once"] > 2 * 43_008 and found.is_fine


@pytest.mark.parametrize(
    ("module", "settings", "message"),
    [
        (ch18_routing, {"top_k": "8"}, "top_k=8 of experts=8"),
        (ch18_routing, {"tokens": "7"}, "tokens=7 for experts=8, top_k=2: expected 8 or more, two for each expert"),
        (ch18_routing, {"groups": "100000000"}, "arrays of 102,400,000,000 numbers; expected 67,108,864 at most"),
        (ch18_router_gradients, {"embed": "100000000"}, "arrays of 800,000,000 numbers; expected 67,108,864 at most"),
        (ch18_constraint_order, {"target": "cpu:1"}, "target=cpu:1 has one device, which sends nothing"),
        (ch35_routing, {"experts": "192", "nodes": "5"}, "experts=192 on nodes=5"),
    ],
)
def test_routing_that_cannot_be_or_is_too_large_is_refused_in_one_line(module, settings, message):
    with pytest.raises(UsageError, match=message):
        answer(module.EXPERIMENT, settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"limit": 0}, "limit=0: expected 1 or more"), ({"experts": 32}, "expected a multiple of 64")],
)
def test_no_nodes_to_go_to_and_too_few_experts_are_refused_in_one_line(settings, message):
    with pytest.raises(UsageError, match=message):
        ch35_routing.Assumed(**settings)


def test_a_ragged_all_to_all_on_cpus_is_refused_in_one_line():
    experiment = load("ch18_dropless")
    with pytest.raises(UsageError, match="ragged=True on CPUs.*--set ragged=false"):
        experiment.build("explicit", experiment.parameters, make_mesh(parse_target("cpu:8"), EIGHT))


def test_no_tokens_are_refused_in_one_line():
    with pytest.raises(UsageError, match="tokens=0: expected 1 or more"):
        load("ch18_dropless").predict(replace(load("ch18_dropless").parameters, tokens=0), EIGHT)


def test_six_experts_do_not_split_over_8_devices():
    with pytest.raises(UsageError, match="experts=6 is not divisible by the 8 devices of cpu:8; make it a multiple"):
        answer(ch18_constraint_order.EXPERIMENT, {"target": "cpu:8", "experts": "6"})


@pytest.mark.parametrize(
    ("sized", "message"),
    [
        (lambda: ch18_constraint_order.Assumed(length=2**31), "length=2147483648: expected less than 2.31"),
        (
            lambda: ch18_constraint_order.Assumed(experts=2**20, slots=2**11),
            "experts . slots=2147483648: expected less than 2.31",
        ),
        (
            lambda: on_8("explicit", ch18_dropless.Sizes(tokens=2**27, ragged=False)),
            "tokens . 2 . 8=2147483648: expected less than 2.31",
        ),
        (
            lambda: on_8("explicit", ch18_dropless.Sizes(experts=2**28, ragged=False)),
            "experts . 8=2147483648: expected less than 2.31",
        ),
    ],
)
def test_sizes_beyond_int32_are_refused_by_their_names(sized, message):
    with pytest.raises(UsageError, match=message):
        sized()


def on_8(style, sizes):
    return ch18_dropless.build(style, sizes, make_mesh(parse_target("cpu:8"), EIGHT))
