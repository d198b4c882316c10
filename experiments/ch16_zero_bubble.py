"""Chapter 16: what does delaying weight gradients save, and how much memory does it take?"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from lab.book.checks import positive
from lab.book.pipeline import (
    idle_s,
    zero_bubble_idle_s,
    zero_bubble_in_flight,
    zero_bubble_share,
)
from lab.harness.claim import Claim, decided
from lab.harness.question import Question, Row
from lab.harness.sweep import Point, swept
from lab.programs.pipelines.domain import LAGS, refusal
from lab.programs.pipelines.domain import Times as Lasting
from lab.programs.pipelines.orders import one_f_one_b, zb_h1, zb_h2
from lab.programs.pipelines.schedule import Schedule, Task, Time, Work, in_flight
from lab.programs.pipelines.simulation import Durations, Timeline, simulate

Times = tuple[Fraction | int, Fraction | int, Fraction | int]
SIZES = ((2, 4), (4, 8), (4, 16), (8, 16), (8, 32))
"""Stages and micro-batches of the claims, m at least 2 P."""
TIMES: tuple[Times, ...] = tuple(product((1, 2, 3), (1, 2, 4), (0, 1, 2, 3)))
"""Of a forward, of a backward to the input, of one to the weights."""
BY_NAME = {"1f1b": one_f_one_b, "zb_h1": zb_h1, "zb_h2": zb_h2}


@dataclass(frozen=True)
class Assumed:
    """The chapter's exercise: the gradient of the weights takes `weight` of a forward, that of the input as long as a
    forward."""

    stages: int = 8
    micro_batches: int = 32
    forward: float = 1.0
    input_backward: float = 1.0
    weight: float = 0.3

    @property
    def times(self) -> Times:
        return Fraction(str(self.forward)), Fraction(str(self.input_backward)), Fraction(str(self.weight))


def answer(assumed: Assumed) -> tuple[Row, ...]:
    positive(forward=assumed.forward, input_backward=assumed.input_backward)
    return (*(row for name in BY_NAME for row in _rows(name, assumed)), *_weights_last(assumed))


def _rows(name: str, assumed: Assumed) -> tuple[Row, ...]:
    timeline, busy = (
        _run(BY_NAME[name](assumed.stages, assumed.micro_batches), assumed.times),
        assumed.micro_batches * sum(assumed.times),
    )
    forward, backward, weight = map(float, assumed.times)
    refused = refusal(timeline.schedule, Lasting(forward, backward, weight, forward + backward + weight))
    formula = None if refused else _formula(name, assumed)
    return (
        Row(f"{name}: step", float(timeline.makespan), "units"),
        Row(f"{name}: idle in the step", float(timeline.makespan - busy), "units"),
        Row(
            f"{name}: idle between a stage's first and last work, at most",
            float(max(timeline.stage_spans) - busy),
            "units",
            formula,
        ),
        Row(f"{name}: idle share of the step", 100 * timeline.idle_share, "%"),
        Row(f"{name}: most in flight", max(in_flight(timeline.schedule)), "micro-batches", _held(name, assumed)),
        *([Row(f"{name}: theory of its time", refused)] if refused else []),
    )


def _formula(name: str, assumed: Assumed) -> float:
    forward, backward, weight = assumed.times
    if name == "1f1b":
        return float(idle_s(assumed.stages, forward, backward + weight))
    return float(zero_bubble_idle_s(assumed.stages, forward, backward, weight, LAGS[name]))


def _held(name: str, assumed: Assumed) -> int:
    filled = assumed.stages if name == "1f1b" else int(zero_bubble_in_flight(assumed.stages, LAGS[name]))
    return min(filled, assumed.micro_batches)


def _weights_last(assumed: Assumed) -> tuple[Row, ...]:
    timeline = _run(weights_last(assumed.stages, assumed.micro_batches), assumed.times)
    return (
        Row("1f1b with all weights last: idle share of the step", 100 * timeline.idle_share, "%"),
        Row("1f1b with all weights last: most in flight", max(in_flight(timeline.schedule)), "micro-batches"),
    )


def weights_last(stages: int, micro_batches: int) -> Schedule:
    """The order of the chapter's code: 1F1B without gradients of weights, then all of these."""
    plain = one_f_one_b(stages, micro_batches)
    weights = tuple(Task(Work.WEIGHT, i) for i in range(micro_batches))
    return Schedule("weights last", stages, micro_batches, 1, tuple(order + weights for order in plain.orders))


