"""What the tour times and tells; the measuring itself needs GPUs."""

import json

import pytest

from lab.bench.machine import Machine
from lab.experiment import load
from lab.report.tour import tour_text
from lab.tour.times import SIZES, Setting, TimedStep, settings
from lab.tour.tour import Tour

MACHINE = Machine("NVIDIA H200", "gpu", "h200", "580", "2.28.9", "cuda", "0.11.2")
TERMS = {"products": 0.004, "memory": 0.003, "communication": 0.002, "exposed": 0.001, "slowed": 0.0}


def step(measured: float, predicted: float) -> TimedStep:
    return TimedStep(Setting("ch14_data_parallel", "explicit", "small", "full"), measured, predicted, TERMS)


def test_27_settings_of_size_layout_and_remat_are_timed_and_no_two_are_equal():
    assert len(set(settings())) == len(settings()) == 27
    assert {setting.size for setting in settings()} == set(SIZES)
    assert all(setting.style in load(setting.layout).styles for setting in settings())
    assert {setting.shape.remat for setting in settings()} == {"full", "none", "dots", "selective"}


def test_errors_are_of_the_prediction_and_those_above_a_fifth_are_counted():
    tour = Tour("lab tour", "2026-01-01", MACHINE, 2, times=(step(0.01, 0.011), step(0.01, 0.0079), step(0.01, 0.01)))
    assert tour.median_error == pytest.approx(0.1)
    assert [one.error for one in tour.far_off] == [pytest.approx(-0.21)]
    text = tour_text(tour)
    assert "3 steps: median error 10.0%, 1 off by more than 20 %; worst: ch14_data_parallel explicit small remat=full -21.0%" in text
    assert json.loads(json.dumps(tour.to_json()))["times"][1]["error"] == pytest.approx(-0.21)


def test_without_gpus_the_tour_says_what_it_found(lab):
    assert lab("tour").err == "lab: found 8 x cpu; the tour measures on two or more GPUs\n"
    assert lab("tour", "nonsense").err == "lab: no part 'nonsense' of the tour; it has times, programs, losses\n"
