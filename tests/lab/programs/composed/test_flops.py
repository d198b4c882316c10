"""FLOPs of a step by cause, by hand and as compiled."""

from dataclasses import asdict, replace
from fractions import Fraction

import pytest

from lab import zoo
from lab.core.ledger import Ledger
from lab.harness.claim import ClaimVerdict
from lab.harness.decoder.composed import ComposedShape, computed, configuration
from lab.harness.decoder.composed_claims import composed_claims
from lab.harness.registry import load
from lab.harness.run import run
from lab.hlo.read import read_text
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.programs.composed import step as composed
from lab.programs.composed.configuration import Configuration
from lab.programs.composed.flops import flops
from lab.programs.composed.products import Cause, of_ends, of_layer, size
from lab.programs.composed.step import sized
from lab.programs.models.shape import DecoderShape
from lab.programs.pipelines.program import table_for
from tests.long_tests import long

MODEL = DecoderShape(
    layers=3, batch=32, length=1024, embed=512, kv_heads=4, queries=2, head_dim=64, mlp=1408, vocab=4096
)
SMALL = ComposedShape(
    layers=4,
    batch=16,
    length=256,
    embed=128,
    kv_heads=4,
    queries=2,
    head_dim=32,
    mlp=160,
    vocab=512,
    dtype="f32",
    accumulation=4,
)
LAYER = 512 * 64 * 2 * (8 + 4) + 3 * 512 * 1408
HEAD = 512 * 4096


def test_of_dense_attention_by_hand():
    tokens, pairs, layers = 32 * 1024 // 8, 4 * 1024 * 1024, 3
    seen, head_products = 4 * 1025 * 512, 4 * 8 * 64
    found = flops(Configuration(fsdp=8), replace(MODEL, remat="full"))
    (stage,) = found.stages
    assert {cause: n for cause, n in stage.items() if n} == {
        Cause.TRAINING: 6 * tokens * MODEL.parameters,
        Cause.NOT_MULTIPLIED: -6 * tokens * (HEAD + 7 * 512),
        Cause.ATTENTION: 3 * layers * seen * head_products,
        Cause.MASKED: 3 * layers * (pairs - seen) * head_products,
        Cause.WEIGHTS_AGAIN: 2 * tokens * layers * (LAYER - 512 * 1408),
        Cause.ATTENTION_AGAIN: layers * pairs * head_products,
    }
    assert found.totals == (found.every_branch,)


