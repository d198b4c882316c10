"""Chapter 29, simulated: how old are gradients without a barrier, how long does a barrier wait, and how often should
replicas meet?"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from lab.book.local_sgd import (
    best_local_steps,
    exponential_straggler,
    least_bound_local_steps,
    local_cost_s,
    mean_staleness,
    nesterov,
    stable_learning_rate,
    synchronised_bytes,
)
from lab.harness.claim import Claim, decided
from lab.harness.question import Question, Row
from lab.meshes.errors import UsageError

ROUNDS, TRIALS, STRAGGLERS = 500, 4000, 1000
"""Updates of each worker; draws of the slowest, of how many ranks."""
LATE = (0, 1, 4, 15)
CURVATURES, OPTIMA = np.array([1.0, 4.0]), np.array([0.0, 1.0])
"""Two workers, each with a quadratic of one weight; together they are least at 0.8."""
OPTIMUM = 0.8


@dataclass(frozen=True)
class Assumed:
    """The book's example, and costs of its exercise.

    Attributes:
      workers: that update one set of weights, each when it is ready.
      steps: of the run whose printed bound is made least.
      variance: of its gradients.
      compute_ms, sync_ms, drift_ms: of a step, of a meeting, and what one more local step is worth in progress lost.
      seed: of all that is drawn.
    Raises:
      UsageError: one worker, whose gradients are never late.
    """

    workers: int = 16
    steps: int = 1_000_000
    variance: float = 1.0
    compute_ms: float = 100.0
    sync_ms: float = 50.0
    drift_ms: float = 1.0
    seed: int = 29

    def __post_init__(self) -> None:
        if self.workers < 2:
            raise UsageError(f"workers={self.workers}: expected 2 or more, since one is never late")


def staleness(workers: int, duration: Callable[[], float], rounds: int = ROUNDS) -> np.ndarray:
    """Updates by others between a worker's reading of the weights and its own update, one an update."""
    stale = []
    ends = [(duration(), worker, 0) for worker in range(workers)]
    heapq.heapify(ends)
    for version in range(rounds * workers):
        now, worker, read = heapq.heappop(ends)
        stale.append(version - read)
        heapq.heappush(ends, (now + duration(), worker, version + 1))
    return np.array(stale)


@cache
def slowest(ranks: int, seed: int) -> float:
    """Mean time of the slowest of so many exponential ones, of mean 1."""
    draw = np.random.default_rng(seed)
    return float(np.mean([draw.exponential(size=ranks).max() for _ in range(TRIALS)]))


def diverges(learning_rate: float, late: int) -> bool:
    """Descent on w^2 / 2 from 1, each gradient taken that many updates ago."""
    w = [1.0] * (late + 1)
    while len(w) < 20_000 and abs(w[-1]) < 1e6:
        w.append(w[-1] - learning_rate * w[-1 - late])
    return max(map(abs, w[-50:])) > 1


@cache
def averaged(rate: float, steps: int, rounds: int) -> float:
    """Local SGD with exact gradients: where it settles."""
    w = 0.0
    for _ in range(rounds):
        local_N = np.full(2, w)
        for _ in range(steps):
            local_N = local_N - rate * CURVATURES * (local_N - OPTIMA)
        w = float(local_N.mean())
    return w


@cache
def scaffold(rate: float, steps: int, rounds: int) -> float:
    """The same with the controls of the book's exercise (Karimireddy et al. 2020)."""
    w, control_N = 0.0, np.zeros(2)
    for _ in range(rounds):
        local_N = np.full(2, w)
        for _ in range(steps):
            local_N = local_N - rate * (CURVATURES * (local_N - OPTIMA) + control_N.mean() - control_N)
        control_N = control_N - control_N.mean() + (w - local_N) / (steps * rate)
        w = float(local_N.mean())
    return w


def waits(bound: int, updates: int) -> int:
    """For how many of so many updates by others a worker that is one beyond the bound waits, as the book lists it:
    until the weights' version is no more than `bound` beyond its own, which only its own step would raise."""
    own, version, waited = 0, bound + 1, 0
    while version - own > bound and waited < updates:
        version, waited = version + 1, waited + 1
    return waited


