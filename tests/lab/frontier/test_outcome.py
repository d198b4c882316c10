"""What a compiled text comes to, and when two come to the same."""

import re
from dataclasses import replace
from functools import cache

import pytest

from lab.core.known import known
from lab.core.ledger import Memory
from lab.core.room import Room
from lab.diagnosis.program import Program
from lab.frontier.outcome import Outcome
from lab.hlo.read import read
from lab.measure.prediction import predicted
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from tests.data import kept

TEXT, OF = kept.text("fsdp.gpu"), kept.index()["fsdp.gpu"]
TARGET, AXES = parse_target(OF["target"]), Axes.parse(OF["mesh"])
ROOM = known(Room.of(TARGET)).usable_bytes


def program(text: str = TEXT, peak: int = ROOM) -> Program:
    reading = read(text, source="step", axes=AXES, target=TARGET)
    return Program(replace(reading.ledger, memory=Memory(0, 0, 0, 0, peak)), reading, AXES, TARGET)


@cache
def as_it_is() -> Outcome:
    return Outcome.of(program())


def test_what_is_a_byte_more_than_jax_takes_does_not_fit():
    assert (as_it_is().fits, Outcome.of(program(peak=ROOM + 1)).fits) == (True, False)


def test_without_a_peak_arguments_results_and_temporaries_are_held_together():
    step = program()
    held = Memory(ROOM, 7, 5, 4, None)
    found = Outcome.of(replace(step, ledger=replace(step.ledger, memory=held)))
    assert (found.peak, found.fits) == (ROOM + 7 + 5 - 4, False)


def test_seconds_are_those_of_lab_time():
    seconds, time = known(as_it_is().seconds), predicted(program()).time
    assert (seconds.total, seconds.exposed) == (time.total, time.exposed) and time.exposed > 0


def test_bytes_are_those_of_the_ledger_along_each_axis():
    assert as_it_is().wire == {"fsdp": program().ledger.totals().wire_bytes}
    assert not (as_it_is().lower_bound or as_it_is().upper_bound)


def test_other_names_of_instructions_are_the_same_step():
    renamed = re.sub(r"%([\w.-]+)", r"%other.\1", TEXT)
    assert renamed != TEXT and Outcome.of(program(renamed)).is_same(as_it_is())


@pytest.mark.parametrize(
    "change", [{"executions": 3}, {"executions": None}, {"payload_bytes": 8}, {"dtype": "f64"}, {"axes": ("data",)}]
)
def test_one_transfer_that_differs_is_another_step(change):
    step = program()
    first, *rest = step.ledger.transfers
    found = Outcome.of(replace(step, ledger=replace(step.ledger, transfers=(replace(first, **change), *rest))))
    # Of a chip without rates as well.
    assert not replace(found, seconds=None).is_same(replace(as_it_is(), seconds=None))
    assert found.lower_bound is (change == {"executions": None})


def test_a_text_of_which_something_was_not_read_has_no_outcome():
    step = program()
    with pytest.raises(UsageError, match="could not be read whole: cut"):
        Outcome.of(replace(step, ledger=replace(step.ledger, is_complete=False, notes=("cut",))))