def test_what_stages_in_lockstep_do_in_vain_by_hand():
    # Four sequences of 128 tokens here, two blocks of keys for each; five ticks for four micro-batches.
    tokens, pairs = 4 * 128, 4 * 2 * 128 * 128
    attention, rows = 4 * 8 * 32 * pairs, 2 * tokens * 8 * 32
    forward = 2 * tokens * (128 * 32 * (2 * 8 + 2 * 4) + 3 * 128 * 160) + attention
    layer = forward + 3 * forward + attention // 2 + rows
    head = 4 * 2 * tokens * 128 * 512
    shape = replace(SMALL, schedule="gpipe", layers=5, stage_layers="Ettt|ttL", remat="none", attention="ring")
    first, last = computed_by_theory("pipe=2,context=2", shape).stages
    assert (first[Cause.LAYERS_IN_VAIN], last[Cause.LAYERS_IN_VAIN]) == (0, 4 * layer)
    assert (first[Cause.JOBS_IN_VAIN], last[Cause.JOBS_IN_VAIN]) == (3 * layer, 3 * layer + head)
    assert (first[Cause.STAGE_AGAIN], last[Cause.STAGE_AGAIN]) == (4 * 3 * forward, 4 * (2 * forward + head // 4))
    assert first[Cause.SHARE] == -last[Cause.SHARE]


def test_slots_and_ranks_that_do_the_same_by_hand():
    shape = replace(SMALL, experts=8, top_k=2, capacity_factor=2.0, sequence=False)
    (stage,) = computed_by_theory("expert=2,tensor=2", shape).stages
    tokens = 16 * 256 // 2
    assert stage[Cause.SLOTS] == 6 * 4 * tokens * 2 * 3 * 128 * 160 // 2
    assert stage[Cause.COPIES] == 6 * 4 * tokens * 128 * 8 // 2
    assert stage[Cause.SUMS] == 6 * 4 * tokens * 2 * 128


def test_a_further_prediction_multiplies_the_head_once_more():
    shape = replace(SMALL, kv_rank=32, query_rank=48, rope_dim=8, queries=1, mtp=1)
    (stage,) = computed_by_theory("fsdp=4", shape).stages
    assert stage[Cause.PREDICTIONS] == 6 * (16 * 256 // 4) * 128 * 512


def test_a_further_prediction_visits_as_many_experts_as_a_layer_does_by_hand():
    (stage,) = computed_by_theory("fsdp=4", replace(SMALL, experts=8, top_k=2, mtp=1)).stages
    layer = 128 * 32 * (2 * 8 + 2 * 4) + 128 * 8 + 2 * 3 * 128 * 160
    norms = 5 * 2 * 128 + 128 + 3 * 128
    visited = 5 * layer + 2 * 128 * 128 + norms + 2 * 512 * 128
    assert stage[Cause.TRAINING] == 6 * (16 * 256 // 4) * visited


def test_parameters_of_a_published_model_are_those_that_a_token_visits():
    model = DecoderShape.preset("deepseek-v3")
    (stage,) = flops(Configuration(fsdp=512, expert=1), replace(model, batch=512, mtp=0)).stages
    active = stage[Cause.TRAINING] * 512 / (6 * 512 * model.length)
    assert active == zoo.model("deepseek-v3").active_parameters


def test_experts_without_slots_multiply_all_rows_that_could_come_by_hand():
    (stage,) = computed_by_theory("expert=4", replace(SMALL, experts=8, top_k=2, dispatch="padded")).stages
    copies, matrices = 16 * 256 // 4 * 2, 4 * 3 * 128 * 160
    assert stage[Cause.ROWS] == 6 * copies * (4 * 2 - 1) * matrices


def computed_by_theory(mesh: str, shape: ComposedShape):
    of = configuration(shape, Axes.parse(mesh))
    return flops(of, sized(of, shape))


V3 = {"experts": 4, "layers": 7, "dense_layers": 2, "mtp": 1, "stage_layers": "Et*3|t*4mL"}
COMPILED = [
    ("pipe=2,data=2,tensor=2", {"remat": "none", "layers": 5, "stage_layers": "Ettt|ttL"}),
    ("data=2,fsdp=2,tensor=2", {"kv_rank": 32, "query_rank": 48, "rope_dim": 8, "queries": 1, "mtp": 1}),
]
MORE_COMPILED = [
    ("pipe=2,data=2,tensor=2", {"remat": "dots", "schedule": "zb_h1", "tied": True}),
    ("pipe=2,context=2,expert=2", {"schedule": "gpipe", "layers": 5, "stage_layers": "Ettt|ttL", "experts": 4}),
    ("pipe=2,expert=2,tensor=2", {"remat": "names", "schedule": "interleaved", "chunks": 2, "layers": 8, "experts": 4}),
    ("pipe=2,context=4", {"attention": "gathered", "remat": "names", "schedule": "zb_h1"}),
    ("pipe=2,context=2,data=2", {"schedule": "zb_h1", "remat": "full", "layers": 5, "stage_layers": "Ett|t*3L"}),
    ("pipe=2,expert=2,tensor=2", V3 | {"schedule": "interleaved", "chunks": 2, "stage_layers": "Ett|tt|t|ttmL"}),
    ("context=4,tensor=2", {"attention": "zigzag", "length": 2048}),
    ("context=4,data=2", {"attention": "ulysses", "length": 1024, "remat": "dots"}),
    ("expert=4,tensor=2", {"experts": 8, "router": "sigmoid_bias", "nodes": 2, "sequence": False}),
    ("expert=2,data=4", {"experts": 4, "dispatch": "padded", "remat": "dots", "batch": 32}),
]


SUMS_FUSED = [
    ("pipe=2,expert=2,data=2", {"experts": 4, "shared": 1, "schedule": "zb_h1", "remat": "dots"}),
    ("context=4,data=2", {"attention": "ring", "length": 2048, "window": 600}),
    ("fsdp=8", {"experts": 4, "layers": 6, "dense_layers": 2, "mtp": 1, "batch": 32}),
]
"""Of which the CPU's compiler fuses some sums by token: their multiplications lose the name of a product."""


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("mesh", "choices"), [*COMPILED, *(pytest.param(*each, marks=long) for each in MORE_COMPILED)], ids=str
)
def test_each_stage_of_a_compiled_step_computes_what_theory_says(mesh, choices):
    found = compiled(mesh, choices)
    assert (found.compiled, found.compiled_by_stages) == (found.every_branch, found.by_stages)


@long
@pytest.mark.compiles
@pytest.mark.parametrize(("mesh", "choices"), SUMS_FUSED, ids=str)
def test_only_sums_by_token_are_missing_where_they_are_fused(mesh, choices):
    found = compiled(mesh, choices)
    most = found.by_cause[Cause.SUMS] / found.by_stages[found.busiest]
    assert all(0 <= 1 - counted / theory <= most for counted, theory in found.pairs)


def compiled(mesh: str, choices: dict[str, object]):
    shape, axes, target = replace(SMALL, **choices), Axes.parse(mesh), parse_target("cpu:8")
    function, args = composed.step(configuration(shape, axes), "explicit", shape, make_mesh(target, axes))
    return computed(shape, axes, read_text(function.lower(*args).compile().as_text(), axes=axes, target=target))


@pytest.mark.compiles
def test_xlas_own_count_of_a_step_without_loops_is_theorys_and_what_is_no_product():
    target, axes = parse_target("cpu:8"), Axes.parse("data=2,tensor=4")
    model = DecoderShape(
        layers=1, batch=4, length=256, embed=512, kv_heads=4, mlp=1024, vocab=2048, dtype="f32", remat="none"
    )
    of = Configuration(data=2, tensor=4, remat="none", dtype="f32")
    function, args = composed.step(of, "explicit", model, make_mesh(target, axes))
    counted = function.lower(*args).compile().cost_analysis()["flops"]
    assert 1 < counted / flops(of, model).every_branch < 1.02


def test_the_claim_is_refuted_by_products_of_the_wrong_stage_and_by_half_a_percent_more():
    shape, axes = replace(SMALL, layers=5, stage_layers="Ettt|ttL"), Axes.parse("pipe=2,data=2,tensor=2")
    of = configuration(shape, axes)
    layer, ends = of_layer(of, shape), of_ends(of, shape)
    ticks = table_for(of.strategy, sized(of, shape), axes).ticks
    right = {
        "forward/layers": ticks * 3 * size(layer.forward),
        "forward/head": ticks * size(ends.forward),
        "backward/layers/attention": ticks * 3 * size(layer.all),
        "backward/head": ticks * size(ends.all),
    }
    moved = ticks * size(ends.forward)

    def verdict(**more: Fraction) -> ClaimVerdict:
        branches = {scope: int(n + more.get(scope.rpartition("/")[2], 0)) for scope, n in right.items()}
        measured = Ledger((), devices=8, mesh=axes.shape, flops=sum(branches.values()), flops_in_branches=branches)
        return next(c.verdict for c in composed_claims(shape, axes, measured) if c.id == "ch32.flops_per_token")

    assert verdict() == ClaimVerdict.CONFIRMED
    assert verdict(attention=2 * moved, head=-moved) == ClaimVerdict.REFUTED
    assert verdict(attention=sum(right.values()) / 150) == ClaimVerdict.REFUTED


@pytest.mark.compiles
@pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")
@pytest.mark.parametrize(
    "choices",
    [
        {"remat": "names", "attention": "tiles", "activation": "relu2"},
        *(
            pytest.param({"remat": remat, "attention": attention}, marks=long)
            for remat in ("full", "none", "selective", "dots")
            for attention in ("tiles", "zigzag")
        ),
        pytest.param({"remat": "full", "attention": "tiles", "length": 512}, marks=long),
    ],
    ids=str,
)
def test_a_compiled_step_computes_what_theory_says_to_the_operation(choices):
    experiment = load("ch24_3d")
    shape = replace(experiment.parameters, **asdict(MODEL) | {"accumulation": 2} | choices)
    axes = Axes.parse("fsdp=4,tensor=2")
    found = run(experiment, target=parse_target("gpu:h100:1x8"), style="explicit", axes=axes, parameters=shape)
    assert found.measured.flops == found.composition.computed.every_branch