def answer(assumed: Assumed) -> tuple[Row, ...]:
    N, draw = assumed.workers, np.random.default_rng(assumed.seed)
    even, exponential = staleness(N, lambda: 1.0), staleness(N, draw.exponential)
    h = _least_of_sweep(assumed)
    return (
        Row(f"staleness of {N} workers, equal times", float(even[N:].mean()), "updates", float(mean_staleness(N))),
        Row("the same, exponential times", float(exponential[N:].mean()), "updates", float(mean_staleness(N))),
        Row("oldest of these", float(exponential.max()), "updates"),
        Row("staleness in the first round", float(even[:N].mean()), "updates"),
        Row(
            f"slowest of {STRAGGLERS:,} exponential times",
            slowest(STRAGGLERS, assumed.seed),
            "means",
            exponential_straggler(STRAGGLERS),
        ),
        Row("local steps of the least cost", h, "steps", float(best_local_steps(assumed.sync_ms, assumed.drift_ms))),
        Row("local SGD of unlike workers settles at", averaged(0.05, 20, 1000), "", OPTIMUM),
        Row("SCAFFOLD settles at", scaffold(0.05, 20, 1000), "", OPTIMUM),
    )


def _least_of_sweep(assumed: Assumed) -> float:
    h = np.geomspace(1, max(100, 4 * best_local_steps(assumed.sync_ms, assumed.drift_ms)), 50_001)
    costs = np.asarray(local_cost_s(assumed.compute_ms, assumed.sync_ms, assumed.drift_ms, h))  # type: ignore[arg-type]
    return float(h[costs.argmin()])


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    return (
        *_staleness(assumed),
        _straggler(assumed),
        _late(),
        _deadlock(),
        *_bound(assumed),
        *_interval(assumed),
        _drift(),
        _momentum(),
        _volume(),
    )


def _staleness(assumed: Assumed) -> tuple[Claim, Claim]:
    N, found = assumed.workers, _ages(assumed.workers, assumed.seed)
    evidence = f"gradients of {N} workers with equal, nearly equal and exponential times are " + ", ".join(
        f"{each:.2f}" for each in found
    )
    right, printed = mean_staleness(N), (N - 1) / 2
    return (
        decided(
            "ch29.async_staleness",
            all(abs(each / right - 1) < 0.01 for each in found),
            f"{evidence} updates old; N - 1 is {right}",
            statement="gradients are N - 1 updates old in the mean, whatever the times",
        ),
        decided(
            "ch29.async_staleness",
            all(abs(each / printed - 1) < 0.01 for each in found),
            f"{evidence} updates old, not {printed:g}, but for the first round",
            statement="gradients are (N - 1) / 2 updates old in the mean",
            disputed="6-8:D-69",
        ),
    )


@cache
def _ages(workers: int, seed: int) -> tuple[float, ...]:
    """Mean staleness after the first round, of equal, nearly equal and exponential times."""
    draw = np.random.default_rng(seed)
    durations = (lambda: 1.0, lambda: draw.uniform(0.9, 1.1), draw.exponential)
    return tuple(float(staleness(workers, duration)[workers:].mean()) for duration in durations)


def _straggler(assumed: Assumed) -> Claim:
    found, book = slowest(STRAGGLERS, assumed.seed), exponential_straggler(STRAGGLERS)
    evidence = f"the slowest of {STRAGGLERS:,} takes {found:.3f} means over {TRIALS:,} draws; H_N is {book:.4f}"
    return decided("ch29.straggler", abs(found / book - 1) < 0.02, evidence)


def _late() -> Claim:
    limits = {late: float(stable_learning_rate(late, curvature=1.0)) for late in LATE}
    held = [not diverges(0.98 * limit, late) and diverges(1.02 * limit, late) for late, limit in limits.items()]
    shown = ", ".join(f"{limit:.4g} for {late}" for late, limit in limits.items())
    return decided(
        "ch29.async_rate",
        all(held),
        f"descent on a quadratic converges at 0.98 and diverges at 1.02 of {shown} updates of delay",
        statement="the largest stable rate is (2 / lambda) sin(pi / (2 (2 tau + 1)))",
    )


