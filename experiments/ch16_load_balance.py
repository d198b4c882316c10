"""Chapter 16: what do unequal stages cost, and does another placement of the layers fix it?"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations
from math import comb

from lab.book.pipeline import uneven_efficiency, uneven_step_s
from lab.harness.claim import Claim, decided
from lab.harness.question import Question, Row
from lab.harness.sweep import Point, swept
from lab.meshes.errors import UsageError
from lab.programs.pipelines.orders import gpipe, interleaved, one_f_one_b
from lab.programs.pipelines.schedule import Schedule
from lab.programs.pipelines.simulation import Durations, Timeline, simulate

STAGES = ((1, 3, 2), (3, 1, 2), (2, 2, 5, 1), (5, 1, 1, 1), (1, 1, 1, 5), (20, 20, 40, 40))
MICRO_BATCHES = (1, 4, 8, 16)
MOST_LAYERS, MOST_SPLITS = 1_000, 100_000


@dataclass(frozen=True)
class Assumed:
    """The exercise: as many fast as slow layers, in this order; times of a forward, and a backward takes as long.

    Raises:
      UsageError: more layers than can be split and tried in seconds.
    """

    stages: int = 4
    micro_batches: int = 64
    fast_layers: int = 4
    fast: int = 10
    slow: int = 20

    def __post_init__(self) -> None:
        if self.fast_layers > MOST_LAYERS:
            raise UsageError(
                f"fast_layers={self.fast_layers}: expected {MOST_LAYERS:,} at most, so that all splits can be tried in "
                "seconds"
            )

    @property
    def layers(self) -> tuple[int, ...]:
        return self.fast_layers * (self.fast,) + self.fast_layers * (self.slow,)


def answer(assumed: Assumed) -> tuple[Row, ...]:
    paired, best, m = _paired(assumed, assumed.micro_batches), best_split(assumed), assumed.micro_batches
    formula = 100 * (1 - float(uneven_efficiency(best, m)))
    return (
        Row("slowest stage of the best split into contiguous stages", max(best), "units"),
        Row("idle for endlessly many micro-batches, by formula", 100 * (1 - float(uneven_efficiency(best))), "%"),
        Row("gpipe: idle", 100 * _run(gpipe, best, m).idle_share, "%", formula),
        Row("1f1b: idle", 100 * _run(one_f_one_b, best, m).idle_share, "%", formula),
        Row("first layer with the fifth and so on, interleaved: idle", 100 * paired.idle_share, "%"),
        Row("the same: idle for each further micro-batch", 100 * _steady_idle(assumed), "%"),
    )


def _run(make: Callable[[int, int], Schedule], stage_times: Sequence[int], m: int) -> Timeline:
    return simulate(make(len(stage_times), m), Durations(stage_times, stage_times))


def splits(layers: Sequence[int], stages: int) -> Iterator[tuple[int, ...]]:
    """Times of the stages, for every split of the layers into runs of neighbours.

    Raises:
      UsageError: there is none, or there are too many to try.
    """
    if not 1 <= (ways := comb(len(layers) - 1, stages - 1)) <= MOST_SPLITS:
        raise UsageError(
            f"{len(layers)} layers on stages={stages} split in {ways:,} ways; expected 1 to {MOST_SPLITS:,}, so "
            "that all can be tried in seconds"
        )
    for cuts in combinations(range(1, len(layers)), stages - 1):
        edges = (0, *cuts, len(layers))
        yield tuple(sum(layers[start:end]) for start, end in pairwise(edges))


def best_split(assumed: Assumed) -> tuple[int, ...]:
    """The one with the shortest slowest stage."""
    return min(splits(assumed.layers, assumed.stages), key=max)


def _paired(assumed: Assumed, micro_batches: int) -> Timeline:
    """Two chunks a stage: a fast run of layers and a slow one."""
    P, layers = assumed.stages, assumed.layers
    if len(layers) % (2 * P):
        raise UsageError(
            f"fast_layers={assumed.fast_layers} on stages={P}: expected a multiple of {P}, so that every stage has a "
            "fast and a slow run"
        )
    size = len(layers) // (2 * P)
    runs = [sum(layers[first : first + size]) for first in range(0, len(layers), size)]
    chunks = list(zip(runs[:P], runs[P:], strict=True))
    return simulate(interleaved(P, micro_batches, 2), Durations(chunks, chunks))


def _steady_idle(assumed: Assumed) -> float:
    """Of the time that a further group of P micro-batches adds."""
    P = assumed.stages
    more, fewer = (_paired(assumed, groups * P) for groups in (24, 16))
    return 1 - (more.busy[0] - fewer.busy[0]) / (more.makespan - fewer.makespan)


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    return (
        swept(
            "ch16.load_balance",
            [_point(stages, m) for stages in STAGES for m in MICRO_BATCHES],
            statement="GPipe takes sum t_i + (m-1) t_max",
        ),
        _never_longer(),
        _splits(assumed),
        _pairing(assumed),
    )


def _point(stages: Sequence[int], m: int) -> Point:
    both = [2 * time for time in stages]
    return Point(
        f"stages {', '.join(map(str, stages))}, m {m}",
        float(_run(gpipe, stages, m).makespan),
        float(uneven_step_s(both, m)),
    )


def _never_longer() -> Claim:
    """1F1B in every order of the stages."""
    orders = [order for stages in STAGES for order in sorted(set(permutations(stages)))]
    cases = [(order, m) for order in orders for m in MICRO_BATCHES]
    more = [
        _run(one_f_one_b, order, m).makespan - float(uneven_step_s([2 * time for time in order], m))
        for order, m in cases
    ]
    shorter, longer = sum(difference < 0 for difference in more), sum(difference > 0 for difference in more)
    evidence = f"{shorter} of {len(cases)} simulations are shorter and {longer} longer"
    return decided("ch16.load_balance", longer == 0, evidence, statement="1F1B takes sum t_i + (m-1) t_max at most")


def _splits(assumed: Assumed) -> Claim:
    tried, best = list(splits(assumed.layers, assumed.stages)), best_split(assumed)
    idle = 1 - sum(best) / (assumed.stages * max(best))
    evidence = (
        f"the best of {len(tried)} splits into neighbours has stages of {', '.join(map(str, best))}, and idles "
        f"{100 * idle:.4g} %"
    )
    return decided(
        "ch16.load_balance", idle == 0, evidence, statement="some split of these layers idles 0 %", disputed="4-5:D-26"
    )


def _pairing(assumed: Assumed) -> Claim:
    idle = _steady_idle(assumed)
    evidence = (
        f"interleaved, the pairs of equal sum leave {100 * idle:.3g} % of the time of each further micro-batch idle"
    )
    return decided(
        "ch16.load_balance",
        idle == 0,
        evidence,
        statement="pairs of a fast and a slow layer idle 0 %",
        disputed="4-5:D-26",
    )


EXPERIMENT = Question(
    name="ch16_load_balance",
    chapter=16,
    question="What do unequal stages cost, and does another placement of the layers fix it?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
)
