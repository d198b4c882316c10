"""Chapter 16: how long does a step of each schedule take, what part of it is idle, and how much does a stage store?"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from lab.book.architecture import dualpipe_idle_s
from lab.book.checks import Number, positive
from lab.book.pipeline import (
    bubble_share,
    idle_s,
    in_flight,
    interleaved_in_flight,
    step_s,
    throughput_per_s,
    zero_bubble_idle_s,
    zero_bubble_in_flight,
)
from lab.harness.claim import Claim
from lab.harness.question import Question, Row
from lab.harness.sweep import Point, swept
from lab.meshes.errors import UsageError
from lab.programs.pipelines.domain import LAGS, Times, refusal
from lab.programs.pipelines.orders import PLAIN, gpipe, named, one_f_one_b
from lab.programs.pipelines.schedule import Schedule
from lab.programs.pipelines.schedule import in_flight as held
from lab.programs.pipelines.simulation import Durations, Timeline, simulate

SIZES = tuple(product((2, 3, 4, 8), (1, 2, 3, 4, 8, 16, 32)))
"""Stages and micro-batches of the claims."""


@dataclass(frozen=True)
class Assumed:
    """Times of one micro-batch in one stage, all its chunks together; the backward is `input_backward_s` and
    `weight_s`, in one where a schedule does not split it.

    `transfer_s` goes by between a result and its use on another stage, and keeps neither of them; theory has none.
    """

    stages: int = 8
    micro_batches: int = 64
    chunks: int = 2
    forward_s: float = 0.01
    input_backward_s: float = 0.01
    weight_s: float = 0.01
    transfer_s: float = 0.0
    tokens: int = 8192

    @property
    def backward_s(self) -> float:
        return self.input_backward_s + self.weight_s

    def durations(self, chunks: int = 1) -> Durations:
        return Durations(
            self.forward_s / chunks, self.input_backward_s / chunks, self.weight_s / chunks, transfer=self.transfer_s
        )

    @property
    def times(self) -> Times:
        return Times(self.forward_s, self.input_backward_s, self.weight_s, self.forward_s + self.backward_s)

    def run(self, schedule: Schedule) -> Timeline:
        return simulate(schedule, self.durations(schedule.visits))


def answer(assumed: Assumed) -> tuple[Row, ...]:
    positive(forward_s_and_backward_s=assumed.forward_s + assumed.backward_s)
    return tuple(row for name in (*PLAIN, "interleaved") for row in _of(name, assumed))


def _of(name: str, assumed: Assumed) -> tuple[Row, ...]:
    """What a schedule comes to, or why it has no order for these sizes."""
    try:
        schedule = named(name, assumed.stages, assumed.micro_batches, assumed.chunks)
    except UsageError as reason:
        return (Row(name, str(reason).removeprefix(f"{name}: ")),)
    if refused := refusal(schedule, assumed.times):
        return (*_rows(schedule, assumed.run(schedule), None, assumed), Row(f"{name}: theory of its time", refused))
    return _rows(schedule, assumed.run(schedule), _span_s(schedule, assumed), assumed)


def _span_s(schedule: Schedule, assumed: Assumed) -> float:
    """By formula, of a stage from its first to its last work."""
    P, m, both = assumed.stages, assumed.micro_batches, assumed.forward_s + assumed.backward_s
    if schedule.is_two_way:
        return m * both + dualpipe_idle_s(P, both, assumed.backward_s, assumed.weight_s)
    if lag := LAGS.get(schedule.name):
        idle = zero_bubble_idle_s(P, assumed.forward_s, assumed.input_backward_s, assumed.weight_s, lag)
        return m * both + float(idle)
    return m * both + idle_s(P, assumed.forward_s, assumed.backward_s, schedule.chunks)


def _rows(schedule: Schedule, timeline: Timeline, formula_s: float | None, assumed: Assumed) -> tuple[Row, ...]:
    return (
        Row(f"{schedule.name}: step", float(timeline.makespan), "s", None if schedule.name == "zb_h2" else formula_s),
        Row(
            f"{schedule.name}: a stage from its first work to its last",
            float(max(timeline.stage_spans)),
            "s",
            formula_s,
        ),
        Row(f"{schedule.name}: idle", 100 * timeline.idle_share, "%"),
        Row(
            f"{schedule.name}: most in flight",
            max(held(schedule)) / schedule.visits,
            "micro-batches",
            _held(schedule, assumed),
        ),
    )


def _held(schedule: Schedule, assumed: Assumed) -> float:
    P, m = assumed.stages, assumed.micro_batches
    formulas: dict[str, Number] = {
        "gpipe": m,
        "1f1b": in_flight(P, m, 0),
        # As many warm-up forwards as ZB-H2 has.
        "eager_1f1b": zero_bubble_in_flight(P, LAGS["zb_h2"]),
        "interleaved": interleaved_in_flight(P, schedule.chunks),
        "zb_h1": zero_bubble_in_flight(P, LAGS["zb_h1"]),
        "zb_h2": zero_bubble_in_flight(P, LAGS["zb_h2"]),
        "dual_pipe": P + 1,
    }
    return float(min(m, formulas[schedule.name]))


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    return (
        swept(
            "ch16.single_batch_bubble",
            [_share(gpipe, P, 1, assumed) for P in (1, 2, 4, 8, 16)],
            statement="one batch idles (P-1)/P",
        ),
        swept(
            "ch16.gpipe_bubble",
            [_share(gpipe, *size, assumed) for size in SIZES],
            statement="GPipe idles (P-1)/(m+P-1)",
        ),
        swept(
            "ch16.1f1b_bubble",
            [_step(one_f_one_b, *size, assumed) for size in SIZES],
            statement="1F1B takes (m+P-1)(t_F+t_B)",
        ),
        swept(
            "ch16.gpipe_memory",
            [Point(_at(P, m), max(held(gpipe(P, m))), m) for P, m in SIZES],
            statement="GPipe holds m",
            structural=True,
        ),
        swept(
            "ch16.1f1b_memory",
            [point for size in SIZES for point in _held_by_stages(*size)],
            statement="stage s of 1F1B holds min(P-s, m)",
        ),
        swept(
            "ch16.throughput",
            [_throughput(*size, assumed) for size in (*SIZES, (assumed.stages, assumed.micro_batches))],
            statement="m/T",
        ),
    )


def _at(stages: int, micro_batches: int) -> str:
    return f"P {stages}, m {micro_batches}"


def _free(assumed: Assumed) -> Durations:
    """The same work with messages that take no time, of which the chapter's formulas speak."""
    return Durations(assumed.forward_s, assumed.input_backward_s, assumed.weight_s)


