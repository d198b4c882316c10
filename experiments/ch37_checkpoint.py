"""Chapter 37: how often should a run save a checkpoint?"""

from dataclasses import dataclass

import numpy as np

from lab.book.reliability import checkpoint_overhead, daly_interval_s, work_lost_s, young_interval_s
from lab.harness.claim import Claim, decided
from lab.harness.question import Question, Row

HOUR = 3600


@dataclass(frozen=True)
class Assumed:
    """A save that blocks for `save_s`, one failure in `mtbf_h` hours of the whole cluster, `restart_s` to come back
    after one: to read a checkpoint as long as to write it."""

    save_s: float = 300.0
    mtbf_h: float = 72.0
    days: float = 14.0
    restart_s: float = 300.0


def answer(assumed: Assumed) -> tuple[Row, ...]:
    save_s, mtbf_s = assumed.save_s, assumed.mtbf_h * HOUR
    interval_s = young_interval_s(save_s, mtbf_s)
    failures = assumed.days * 24 / assumed.mtbf_h
    restarts = 100 * assumed.restart_s / mtbf_s
    recovery_s = work_lost_s(interval_s, 0) + assumed.restart_s
    return (
        Row("interval (Young)", interval_s / HOUR, "h"),
        Row("interval (Daly's higher order)", daly_interval_s(save_s, mtbf_s) / HOUR, "h"),
        Row("saves", assumed.days * 24 * HOUR / (interval_s + save_s)),
        Row("failures", failures),
        Row("recovery after each: restart and half an interval again", recovery_s / HOUR, "h"),
        Row("recovery in all", failures * recovery_s / HOUR, "h"),
        Row("lost to saving", 100 * save_s / interval_s, "%"),
        Row("lost to work done again", 100 * interval_s / (2 * mtbf_s), "%"),
        Row("lost to restarts", restarts, "%"),
        Row("lost to recovery: both", 100 * recovery_s / mtbf_s, "%"),
        Row("lost in all", 100 * checkpoint_overhead(interval_s, save_s, mtbf_s) + restarts, "%"),
        Row("lost in all when saving every hour", 100 * checkpoint_overhead(HOUR, save_s, mtbf_s) + restarts, "%"),
        Row("lost in all when saving once a day", 100 * checkpoint_overhead(24 * HOUR, save_s, mtbf_s) + restarts, "%"),
    )


def simulated_overhead(
    interval_s: float, save_s: float, mtbf_s: float, intervals: int = 200_000, seed: int = 0
) -> float:
    """Share of work by which a run is longer: each interval starts anew until it and its save end before the next
    failure."""
    draw = np.random.default_rng(seed)
    needed = interval_s + save_s
    attempts = draw.geometric(np.exp(-needed / mtbf_s), intervals)
    # Failures before `needed`: exponential times, cut off there.
    lost = -mtbf_s * np.log1p(-draw.random(int((attempts - 1).sum())) * -np.expm1(-needed / mtbf_s))
    return float((needed * intervals + lost.sum()) / (interval_s * intervals) - 1)


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    save_s, mtbf_s = Assumed().save_s, Assumed().mtbf_h * HOUR
    best = young_interval_s(save_s, mtbf_s)
    waste = {factor: simulated_overhead(factor * best, save_s, mtbf_s) for factor in (0.5, 1, 2)}
    shown = ", ".join(f"{100 * share:.2f} % at {factor:g} of it" for factor, share in waste.items())
    return (
        decided(
            "ch26.young_daly",
            waste[1] < min(waste[0.5], waste[2]),
            f"200,000 simulated intervals at {best / HOUR:.2f} h lose {shown}",
            statement="sqrt(2 delta M) is best",
        ),
    )


EXPERIMENT = Question(
    name="ch37_checkpoint",
    chapter=37,
    question="How often should a run save a checkpoint?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
)
