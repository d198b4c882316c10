"""A pipeline's claims, by ledgers made by hand and by one compiled for 16 GPUs; what two schedules hold, as XLA plans
it for 8."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import pytest

from lab.core.ledger import Kind, Ledger, Transfer
from lab.experiments import ch16_pipeline_memory
from lab.experiments.ch16_pipeline_memory import Assumed
from lab.harness.question import answer
from lab.harness.registry import load
from lab.harness.run import run
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.settle import Verdict
from tests.long_tests import long

AXES = Axes.of({"data": 2, "pipe": 4, "tensor": 2})
EXPERIMENT = load("ch16_pipeline")
SHAPE = replace(EXPERIMENT.numeric_parameters, layers=16, accumulation=8)


def shape_of(schedule: str):
    return replace(SHAPE, schedule=schedule, chunks=2 if schedule == "interleaved" else 1)


def verdicts(schedule: str, ledger: Ledger | None = None) -> dict[str, str]:
    shape = shape_of(schedule)
    return {
        claim.id: str(claim.verdict)
        for claim in EXPERIMENT.claims(shape, AXES, ledger or EXPERIMENT.predict(shape, AXES))
    }


def changed(which, **change) -> Ledger:
    ledger = EXPERIMENT.predict(shape_of("1f1b"), AXES)
    assert any(map(which, ledger.transfers))
    return replace(ledger, transfers=tuple(replace(t, **change) if which(t) else t for t in ledger.transfers))


def is_message(t: Transfer) -> bool:
    return t.kind is Kind.COLLECTIVE_PERMUTE


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb_h1", "zb_h2", "interleaved"])
def test_what_theory_asks_for_confirms_what_it_decides(schedule):
    found = verdicts(schedule)
    left_open = {"zb_h2": {"ch16.zb_bubble"}, "interleaved": {"ch16.pp_volume"}}.get(schedule, set())
    assert {id for id, verdict in found.items() if verdict == "calculated"} == left_open
    assert {verdict for id, verdict in found.items() if id not in left_open} == {"confirmed"}
    assert ("ch16.interleaved_comm" in found) == (schedule == "interleaved")


def test_1f1b_needs_48_of_132_messages_of_4_stages_and_8_micro_batches():
    volume = next(
        claim
        for claim in EXPERIMENT.claims(shape_of("1f1b"), AXES, changed(is_message, phase=None))
        if claim.id == "ch16.pp_volume"
    )
    assert volume.evidence.startswith("of 22 messages each way over 3 boundaries the schedule needs 48 of")


def test_half_a_message_refutes_its_size():
    ledger = changed(lambda t: t.scope == "back", payload_bytes=12)
    assert verdicts("1f1b", ledger)["ch16.p2p_size"] == "refuted"


def test_one_tick_more_refutes_the_bubble():
    assert verdicts("1f1b", changed(is_message, executions=23))["ch16.1f1b_bubble"] == "refuted"


def test_a_message_back_in_one_tick_less_than_forth_refutes_that_stages_need_no_more():
    found = verdicts("1f1b", changed(lambda t: t.scope == "back", executions=21))
    assert (found["ch16.separability"], found["ch16.1f1b_bubble"]) == ("refuted", "confirmed")


def test_too_few_micro_batches_to_fill_zb_h1_leave_its_bubble_open():
    few = replace(shape_of("zb_h1"), accumulation=2, batch=8)
    assert [
        str(claim.verdict)
        for claim in EXPERIMENT.claims(few, AXES, EXPERIMENT.predict(few, AXES))
        if claim.id == "ch16.zb_bubble"
    ] == ["calculated"]


def test_a_gradient_summed_over_stages_in_every_tick_refutes_that_they_are_separate():
    assert (
        verdicts("1f1b", changed(lambda t: t.scope == "embedding" and "pipe" in t.axes, executions=22))[
            "ch16.separability"
        ]
        == "refuted"
    )


def test_one_stage_decides_nothing():
    alone = Axes.of({"data": 2, "pipe": 1, "tensor": 2})
    assert EXPERIMENT.claims(SHAPE, alone, EXPERIMENT.predict(SHAPE, alone)) == ()


@pytest.mark.compiles
@pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")
def test_16_gpus_send_what_theory_says_to_the_byte():
    result = run(EXPERIMENT, target=parse_target("gpu:h100:2x8"), style="explicit")
    assert (result.failure, result.verdict, result.settlement.unexplained) == (None, Verdict.EXACT, ())
    assert {claim.verdict for claim in result.claims} == {"confirmed"}


@pytest.mark.compiles
def test_both_halves_of_a_backward_have_the_products_of_a_whole_one_and_running_1f1b_takes_58_forwards_of_44():
    found = answer(load("ch16_split_backward"), {"length": "8", "embed": "16"})
    beside = {row.what: (row.value, row.predicted) for row in found.rows if row.predicted is not None}
    assert len(beside) == 3 and all(value == predicted for value, predicted in beside.values())
    assert [str(claim.verdict) for claim in found.claims] == ["confirmed"]
    steps = {row.what.split(":")[0]: row.value for row in found.rows if row.what.endswith("longest job")}
    assert (steps["gpipe"], steps["1f1b"]) == (44, 58) and steps["zb_h2"] < steps["zb_h1"] < steps["1f1b"]


@pytest.mark.parametrize("target", ["cpu:8", "attached"])
def test_jobs_are_compiled_for_one_device_and_for_no_more(target):
    with pytest.raises(
        UsageError,
        match=f"target={target} has {len(jax.devices())} devices: expected one, .*; take cpu:1 or gpu:h100:1x1",
    ):
        answer(load("ch16_split_backward"), {"target": target})


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"target": "attached"}, "target=attached: XLA reports no peak memory there"),
        (
            {"target": "gpu:h100:1x4"},
            "target=gpu:h100:1x4 has 4 devices: expected a multiple of 8, since 4 stages are compared with 8; take a "
            "target such as gpu:h100:2x4",
        ),
        ({"target": "cpu:8"}, "target=cpu:8: XLA reports no peak memory there"),
        (
            {"micro_batches": "13"},
            "micro_batches=13 on stages=4: expected 14 or more, so that half of them fill every schedule",
        ),
    ],
)
def test_memory_that_would_decide_nothing_is_refused(settings, problem):
    with pytest.raises(UsageError, match=problem):
        answer(load("ch16_pipeline_memory"), settings)


def test_attached_gpus_decide_what_schedules_hold_as_named_ones_do(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="gpu", device_kind="NVIDIA H200")])
    for decide in ("_gpipe", "_one_f_one_b", "_state"):
        monkeypatch.setattr(ch16_pipeline_memory, decide, lambda assumed, decide=decide: decide)
    monkeypatch.setattr(ch16_pipeline_memory, "_zero_bubble", lambda assumed: ("_zero_bubble",))
    assert ch16_pipeline_memory.claims(Assumed(target="attached")) == (
        "_gpipe",
        "_one_f_one_b",
        "_zero_bubble",
        "_state",
    )


@pytest.mark.compiles
@pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")
@long
def test_gpipe_holds_4_messages_more_than_1f1b_of_8_micro_batches_on_4_stages_and_1f1b_2_more_than_on_2():
    assumed = Assumed()
    assert assumed.gpipe_above_1f1b(micro_batches=8) == 4
    assert assumed.messages(*(assumed.memory("1f1b", stages, micro_batches=8) for stages in (4, 2))) == pytest.approx(
        2, rel=0.01
    )