def _deadlock() -> Claim:
    bound, updates = 4, 1000
    waited = waits(bound, updates)
    return decided(
        "ch29.async_rate",
        waited < updates,
        f"a worker {bound + 1} updates behind still waits after {waited:,} updates by others: each makes it older",
        statement="a worker that waits until its lag shrinks goes on",
        disputed="6-8:D-70",
    )


def _bound(assumed: Assumed) -> tuple[Claim, Claim]:
    h = np.arange(1, max(2000, int(4 * least_bound_local_steps(assumed.steps, assumed.variance))))
    bound = 1 / np.sqrt(h * assumed.steps) + h * assumed.variance / assumed.steps
    found, right = int(h[bound.argmin()]), float(least_bound_local_steps(assumed.steps, assumed.variance))
    printed = float(np.sqrt(assumed.steps / assumed.variance))
    evidence = f"1 / sqrt(h T) + h sigma^2 / T of T = {assumed.steps:,} steps is least at h = {found}"
    return (
        decided(
            "ch29.local_sgd",
            abs(found - right) <= 1,
            f"{evidence}; (sqrt(T) / (2 sigma^2))^(2/3) is {right:.1f}",
            statement="the printed bound is least at (sqrt(T) / (2 sigma^2))^(2/3)",
        ),
        decided(
            "ch29.local_sgd",
            abs(found - printed) <= 1,
            f"{evidence}, not {printed:,.0f}",
            statement="the printed bound is least at sqrt(T / sigma^2)",
            disputed="6-8:D-71",
        ),
    )


def _interval(assumed: Assumed) -> tuple[Claim, Claim]:
    found, right = _least_of_sweep(assumed), float(best_local_steps(assumed.sync_ms, assumed.drift_ms))
    evidence = f"T_c + T_m / h + gamma h is least at h = {found:.2f}"
    return (
        decided(
            "ch29.sync_interval",
            abs(found / max(right, 1) - 1) < 1e-3,
            f"{evidence}; sqrt(T_m / gamma) is {right:.2f}",
            statement="a meeting pays every sqrt(T_m / gamma) steps",
        ),
        decided(
            "ch29.sync_interval",
            abs(found - 50) < 1,
            f"{evidence}, not at the table's 50",
            statement="the table is least at 50 steps",
            disputed="6-8:D-72",
        ),
    )


def _drift() -> Claim:
    plain, controlled = averaged(0.05, 20, 1000), scaffold(0.05, 20, 1000)
    return decided(
        "ch29.drift",
        abs(controlled - OPTIMUM) < 1e-6 < abs(plain - OPTIMUM),
        f"of two unlike workers least at {OPTIMUM}, local SGD of 20 steps settles at {plain:.4f}, SCAFFOLD at "
        f"{controlled:.4f}",
        statement="with the exercise's controls unlike workers settle at the optimum",
        structural=True,
    )


def _momentum() -> Claim:
    """Two equal changes."""
    w, u = nesterov(*nesterov(0.0, 0.0, 1.0), 1.0)
    heavy_w, heavy_u = 0.0, 0.0
    for _ in range(2):
        heavy_u = 0.9 * heavy_u + 1.0
        heavy_w -= 0.7 * heavy_u
    return decided(
        "ch29.diloco",
        (heavy_w, heavy_u) == (w, u),
        f"after two changes of 1 the main listing's weight is at {heavy_w:.3f}, Nesterov's at {w:.4f}",
        statement="the main listing's outer step is Nesterov's",
        disputed="6-8:D-74",
    )


def _volume() -> Claim:
    found = float(synchronised_bytes(235_146, 4, 1520))
    return decided(
        "ch29.exercise_tables",
        abs(found / 610e6 - 1) < 0.01,
        f"235,146 numbers of 4 B synchronised 1,520 times are {found / 1e6:,.0f} MB",
        statement="they are 610 MB",
        disputed="6-8:D-77",
    )


EXPERIMENT = Question(
    name="ch29_asynchrony",
    chapter=29,
    question="How old are gradients without a barrier, how long does a barrier wait, and how often should replicas "
    "meet?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
)
