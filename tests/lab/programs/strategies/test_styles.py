"""Which styles a strategy has, alone and composed, and what is refused before anything is compiled."""

from dataclasses import replace

import pytest

from lab.compile.inspection import inspect_program
from lab.harness.registry import load
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.programs.strategies import program
from lab.programs.strategies.context_parallel import RING, ULYSSES
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.expert_parallel import EXPERT_PARALLEL
from lab.programs.strategies.strategy import STYLES
from lab.programs.strategies.zero1 import ZERO1
from lab.settle import Context, settle

RING_STEP = load("ch17_ring_attention")
CPU = parse_target("cpu:8")


def test_a_composition_has_the_styles_that_all_its_parts_have():
    assert (DATA_PARALLEL | ULYSSES).styles == ("declared", "typed", "explicit")
    assert (DATA_PARALLEL | EXPERT_PARALLEL).styles == (ZERO1 | DATA_PARALLEL).styles == ("declared", "explicit")
    assert (DATA_PARALLEL | RING).styles == (RING | EXPERT_PARALLEL).styles == ("explicit",)


@pytest.mark.parametrize("build", [program.step, program.gradients])
def test_a_composed_declared_ring_is_refused_with_the_styles_that_it_has(build):
    mesh = make_mesh(CPU, Axes.parse("data=2,context=4"))
    with pytest.raises(UsageError, match="no style 'declared' of this strategy; every part of it has explicit: use"):
        build(DATA_PARALLEL | RING, "declared", RING_STEP.numeric_parameters, mesh)


@pytest.mark.compiles
def test_a_declared_ring_would_be_refuted():
    anyway, shape, axes = (
        replace(DATA_PARALLEL | RING, styles=STYLES),
        replace(RING_STEP.numeric_parameters, layers=2),
        Axes.parse("data=2,context=4"),
    )
    mesh = make_mesh(CPU, axes)
    function, args = program.step(anyway, "declared", shape, mesh)
    compiled = inspect_program(function.lower(*args).compile(), (), mesh, CPU, source="ring")
    assert settle(anyway.predict(shape, axes), compiled, Context("cpu", "declared", axes.shape)).missing


def test_an_experiment_has_the_styles_of_its_strategy_but_those_that_take_too_long():
    assert load("ch14_data_parallel").styles == STYLES and RING_STEP.styles == ("explicit",)
    assert (load("ch17_ulysses").styles, load("ch17_ulysses").more_styles) == (("declared", "explicit"), ("typed",))
