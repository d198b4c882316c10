"""A training's picture: which lines it has, where they lie, and in which colour."""

import dataclasses
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from lab.core.codec import to_json
from lab.experiments.ch17_training import EXPERIMENT
from lab.harness.decoder.training import Curve, ReferenceRun, TrainingResult
from lab.report.html import charts
from lab.report.losses import Linear, losses, picture

ALONE = ReferenceRun(np.array([6.0, 5.0, 4.0, 3.0]), np.full(4, 1e-7))


def curve(name: str, *errors: float) -> Curve:
    off = np.array(errors)
    return Curve(
        name,
        "explicit",
        {"context": 2},
        ALONE.losses * (1 + off),
        worst_relative_error=float(np.nan_to_num(np.abs(off), nan=np.inf).max()),
    )


def lines(*curves: Curve) -> dict[str, list[tuple[str, list[tuple[float, float]]]]]:
    """Name to the colour and points of its lines."""
    found: dict = {}
    trained = TrainingResult(EXPERIMENT, "cpu:2", EXPERIMENT.parameters, ALONE, curves, 3.5, 1.0)
    for line in ET.fromstring(charts.picture(picture(losses(to_json(trained))))).iter("polyline"):
        if line.find("title") is None:
            continue
        points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        colour = line.get("style").partition("stroke:")[2].partition(";")[0]
        found.setdefault(line.find("title").text, []).append((colour, points))
    return found


def test_a_curve_that_fits_lies_on_one_devices_and_its_errors_below_the_tolerance():
    found = lines(curve("ring", 0, 1e-7, -1e-7, 1e-8))
    ((_, alone),), ((_, tolerance),) = found["one device"], found["tolerance"]
    (colour, losses), (_, errors) = found["ring, explicit"]
    assert colour == "var(--blue)" and losses == alone
    assert all(y > tolerance[0][1] for _, y in errors) and errors[1][1] == errors[2][1] < errors[3][1] == errors[0][1]
    assert [x for x, _ in losses] == [x for x, _ in errors]


def test_a_curve_that_leaves_has_another_colour_and_ends_where_it_is_no_number():
    found = lines(curve("ring", 0, 0, 0, 0), curve("Ulysses", 0, 0.1, 0.5, np.nan))
    (colour, losses), (_, errors) = found["Ulysses, explicit"]
    assert (colour, len(losses), len(errors)) == ("var(--bad)", 3, 3)
    assert found["ring, explicit"][0][0] == "var(--blue)"
    assert errors[2][1] < errors[1][1] < found["tolerance"][0][1][0][1]


def test_a_training_of_which_xla_refuses_everything_is_one_devices_curve():
    assert set(lines(Curve("ring", "explicit", {"context": 2}, failure="INTERNAL"))) == {
        "one device",
        "guessing by frequency",
        "tolerance",
    }


def test_a_curve_that_chose_other_experts_at_ties_is_compared_with_one_device_that_chose_so_too():
    replayed = ReferenceRun(ALONE.losses * 1.5, np.full(4, 1e-7))
    found = lines(dataclasses.replace(curve("experts", 0.5, 0.5, 0.5, 0.5), expected=replayed))
    ((_, tolerance),) = found["tolerance"]
    _, (colour, errors) = found["experts, explicit"]
    assert colour == "var(--blue)" and all(y > tolerance[0][1] for _, y in errors)


@pytest.mark.parametrize(
    ("last", "ticks"),
    [(1, [0, 1]), (3, [0, 1, 2, 3]), (7, list(range(8))), (8, [0, 2, 4, 6, 8]), (199, [0, 50, 100, 150])],
)
def test_steps_have_eight_numbers_at_most(last, ticks):
    assert list(Linear(0, last, 0, 1).ticks) == ticks