def _run(schedule: Schedule, times: Times) -> Timeline:
    return simulate(schedule, Durations(*times))


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    return (
        _h1_idles(),
        _h2_idles(),
        _printed_share(assumed),
        swept(
            "ch16.zb_memory",
            [_held_at(name, *size) for name in ("zb_h1", "zb_h2") for size in SIZES],
            statement="P with ZB-H1, 2P-1 with ZB-H2",
        ),
        swept(
            "ch16.zb_memory",
            [_thirty_percent(name, assumed) for name in ("zb_h1", "zb_h2")],
            statement="30 % more than 1F1B",
            disputed="4-5:D-25",
        ),
    )


def _h1_idles() -> Claim:
    """Where W is no longer than either of the others: what fills the gaps fits into them."""
    cases = [(size, times) for size in SIZES for times in TIMES if times[2] <= min(times[:2])]
    points = [_idle("zb_h1", size, times, lambda timeline: timeline.makespan) for size, times in cases]
    return swept(
        "ch16.zb_bubble", points, statement="a step of ZB-H1 idles (P-1)(t_F+t_B-t_W) where t_W is at most t_F and t_B"
    )


def _h2_idles() -> Claim:
    cases = [(size, times) for size in SIZES for times in TIMES if times[2] <= times[0]]
    points = [_idle("zb_h2", size, times, lambda timeline: max(timeline.stage_spans)) for size, times in cases]
    return swept(
        "ch16.zb_bubble",
        points,
        statement="a stage of ZB-H2 idles (P-1)(t_F+t_B-2t_W), or not at all, where t_W is at most t_F and m is at "
        "least 2P",
    )


def _idle(name: str, size: tuple[int, int], times: Times, span: Callable[[Timeline], Time]) -> Point:
    P, m = size
    simulated = float(span(_run(BY_NAME[name](P, m), times)) - m * sum(times))
    return Point(
        f"P {P}, m {m}, times {', '.join(map(str, times))}", simulated, float(zero_bubble_idle_s(P, *times, LAGS[name]))
    )


def _printed_share(assumed: Assumed) -> Claim:
    """The exercise's max(0, a m - (P - 1)) / ((2 + a) m), a = t_W / t_B."""
    P, m, a = assumed.stages, assumed.micro_batches, assumed.weight / assumed.input_backward
    printed, formula = max(0.0, a * m - (P - 1)) / ((2 + a) * m), float(zero_bubble_share(P, m, *assumed.times))
    share = _run(zb_h1(P, m), assumed.times).idle_share
    evidence = (
        f"{100 * share:.4g} % of a step of ZB-H1 idles, {100 * formula:.4g} % as corrected, {100 * printed:.4g} % "
        "as printed"
    )
    return decided(
        "ch16.zb_bubble",
        Point("", share, printed).agrees,
        evidence,
        statement="max(0, am-(P-1))/((2+a)m)",
        disputed="4-5:D-24",
    )


def _held_at(name: str, P: int, m: int) -> Point:
    return Point(
        f"{name}, P {P}, m {m}", max(in_flight(BY_NAME[name](P, m))), int(zero_bubble_in_flight(P, LAGS[name]))
    )


def _thirty_percent(name: str, assumed: Assumed) -> Point:
    P, m = assumed.stages, assumed.micro_batches
    plain = max(in_flight(one_f_one_b(P, m)))
    return Point(f"{name}, P {P}, m {m}", max(in_flight(BY_NAME[name](P, m))), 1.3 * plain)


EXPERIMENT = Question(
    name="ch16_zero_bubble",
    chapter=16,
    question="What does delaying weight gradients save, and how much memory does it take?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
)
