"""What is taken of a compiled step, of results that are made up."""

from dataclasses import replace
from fractions import Fraction

import pytest

from lab.core.ledger import Kind, Ledger, Memory, Transfer
from lab.harness.experiment import Run
from lab.harness.fit.fitting import fit
from lab.harness.registry import load
from lab.harness.result import Composition, Computed, Result, Seconds
from lab.meshes.axes import Axes
from lab.meshes.targets import parse_target

MEASURED = Ledger(
    (Transfer(Kind.ALL_REDUCE, ("tensor",), 2, 10, "f32", 8, conditional=True),),
    memory=Memory(0, 0, 0, 0, 1),
    flops=100,
    flops_rematerialized={"forward/layers": 7},
)
RESULT = Result("ch24_3d", "explicit", "gpu:h100:1x2", {"pipe": 2}, {}, Seconds(0, 0, 0), MEASURED)
STAGES = Fraction(30), Fraction(50)


def compiled(result: Result):
    run = Run(load("ch24_3d"), parse_target("gpu:h100:1x2"), "explicit", Axes.parse("pipe=2"))
    return fit(run, {}, lambda parameters, axes, words: result).asked.compiled


def test_a_step_without_stages_has_the_sums_of_its_text():
    found = compiled(RESULT)
    assert (found.flops, found.wire_bytes, found.flops_rematerialized) == (100, 80, 7)


@pytest.mark.parametrize(("by_stages", "flops"), [((Fraction(30), Fraction(40)), 40), ((), None)])
def test_a_pipeline_has_those_of_its_busiest_stage_by_the_schedule(by_stages, flops):
    composition = Composition(STAGES, (), Computed({}, STAGES, Fraction(90), by_stages, 93))
    found = compiled(replace(RESULT, composition=composition))
    assert (found.flops, found.wire_bytes, found.flops_rematerialized) == (flops, 50, 0)
