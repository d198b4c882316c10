"""What the tour times and tells; the measuring itself needs GPUs."""

import json
import re
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import jax
import pytest

from lab.core.changes import changes
from lab.core.codec import to_json, to_text
from lab.core.ledger import Kind, Ledger, Memory
from lab.harness.experiment import Run
from lab.harness.registry import load
from lab.harness.result import Result, Seconds
from lab.measure.bench.machine import Machine
from lab.measure.tour import apart, programs, times
from lab.measure.tour import tour as tours
from lab.measure.tour.profile import Spent
from lab.measure.tour.programs import Compared
from lab.measure.tour.times import SIZES, Setting, TimedStep, settings
from lab.measure.tour.tour import Tour, refusal
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.report.tour import tour_text
from tests.json_keys import valid
from tests.lab.ledgers import ledger, transfer

MACHINE = Machine("NVIDIA H200", "gpu", "h200", "580", "2.28.9", "cuda", "0.11.2")
TERMS = {"products": 0.004, "memory": 0.003, "communication": 0.002, "exposed": 0.001, "slowed": 0.0}


def step(measured: float, predicted: float) -> TimedStep:
    return TimedStep(
        Setting("ch14_data_parallel", "explicit", "small", "full"), measured, predicted, TERMS, {"data": 2}
    )


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_settings_of_size_layout_and_remat_are_timed_and_no_two_are_equal(devices):
    wanted = settings(devices)
    assert len(set(wanted)) == len(wanted)
    assert {"ch14_data_parallel"} | ({"ch20_zero3"} if devices > 1 else set()) <= {setting.layout for setting in wanted}
    assert {setting.size for setting in wanted} == set(SIZES)
    assert {setting.shape.remat for setting in wanted} == {"full", "none", "dots", "selective"}


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_every_setting_fits_on_one_host(devices):
    target = parse_target(f"cpu:{devices}")
    for setting in settings(devices):
        step = load(setting.layout)
        assert setting.style in step.styles
        step.predict(setting.shape, step.axes(target))


def test_errors_are_of_the_prediction_and_those_above_a_fifth_are_counted():
    tour = Tour("lab tour", "2026-01-01", MACHINE, 2, times=(step(0.01, 0.011), step(0.01, 0.0079), step(0.01, 0.01)))
    assert tour.median_error == pytest.approx(0.1)
    assert [one.error for one in tour.far_off] == [pytest.approx(-0.21)]
    text = tour_text(tour)
    assert (
        "3 steps: median error 10.0%, 1 off by more than 20%; worst: ch14_data_parallel explicit small remat=full "
        "-21.0%"
    ) in text
    assert valid("tour", to_text(tour))["times"][1]["error"] == pytest.approx(-0.21)


def test_a_step_that_the_card_refuses_is_told_and_the_others_are_timed(monkeypatch):
    def refused(setting, *_):
        if setting.remat == "none":
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nand so on")
        return step(0.01, 0.011)

    wanted = tuple(Setting("ch14_data_parallel", "explicit", "small", remat) for remat in ("full", "none"))
    monkeypatch.setattr(times, "settings", lambda devices: wanted)
    monkeypatch.setattr(times, "_compiled", lambda *_: (None, None, None))
    monkeypatch.setattr(times, "_timed", refused)
    found, failed = times.timed_steps(parse_target("cpu:8"), None, None, None)
    assert [one.measured for one in found] == [0.01]
    assert failed == ["ch14_data_parallel explicit small remat=none: RESOURCE_EXHAUSTED: Out of memory"]


def test_a_tour_on_which_something_failed_says_so_and_ends_with_status_1(lab, monkeypatch):
    tour = Tour("lab tour", "2026-01-01", MACHINE, 2, times=(step(0.01, 0.011),), failed=("this: out of memory",))
    monkeypatch.setattr("lab.measure.tour.tour.tour", lambda *_: iter((tour,)))
    found = lab("tour")
    assert (found.status, found.out.splitlines()[-1]) == (1, "1 failed: this: out of memory")
    monkeypatch.setattr("lab.measure.tour.tour.tour", lambda *_: iter((replace(tour, failed=()),)))
    found = lab("tour")
    assert (found.status, found.out.splitlines()[-1]) == (0, "nothing failed")


def test_what_is_predicted_ahead_of_time_and_what_the_profiler_saw_stand_beside_the_step():
    seen = replace(
        step(0.01, 0.011), ahead={"total": 0.0121, "memory": 0.007}, spent=Spent(0.009, 0.002, 0.001, 0.0005)
    )
    text = tour_text(Tour("lab tour", "2026-01-01", MACHINE, 2, times=(seen,)))
    assert "from texts compiled ahead of time, median error 21.0%, 1 so far off" in text
    assert to_json(seen)["error_ahead_of_time"] == pytest.approx(0.21)
    assert to_json(seen)["terms_ahead_of_time_s"] == {"memory": 0.007}
    assert to_json(seen)["profiled_s"] == {
        "kernels": 0.009,
        "communication": 0.002,
        "waiting": 0.001,
        "exposed": 0.0005,
    }


def test_without_gpus_the_tour_says_what_it_found(lab):
    assert (
        lab("tour").err == "lab: found 8 x cpu; the tour needs GPUs (if CUDA is not installed, install jax[cuda13])\n"
    )
    assert (
        lab("tour", "nonsense").err
        == "lab: no part 'nonsense' of the tour; known are collectives, times, programs, losses\n"
    )


