"""Steps of sizes that nobody looked at before settle as well, and refute no claim: drawn shapes under drawn layouts,
styles, micro-batches and recomputation."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from lab.compile.inspection import inspect_program
from lab.harness.claim import Claim
from lab.harness.claims import claims_of
from lab.harness.registry import load
from lab.harness.run import context
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.programs.models.shape import REMATS, DecoderShape
from lab.programs.strategies import program
from lab.settle import Settlement, Status, settle
from tests.lab.programs.strategies.layouts import ACCUMULATIONS, LAYOUTS, STYLES
from tests.long_tests import long

pytestmark = pytest.mark.compiles

on_gpus = pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")


@dataclass(frozen=True)
class Drawn:
    layout: str
    style: str
    axes: str
    shape: DecoderShape


@dataclass(frozen=True)
class Grain:
    """What sizes are multiples of, beside what their axes ask for: XLA's GPU compiler tiles nothing odd."""

    tokens: int = 1
    embed: int = 1
    head_dim: int = 2
    mlp: int = 1


FINE, COARSE = Grain(), Grain(tokens=128, embed=64, head_dim=32, mlp=64)
QUESTIONS = {
    "data": "ch14_data_parallel",
    "zero1": "ch20_zero1",
    "zero2": "ch20_zero2",
    "zero3": "ch20_zero3",
    "hybrid": "ch24_hybrid",
    "data x tensor": "ch15_tensor_parallel",
    "data x sequence": "ch17_sequence_parallel",
    "fsdp x tensor": "ch24_fsdp_tensor_parallel",
    "fsdp x sequence": "ch24_llama3_405b",
}
"""The experiment of each layout, whose claims are to hold at any sizes."""
MESHES_OF_16 = {
    "data=8": "data=16",
    "fsdp=8": "fsdp=16",
    "data=2,fsdp=4": "data=2,fsdp=8",
    "data=2,tensor=4": "data=2,tensor=8",
    "fsdp=2,tensor=4": "fsdp=2,tensor=8",
}


@st.composite
def drawn(draw, style: str, dtype: str, grain: Grain, meshes: dict[str, str] | None = None) -> Drawn:
    """A layout on its mesh of 8 devices, or on another."""
    layout, accumulation, remat, tied = (
        draw(st.sampled_from(some)) for some in (list(LAYOUTS), ACCUMULATIONS, REMATS, (False, True))
    )
    axes = Axes.parse((meshes or {}).get(LAYOUTS[layout][1], LAYOUTS[layout][1]))
    tensor = axes.shape.get("tensor", 1)
    ranks = axes.size // tensor
    multiples = {
        "layers": (1, 2, 5),
        "batch": (ranks * accumulation, 1, 3),
        "length": (tensor * grain.tokens, 2, 5),
        "embed": (ranks * grain.embed, 16 // ranks, 48 // ranks),
        "kv_heads": (tensor, 1, 3),
        "queries": (1, 1, 2),
        "head_dim": (grain.head_dim, 1, 4),
        "mlp": (tensor * grain.mlp, 3, 30),
        "vocab": (tensor * grain.mlp, 31, 60),
    }
    sizes = {name: unit * draw(st.integers(least, most)) for name, (unit, least, most) in multiples.items()}
    assume(len(set(sizes.values())) == len(sizes))
    return Drawn(
        layout, style, str(axes), DecoderShape(**sizes, accumulation=accumulation, remat=remat, tied=tied, dtype=dtype)
    )


def settled(case: Drawn, target: str) -> tuple[Settlement, tuple[Claim, ...]]:
    strategy, axes, place = LAYOUTS[case.layout][0], Axes.parse(case.axes), parse_target(target)
    mesh = make_mesh(place, axes)
    function, arguments = program.step(strategy, case.style, case.shape, mesh)
    measured = inspect_program(function.lower(*arguments).compile(), (), mesh, place, source=case.layout)
    predicted = strategy.predict(case.shape, axes)
    settlement = settle(predicted, measured, context(place, case.style, axes, mesh))
    return settlement, claims_of(load(QUESTIONS[case.layout]), case.shape, axes, predicted, measured, settlement)


def assert_settles(case: Drawn, target: str) -> Settlement:
    settlement, claims = settled(case, target)
    assert [term for term in settlement.terms if term.status in (Status.REFUTED, Status.MISSING)] == []
    assert settlement.unexplained == () and settlement.is_complete
    assert [claim for claim in claims if claim.is_undisputed_refutation] == []
    return settlement


def few(examples: int) -> settings:
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )


@pytest.mark.parametrize("style", STYLES)
@few(3)
@given(data=st.data())
def test_any_step_settles_on_8_cpu_devices_and_an_explicit_one_is_exact_but_for_hoisted_gathers(style, data):
    settlement = assert_settles(data.draw(drawn(style, "f32", FINE)), "cpu:8")
    behaviours = {term.behaviours[0] for term in settlement.terms if term.status is not Status.EXACT}
    assert {term.status for term in settlement.terms} <= {Status.EXACT, Status.EXPLAINED}
    assert style == "declared" or behaviours <= {"C6"}


@on_gpus
@pytest.mark.parametrize("style", ["declared", pytest.param("explicit", marks=long)])
@few(2)
@given(data=st.data())
def test_any_step_settles_on_two_hosts_of_8_gpus(style, data):
    settlement = assert_settles(data.draw(drawn(style, "bf16", COARSE, MESHES_OF_16)), "gpu:h100:2x8")
    assert {term.status for term in settlement.terms} <= {Status.EXACT, Status.EXPLAINED}


SMALL = DecoderShape(
    layers=3, batch=32, length=24, embed=40, kv_heads=4, queries=2, head_dim=6, mlp=56, vocab=88, dtype="f32"
)


def test_a_declared_tied_table_settles():
    assert_settles(Drawn("data", "declared", "data=8", replace(SMALL, tied=True)), "cpu:8")


def test_gradients_that_are_summed_after_two_micro_batches_decide_what_data_parallelism_sends():
    _, claims = settled(Drawn("data", "explicit", "data=8", replace(SMALL, accumulation=2)), "cpu:8")
    assert [str(claim.verdict) for claim in claims] == ["confirmed"] * 3


@pytest.mark.parametrize("layout", ["data x tensor", "fsdp x sequence"])
def test_a_declared_step_that_keeps_products_beside_tensors_settles(layout):
    assert_settles(Drawn(layout, "declared", LAYOUTS[layout][1], replace(SMALL, remat="dots")), "cpu:8")


@on_gpus
def test_small_declared_gradients_of_heads_are_summed_in_the_loop_that_makes_them():
    """Stacks of 5 KiB, and norms whose stacks leave the loop."""
    sizes = DecoderShape(
        layers=5, batch=32, length=6, embed=64, kv_heads=1, queries=2, head_dim=4, mlp=26, vocab=41, accumulation=2
    )
    settlement = assert_settles(Drawn("data", "declared", "data=16", sizes), "gpu:h100:2x8")
    by_rule = {term.predicted.scope: set(term.behaviours) for term in settlement.terms}
    assert "X8" in by_rule["layers/mlp/norm"] and "X8" not in by_rule["layers/attention/query"]


@on_gpus
def test_small_norms_of_declared_micro_batches_settle():
    sizes = DecoderShape(
        layers=5,
        batch=192,
        length=128,
        embed=1024,
        kv_heads=2,
        queries=1,
        head_dim=64,
        mlp=1216,
        vocab=2560,
        accumulation=4,
    )
    assert_settles(Drawn("zero1", "declared", "data=16", sizes), "gpu:h100:2x8")