def _share(make: Callable[[int, int], Schedule], P: int, m: int, assumed: Assumed) -> Point:
    return Point(_at(P, m), simulate(make(P, m), _free(assumed)).idle_share, float(bubble_share(P, m)))


def _step(make: Callable[[int, int], Schedule], P: int, m: int, assumed: Assumed) -> Point:
    return Point(
        _at(P, m),
        float(simulate(make(P, m), _free(assumed)).makespan),
        float(step_s(P, m, assumed.forward_s, assumed.backward_s)),
    )


def _held_by_stages(P: int, m: int) -> list[Point]:
    return [Point(f"{_at(P, m)}, s {s}", held(one_f_one_b(P, m))[s], int(in_flight(P, m, s))) for s in range(P)]


def _throughput(P: int, m: int, assumed: Assumed) -> Point:
    measured = m / simulate(one_f_one_b(P, m), _free(assumed)).makespan
    formula = throughput_per_s(P, m, assumed.forward_s, assumed.backward_s)
    return Point(f"{_at(P, m)}, in tokens a second", assumed.tokens * measured, assumed.tokens * formula)


EXPERIMENT = Question(
    name="ch16_schedules",
    chapter=16,
    question="How long does a step of each schedule take, what part of it is idle, and how much does a stage store?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
)