def test_what_is_known_is_written_after_each_part(lab, tmp_path, monkeypatch):
    def lost(*_):
        yield Tour("lab tour", "2026-01-01", MACHINE, 2, times=(step(0.01, 0.011),))
        raise UsageError("the machine is gone")

    monkeypatch.setattr("lab.measure.tour.tour.tour", lost)
    assert lab("tour", "--save", str(tmp_path / "tour.json")).err == "lab: the machine is gone\n"
    assert len(json.loads((tmp_path / "tour.json").read_text())["times"]) == 1


@pytest.mark.parametrize(
    "name, room, reason",
    [
        ("ch24_llama3_405b", 141 * 10**9, "a device needs .* TB and has 141 GB"),
        ("ch14_data_parallel", 141 * 10**9, None),
        ("ch14_data_parallel", 10**9, "a device needs .* GB and has 1 GB"),
    ],
)
def test_what_a_device_has_no_room_for_is_left_out(name, room, reason):
    found = refusal(Run(load(name), parse_target("gpu:h200:1x2"), "explicit"), room)
    assert found is None if reason is None else re.fullmatch(reason, found)


def held(peak: int, *transfers) -> Ledger:
    return replace(ledger(*transfers), memory=Memory(0, 0, 0, 0, peak))


GATHER = transfer(Kind.ALL_GATHER, ("data",), 800, group_size=2)


@pytest.mark.parametrize(
    ("ahead", "is_same"),
    [
        (held(7, GATHER), True),
        (held(8, GATHER), False),
        (held(7), False),
        (held(7, replace(GATHER, payload_bytes=400)), False),
        (None, False),
    ],
    ids=["the same", "another peak", "a transfer less", "other bytes", "nothing ahead of time"],
)
def test_a_program_is_the_same_ahead_of_time_where_transfers_and_peak_are(ahead, is_same):
    run = Run(load("ch14_data_parallel"), parse_target("attached"), "explicit")
    result = Result(
        "ch14_data_parallel", "explicit", "attached", {"data": 2}, {}, Seconds(0, 0, 0), measured=held(7, GATHER)
    )
    compared = Compared(run, result, ahead)
    assert Compared(run, result, ahead, untuned=held(7, GATHER)).is_same_untuned is is_same
    assert compared.is_same is is_same
    (printed,) = valid("tour", to_text(Tour("lab tour", "2026-01-01", MACHINE, 2, programs=(compared,))))["programs"]
    assert printed["ahead_of_time"]["same"] is is_same


@pytest.mark.compiles
def test_a_program_is_compared_with_what_other_processes_compile(monkeypatch):
    monkeypatch.setattr(apart, "PROCESSES", 1)
    monkeypatch.setattr(programs, "UNTUNED", {"xla_cpu_enable_fast_math": False})
    (compared,) = programs.compared(
        [Run(load("ch14_buckets"), parse_target("cpu:8"), "explicit")], parse_target("gpu:h200:1x8"), None
    )
    assert compared.failure is None and compared.ahead.source == "ch14_buckets"
    assert compared.ahead.memory.peak != compared.untuned.memory.peak
    assert changes(compared.untuned, compared.result.measured) == ()


def test_a_pipeline_tells_which_branches_its_stages_take_at_each_tick():
    setting = times.Setting("ch16_pipeline", "explicit", "middle", "full")
    taken = times.branches_by_trip(setting.shape, {"pipe": 2})
    assert (
        len(taken) == 18 and sum(2 in {each.branch for each in some} for some in taken) == 16
    )  # Of 1F1B, of 8 micro-batches on 2 stages.
    forwards = [{each.without for each in some if each.branch == 1} for some in taken]
    first, last = ("head", "loss"), ("embedding", "dense")
    assert [sum(without in some for some in forwards) for without in (first, last)] == [8, 8]
    assert (first in forwards[0], last in forwards[0], last in forwards[1]) == (True, False, True)
    assert not times.branches_by_trip(times.Setting("ch20_zero3", "explicit", "middle", "full").shape, {"fsdp": 2})


def test_what_cannot_be_predicted_ahead_of_time_is_timed_all_the_same(monkeypatch):
    setting, gone = Setting("ch20_zero3", "explicit", "small", "full"), Future()
    gone.set_exception(BrokenProcessPool("a compiler ended its process"))
    monkeypatch.setattr(times, "settings", lambda devices: (setting,))
    monkeypatch.setattr(times, "_compiled", lambda *_: (None, (), None))
    monkeypatch.setattr(times, "apart", lambda *_: nullcontext(SimpleNamespace(submit=lambda *_: gone)))
    monkeypatch.setattr(times, "_timed", lambda setting, *_: step(1.0, 1.0))
    found, failed = times.timed_steps(parse_target("cpu:8"), parse_target("gpu:h200:1x8"), None, None)
    assert len(found) == 1 and failed == [f"{setting} ahead of time: a compiler ended its process"]


def test_rates_that_no_times_explain_end_no_tour(monkeypatch):
    def unexplained(*_):
        raise UsageError("products took 1 s")

    monkeypatch.setattr(tours.own, "rates", unexplained)
    found = tours._timed(Tour("lab tour", "today", MACHINE, 8, collectives=object()), parse_target("cpu:8"), iter)
    assert found.failed == ("times: products took 1 s",) and not found.times
