"""Chapters 31a and 35: how long is DualPipe idle, how much does it store, and is any printed bubble its own?"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from lab.book.architecture import dualpipe_idle_s
from lab.book.pipeline import idle_s, zero_bubble_idle_s
from lab.harness.claim import Claim, decided
from lab.harness.question import Question, Row
from lab.harness.sweep import Point, swept
from lab.programs.pipelines.domain import Times, refusal
from lab.programs.pipelines.orders import dual_pipe, one_f_one_b, zb_h1
from lab.programs.pipelines.schedule import in_flight
from lab.programs.pipelines.simulation import Durations, Timeline, simulate

SIZES = tuple((P, 2 * P + more) for P, more in product((2, 4, 8, 16), (0, 2, 12)))
"""Stages and micro-batches of the claims."""
TENTHS = tuple(Fraction(tenth, 10) for tenth in range(0, 15, 2))


@dataclass(frozen=True)
class Assumed:
    """Times in forwards; `backward` is whole, `weight` the part of it for the weights, and an overlapped pair takes
    `both`."""

    stages: int = 16
    micro_batches: int = 32
    backward: float = 2.0
    weight: float = 1.0
    both: float = 3.0

    @property
    def times(self) -> Times:
        return Times(1, self.backward - self.weight, self.weight, self.both)

    @property
    def durations(self) -> Durations:
        backward, weight, both = (Fraction(str(time)) for time in (self.backward, self.weight, self.both))
        return Durations(1, backward - weight, weight, both)


def answer(assumed: Assumed) -> tuple[Row, ...]:
    P = assumed.stages
    formulas = {
        one_f_one_b: float(idle_s(P, 1, assumed.backward)),
        zb_h1: float(zero_bubble_idle_s(P, 1, assumed.backward - assumed.weight, assumed.weight)),
        dual_pipe: float(dualpipe_idle_s(P, assumed.both, assumed.backward, assumed.weight)),
    }
    timelines = [
        (simulate(make(P, assumed.micro_batches), assumed.durations), formula) for make, formula in formulas.items()
    ]
    return tuple(row for timeline, formula in timelines for row in _rows(timeline, formula, assumed))


def _rows(timeline: Timeline, formula: float, assumed: Assumed) -> tuple[Row, ...]:
    name, busy = timeline.schedule.name, assumed.micro_batches * (1 + assumed.backward)
    refused = refusal(timeline.schedule, assumed.times)
    idle, share = (None, None) if refused else (formula, 100 * formula / (formula + busy))
    return (
        Row(
            f"{name}: idle of the stage that idles most",
            float(timeline.makespan - min(timeline.busy)),
            "forwards",
            idle,
        ),
        Row(f"{name}: idle share of all stages", 100 * timeline.idle_share, "%", share),
        Row(f"{name}: most in flight", max(in_flight(timeline.schedule)), "micro-batches"),
        Row(f"{name}: copies of a stage's weights", 2 if timeline.schedule.is_two_way else 1),
        *([Row(f"{name}: theory of its idle time", refused)] if refused else []),
    )


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    P, m = assumed.stages, assumed.micro_batches
    printed = {
        "ch31a.dualpipe": ((P - 1) / (2 * m), "(p-1)/2m", "6-8:D-95"),
        "ch35.dualpipe_variants": ((P - 1) / 2 / (2 * m + P - 1), "((p-1)/2)/(2m+p-1)", "6-8:D-136"),
        "ch35.dualpipe_variants, halved": ((P - 1) / 2 / (m + P - 1), "(p-1)/2/(m+p-1)", "6-8:D-136"),
    }
    return (
        swept(
            "ch31a.dualpipe",
            _exact(),
            statement="each stage idles (p/2-1)(F&B+B-3W) where F&B = F + B and B - W = F, W at most F",
        ),
        _at_most(),
        swept(
            "ch31a.dualpipe",
            [_held(*size) for size in SIZES],
            statement="a stage holds p+1 micro-batches",
            structural=True,
        ),
        swept(
            "ch31a.dualpipe",
            [_twice(*size) for size in SIZES],
            statement="it holds twice what 1F1B does",
            disputed="6-8:D-96",
        ),
        *(_printed(id.split(",")[0], share, name, item, assumed) for id, (share, name, item) in printed.items()),
    )


def _most_idle(P: int, m: int, times: Times) -> float:
    timeline = simulate(dual_pipe(P, m), Durations(times.forward, times.backward, times.weight, times.both))
    return float(timeline.makespan - min(timeline.busy))


def _formula(P: int, times: Times) -> float:
    return float(dualpipe_idle_s(P, times.both, times.backward + times.weight, times.weight))


def _exact() -> list[Point]:
    cases = [(size, Times(1, 1, weight, 2 + weight)) for size in SIZES for weight in TENTHS if weight <= 1]
    return [
        Point(f"p {P}, m {m}, W {float(times.weight):g} F", _most_idle(P, m, times), _formula(P, times))
        for (P, m), times in cases
    ]


def _at_most() -> Claim:
    """Backwards to the input that last longer than a forward, and pairs that overlap."""
    half = Fraction(1, 2)
    times = [
        Times(1, backward, weight, 1 + backward + weight - gain)
        for backward in (1, 2)
        for weight in (half, Fraction(1))
        for gain in (Fraction(0), half)
    ]
    more = [_most_idle(P, m, some) - _formula(P, some) for P, m in SIZES for some in times]
    less, above = sum(difference < -1e-9 for difference in more), sum(difference > 1e-9 for difference in more)
    evidence = f"of {len(more)} simulations {less} idle less and {above} more"
    return decided(
        "ch31a.dualpipe",
        above == 0,
        evidence,
        statement="no stage idles longer than (p/2-1)(F&B+B-3W) where B - W is at least F and W",
    )


def _held(P: int, m: int) -> Point:
    return Point(f"p {P}, m {m}", max(in_flight(dual_pipe(P, m))), P + 1)


def _twice(P: int, m: int) -> Point:
    return Point(f"p {P}, m {m}", max(in_flight(dual_pipe(P, m))), 2 * max(in_flight(one_f_one_b(P, m))))


def _printed(id: str, share: float, name: str, item: str, assumed: Assumed) -> Claim:
    simulated = simulate(dual_pipe(assumed.stages, assumed.micro_batches), assumed.durations).idle_share
    evidence = (
        f"{100 * simulated:.3g} % of a step idles at p {assumed.stages}, m {assumed.micro_batches}, and "
        f"{100 * share:.3g} % as printed"
    )
    return decided(
        id, Point("", simulated, share).agrees, evidence, statement=f"{name} of the step idles", disputed=item
    )


EXPERIMENT = Question(
    name="ch31a_dualpipe",
    chapter=31,
    question="How long is DualPipe idle, how much does it store, and is any printed bubble its own?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
)
