"""Chapter 16: what do several chunks per stage save, how much memory do they take, and how often do they send?"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import product

from lab.book.checks import at_least
from lab.book.composition import interleaving_saves_s
from lab.book.pipeline import bubble_share, bubble_to_ideal, hops, interleaved_in_flight
from lab.harness.claim import Claim, decided
from lab.harness.question import Question, Row
from lab.harness.sweep import Point, swept
from lab.programs.pipelines.orders import interleaved, one_f_one_b
from lab.programs.pipelines.schedule import Schedule, Work, in_flight, needs
from lab.programs.pipelines.simulation import Durations, Timeline, simulate

SIZES = tuple((P, P * groups, v) for P, groups, v in product((2, 4, 8), (1, 2, 3, 6), (2, 4)))
"""Stages, micro-batches and chunks of the claims."""
TRANSFERS = (0, Fraction(1, 20), Fraction(1, 5))
"""Of a hop, in times of a forward through a whole stage."""


@dataclass(frozen=True)
class Assumed:
    """Chapter 24's step of `step_s` with one chunk a stage, of which a backward takes `backward_to_forward`
    forwards."""

    stages: int = 16
    micro_batches: int = 32
    step_s: float = 1.0
    backward_to_forward: int = 2

    def run(self, chunks: int, transfer: Fraction | int = 0) -> Timeline:
        """In times of a forward through a whole stage."""
        return simulate(self.schedule(chunks), _in(chunks, self.backward_to_forward, transfer))

    def schedule(self, chunks: int) -> Schedule:
        return (
            interleaved(self.stages, self.micro_batches, chunks)
            if chunks > 1
            else one_f_one_b(self.stages, self.micro_batches)
        )

    def seconds(self, timeline: Timeline) -> float:
        return self.step_s * float(timeline.makespan / self.run(1).makespan)


def _in(chunks: int, backward: int, transfer: Fraction | int = 0) -> Durations:
    return Durations(Fraction(1, chunks), Fraction(backward, chunks), transfer=transfer)


def answer(assumed: Assumed) -> tuple[Row, ...]:
    at_least(2, stages=assumed.stages)
    return tuple(row for chunks in (1, 2, 4) for row in _rows(chunks, assumed))


def _rows(chunks: int, assumed: Assumed) -> tuple[Row, ...]:
    P, m, own = assumed.stages, assumed.micro_batches, f"{chunks} chunk{'s' * (chunks > 1)} a stage"
    held = min(m, interleaved_in_flight(P, chunks) if chunks > 1 else P)
    plain = assumed.run(chunks)
    return (
        Row(f"{own}: idle", 100 * plain.idle_share, "%", 100 * float(bubble_share(P, m, chunks))),
        Row(f"{own}: held by stage 0", max(in_flight(plain.schedule)) / chunks, "micro-batches", float(held)),
        Row(f"{own}: messages of a micro-batch forward", _hops(plain.schedule, Work.FORWARD), "", hops(P, chunks)),
        *(
            Row(f"{own}: step, a hop takes {float(hop):g} of a forward", assumed.seconds(assumed.run(chunks, hop)), "s")
            for hop in TRANSFERS
        ),
    )


def _hops(schedule: Schedule, work: Work) -> float:
    """How often a micro-batch changes its stage, counted in the table."""
    tasks = [(stage, task) for stage, order in enumerate(schedule.orders) for task in order if task.work is work]
    return (
        sum(place != stage for stage, task in tasks for place, _ in needs(schedule, stage, task))
        / schedule.micro_batches
    )


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    return (
        swept(
            "ch16.interleaved_bubble",
            [_share(*size, assumed) for size in SIZES],
            statement="(P-1)/(mv+P-1) of the time is idle",
        ),
        swept(
            "ch16.interleaved_bubble",
            [_to_ideal(*size, assumed) for size in SIZES],
            statement="idle is (P-1)/(mv) of the busy time",
        ),
        swept(
            "ch16.interleaved_bubble",
            [_printed(*size, assumed) for size in SIZES],
            statement="(P-1)/(mv) of the time is idle, as (P-1)/(m+P-1) is with one chunk",
            disputed="4-5:D-23",
        ),
        swept(
            "ch16.interleaved_memory",
            [point for P, m, v in SIZES if m > P for point in _held(P, m, v)],
            statement="(2(P-s-1)+(v-1)P+1)/v on stage s where m is above P",
        ),
        swept(
            "ch16.interleaved_memory",
            [_held_all(P, v) for P, m, v in SIZES if m == P],
            statement="with m = P stage 0 holds all m",
            structural=True,
        ),
        swept(
            "ch16.interleaved_memory",
            [_held_p(*size) for size in SIZES if size[1] > size[0]],
            statement="stage 0 holds P",
            disputed="4-5:D-75",
        ),
        swept(
            "ch16.interleaved_comm",
            [point for size in SIZES for point in _hop_points(*size)],
            statement="Pv-1 messages a micro-batch and direction",
        ),
        _breakeven(assumed),
    )


def _at(P: int, m: int, v: int) -> str:
    return f"P {P}, m {m}, v {v}"


@cache
def _run(P: int, m: int, v: int, assumed: Assumed) -> Timeline:
    return simulate(interleaved(P, m, v), _in(v, assumed.backward_to_forward))


def _share(P: int, m: int, v: int, assumed: Assumed) -> Point:
    return Point(_at(P, m, v), _run(P, m, v, assumed).idle_share, float(bubble_share(P, m, v)))


def _printed(P: int, m: int, v: int, assumed: Assumed) -> Point:
    return Point(_at(P, m, v), _run(P, m, v, assumed).idle_share, float(bubble_to_ideal(P, m, v)))


def _to_ideal(P: int, m: int, v: int, assumed: Assumed) -> Point:
    timeline = _run(P, m, v, assumed)
    return Point(_at(P, m, v), float(timeline.makespan / timeline.busy[0] - 1), float(bubble_to_ideal(P, m, v)))


def _held(P: int, m: int, v: int) -> list[Point]:
    return [
        Point(f"{_at(P, m, v)}, s {s}", chunks / v, float(interleaved_in_flight(P, v, s)))
        for s, chunks in enumerate(in_flight(interleaved(P, m, v)))
    ]


def _held_all(P: int, v: int) -> Point:
    return Point(_at(P, P, v), in_flight(interleaved(P, P, v))[0] / v, P)


def _held_p(P: int, m: int, v: int) -> Point:
    return Point(_at(P, m, v), in_flight(interleaved(P, m, v))[0] / v, P)


def _hop_points(P: int, m: int, v: int) -> list[Point]:
    return [
        Point(f"{_at(P, m, v)}, {work}", _hops(interleaved(P, m, v), work), hops(P, v))
        for work in (Work.FORWARD, Work.BACKWARD)
    ]


def _breakeven(assumed: Assumed) -> Claim:
    """Two chunks against one, where messages are hidden."""
    one, two = assumed.run(1), assumed.run(2)
    saved, formula = (
        assumed.step_s - assumed.seconds(two),
        interleaving_saves_s(assumed.step_s, assumed.stages, assumed.micro_batches, 2),
    )
    by_shares = (one.idle_share - two.idle_share) * assumed.step_s
    evidence = f"two chunks save {1e3 * saved:.4g} of {1e3 * assumed.step_s:,.4g} ms, by formula {1e3 * formula:.4g}"
    evidence += f"; the difference of the shares says {1e3 * by_shares:.4g}"
    holds = Point("", saved, formula).agrees
    return decided("ch24.interleave_breakeven", holds, evidence, statement="v chunks save T (p-1)(1-1/v)/(m+p-1)")


EXPERIMENT = Question(
    name="ch16_interleaving",
    chapter=16,
    question="What do several chunks per stage save, how much memory do they take, and how often do they send?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
)
