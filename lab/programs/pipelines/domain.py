"""Where the formulas for the idle time of split backwards hold (Ch. 16, Ch. 31a); elsewhere a simulation alone tells
it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isclose

from lab.book.pipeline import zero_bubble_in_flight
from lab.programs.pipelines.schedule import Schedule, Time

LAGS = {"zb_h1": 1, "zb_h2": 2}
"""By how many micro-batches for each stage before it a stage puts off the gradients of weights."""


@dataclass(frozen=True)
class Times:
    """Of a forward, of a backward to the input and to the weights, and of a forward and a whole backward that
    overlap."""

    forward: Time
    backward: Time
    weight: Time
    both: Time


def refusal(schedule: Schedule, times: Times) -> str | None:
    """Why no formula tells what a schedule idles with these times, as an answer's row has it; None where one does."""
    if schedule.stages == 1:
        return None
    reasons = (
        _of_two_ways(times) if schedule.is_two_way else _of_lag(schedule, times) if schedule.name in LAGS else iter(())
    )
    return next((f"refused: {reason}" for reason in reasons), None)


def _of_lag(schedule: Schedule, times: Times) -> Iterator[str]:
    P, m, filled = (
        schedule.stages,
        schedule.micro_batches,
        int(zero_bubble_in_flight(schedule.stages, LAGS[schedule.name])),
    )
    if m < filled:
        yield f"{m} micro-batches never fill {P} stages; expected {filled} or more"
    least = min(times.forward, times.backward) if schedule.name == "zb_h1" else times.forward
    if times.weight > least:
        yield f"a weight gradient of length {times.weight:g} does not fit into gaps of {least:g}; expected no more"


def _of_two_ways(times: Times) -> Iterator[str]:
    """Elsewhere it is a bound at most, as `ch31a_dualpipe` has it."""
    if not isclose(times.forward, times.backward):
        yield f"a forward of length {times.forward:g}, a backward to the input of {times.backward:g}; expected the same"
    if times.weight > times.forward:
        yield (
            f"a weight gradient of length {times.weight:g} is longer than a forward of {times.forward:g}; expected no "
            "more"
        )
    if not isclose(times.both, alone := times.forward + times.backward + times.weight):
        yield f"an overlapped pair of length {times.both:g}; expected {alone:g}, the sum of both"
