"""Chapters 16 and 24: do the schedules and charts that the book prints run?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lab.book.checks import Exact, at_least
from lab.book.pipeline import in_flight as held_by_stage
from lab.book.pipeline import interleaved_in_flight, warm_up
from lab.harness.claim import Claim, decided
from lab.harness.question import Question, Row
from lab.programs.pipelines.orders import gpipe, interleaved, one_f_one_b
from lab.programs.pipelines.schedule import (
    Deadlock,
    Schedule,
    Task,
    Work,
    in_flight,
    ticks,
)

Order = Sequence[Task]


@dataclass(frozen=True)
class Assumed:
    """The chapter's own sizes; the chart of GPipe has `chart_micro_batches`."""

    stages: int = 4
    micro_batches: int = 8
    chunks: int = 2
    chart_micro_batches: int = 4
    gpipe_chart_ticks: int = 11
    one_f_one_b_chart_ticks: int = 19


def warmed_up(schedule: Schedule, forwards_first: Callable[[int], int]) -> Schedule:
    """The same forwards and backwards, with another number of forwards before the first backward on each stage."""
    return replace(
        schedule, orders=tuple(_rewoven(order, forwards_first(stage)) for stage, order in enumerate(schedule.orders))
    )


def _rewoven(order: Order, first: int) -> tuple[Task, ...]:
    forwards, backwards = ([task for task in order if task.work is work] for work in (Work.FORWARD, Work.BACKWARD))
    pairs = [
        task
        for turn, backward in enumerate(backwards)
        for task in (*forwards[first + turn : first + turn + 1], backward)
    ]
    return (*forwards[:first], *pairs)


def cases(assumed: Assumed) -> dict[str, Schedule]:
    """Orders of the chapters, by how many forwards stage s does first."""
    P, m, v = assumed.stages, assumed.micro_batches, assumed.chunks
    plain, chunked = one_f_one_b(P, m), interleaved(P, m, v)
    return {
        "1f1b, s first": warmed_up(plain, lambda s: s),
        "1f1b, s + 1 first": warmed_up(plain, lambda s: s + 1),
        "1f1b, P - s - 1 first": warmed_up(plain, lambda s: int(warm_up(P, m, s))),
        "1f1b, P - 1 first": warmed_up(plain, lambda s: P - 1),
        "interleaved, (P - s - 1) v first": warmed_up(chunked, lambda s: (P - s - 1) * v),
        "interleaved, 2 (P - s - 1) + (v - 1) P first": warmed_up(chunked, lambda s: 2 * (P - s - 1) + (v - 1) * P),
    }


def answer(assumed: Assumed) -> tuple[Row, ...]:
    """Of two stages or more: one alone waits for none, and runs any order."""
    at_least(2, stages=assumed.stages)
    return (
        *(Row(name, _outcome(schedule)) for name, schedule in cases(assumed).items()),
        Row("gpipe: the chart's length", len(ticks(gpipe(assumed.stages, assumed.chart_micro_batches))), "ticks"),
        Row("1f1b: the chart's length", len(ticks(one_f_one_b(assumed.stages, assumed.micro_batches))), "ticks"),
    )


def _outcome(schedule: Schedule) -> str:
    try:
        return _run(schedule)
    except Deadlock:
        return "deadlock"


def _run(schedule: Schedule) -> str:
    return (
        f"{len(ticks(schedule))} ticks, stages hold {', '.join(map(str, in_flight(schedule)))} micro-batches"
        + " (chunks)" * (schedule.chunks > 1)
    )


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    found = cases(assumed)
    first, second, right, all_ahead, printed, chunked = found.values()
    return (
        _runs("ch16.1f1b_order", first, "stage s does s forwards first", "4-5:D-21"),
        _runs("ch16.1f1b_order", second, "stage s does s + 1 forwards first", "4-5:D-21"),
        _holds("ch16.1f1b_order", right, "stage s does min(P-s-1, m) forwards first", held_by_stage),
        _saves(all_ahead),
        _runs("ch24.schedule_1f1b", printed, "interleaved, stage r does (p-r-1) v forwards first", "6-8:D-19"),
        _holds(
            "ch24.schedule_1f1b",
            chunked,
            "interleaved, stage r does 2 (p-r-1) + (v-1) p forwards first",
            lambda P, m, s: assumed.chunks * interleaved_in_flight(P, assumed.chunks, s),
        ),
        _chart("ch16.gpipe_bubble", assumed.stages, assumed.chart_micro_batches, assumed.gpipe_chart_ticks),
        _chart("ch16.1f1b_bubble", assumed.stages, assumed.micro_batches, assumed.one_f_one_b_chart_ticks),
    )


def _runs(id: str, schedule: Schedule, statement: str, disputed: str) -> Claim:
    try:
        return decided(id, True, _run(schedule), statement=statement, disputed=disputed)
    except Deadlock as deadlock:
        return decided(id, False, str(deadlock).split(";")[0], statement=statement, disputed=disputed)


def _holds(id: str, schedule: Schedule, statement: str, held: Callable[[int, int, int], Exact]) -> Claim:
    """Of an order that runs, and holds what the formula says."""
    P, m = schedule.stages, schedule.micro_batches
    expected = [held(P, m, stage) for stage in range(P)]
    try:
        return decided(id, list(in_flight(schedule)) == expected, _run(schedule), statement=statement)
    except Deadlock as deadlock:
        return decided(id, False, str(deadlock).split(";")[0], statement=statement)


def _saves(schedule: Schedule) -> Claim:
    """1F1B's point is what it holds."""
    right = one_f_one_b(schedule.stages, schedule.micro_batches)
    evidence = f"{_run(schedule)}; with p-r-1 ahead {_run(right)}"
    holds = in_flight(schedule) == in_flight(right)
    return decided(
        "ch24.schedule_1f1b",
        holds,
        evidence,
        statement="p-1 forwards ahead on every stage are 1F1B",
        disputed="6-8:D-18",
    )


def _chart(id: str, P: int, m: int, drawn: int) -> Claim:
    """The last stage starts P - 1 ticks late and works for 2 m; the last of its backwards has P - 1 stages to go."""
    least, simulated = 2 * m + 2 * (P - 1), [len(ticks(make(P, m))) for make in (gpipe, one_f_one_b)]
    evidence = (
        f"no order of P {P}, m {m} takes fewer than {least} ticks, and these take {simulated[0]} and {simulated[1]}"
    )
    return decided(id, drawn >= least, evidence, statement=f"a chart of {drawn} ticks", disputed="4-5:D-20")


EXPERIMENT = Question(
    name="ch16_printed_schedules",
    chapter=16,
    question="Do the schedules and charts that the book prints run?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
)
