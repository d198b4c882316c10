"""Chapter 14: four micro-batches are reduced once, by hand or, but on CPUs, by the compiler."""

from dataclasses import replace

import pytest

from lab.experiments.ch14_accumulation import EXPERIMENT, Sizes
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.settle import Context, Verdict
from lab.settle.behaviours import emitted
from tests.small_runs import small_run

EIGHT = Axes.of({"data": 8})
ONE, SAVED, HIDDEN = None, "one reduction instead of A", "the reduction after accumulation cannot be hidden"


def verdicts(**executions: int) -> dict[str | None, str]:
    ideal = EXPERIMENT.predict(Sizes(), EIGHT)
    rows = tuple(replace(t, executions=executions.get(t.scope, t.executions)) for t in ideal.transfers)
    return {
        claim.statement: str(claim.verdict)
        for claim in EXPERIMENT.claims(Sizes(), EIGHT, replace(ideal, transfers=rows))
    }


def test_what_theory_asks_for_confirms_all_but_what_is_disputed():
    assert verdicts() == {ONE: "confirmed", SAVED: "confirmed", HIDDEN: "refuted"}


def test_two_reductions_refute_that_one_is_enough_and_a_third_of_four_the_gain():
    assert verdicts(once=2)[ONE] == "refuted"
    assert verdicts(every_time=3)[SAVED] == "refuted"


def test_reductions_that_the_compiler_takes_together_decide_no_gain():
    assert verdicts(every_time=1)[SAVED] == "calculated"


def test_the_last_backward_pass_leaves_0_4_of_40_ms():
    (claim,) = [
        c for c in EXPERIMENT.claims(Sizes(), EIGHT, EXPERIMENT.predict(Sizes(), EIGHT)) if c.statement == HIDDEN
    ]
    assert (
        claim.disputed == "4-5:D-07"
        and "66.7 ms of backward pass leave 0.4 of 40 ms" in claim.evidence
        and "400.4 ms, not 440" in claim.evidence
    )


@pytest.mark.parametrize(("platform", "executions"), [("cpu", 4), ("gpu", 1), ("tpu", 1)])
def test_a_loop_that_adds_four_sums_up_runs_one_but_on_cpus(platform, executions):
    (every,) = [t for t in EXPERIMENT.predict(Sizes(), EIGHT).transfers if t.scope == "every_time"]
    ((compiled,), _) = emitted(every, Context(platform, "explicit", EIGHT.shape))
    assert compiled.executions == executions


on_gpus = pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("target", "verdict"), [("cpu:8", Verdict.EXACT), pytest.param("gpu:h100:2x4", Verdict.EXPLAINED, marks=on_gpus)]
)
def test_both_programs_settle(target, verdict):
    result = small_run(EXPERIMENT, "explicit", target)
    assert result.verdict is verdict and result.is_fine
