"""Chapter 26: does a training that is killed at random instants go on from its newest checkpoint, to the bit?

Processes of one machine, joined by JAX over the loopback (gloo), train a small decoder and save all the time; they are
killed with SIGKILL, at any instant of a start, a step or a save.
"""

from __future__ import annotations

import signal
import statistics
import tempfile
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from lab.book.reliability import work_lost_s
from lab.harness.claim import Claim, decided
from lab.harness.question import Question, Row
from lab.meshes.axes import FSDP, TENSOR
from lab.resilience.kills import Life, detected_s, killed, uninterrupted
from lab.resilience.worker import Work

ELSEWHERE = f"{TENSOR}=4"
"""A mesh of one process."""
OTHER_MESH = 1e-5
"""Relative difference of losses on another mesh, in float32, where sums come in another order: as in trainings under
different layouts."""


@dataclass(frozen=True)
class Kills:
    """How often a training of several processes, one device each, is killed.

    Attributes:
      heartbeat_s: without a sign for so long JAX takes a process for dead; its default is 100.
    """

    times: int = 20
    processes: int = 2
    steps: int = 40
    every: int = 2
    heartbeat_s: int = 5
    seed: int = 0


@dataclass(frozen=True)
class Found:
    """What the lives came to; on another mesh the steps after a restore, as (loss, loss without a failure)."""

    lives: tuple[Life, ...]
    expected: dict[int, float]
    elsewhere: tuple[tuple[float, float], ...]
    after_kill_s: float
    after_stop_s: float

    @property
    def kills(self) -> tuple[Life, ...]:
        return tuple(life for life in self.lives if life.killed is not None)

    @property
    def restarts(self) -> tuple[Life, ...]:
        """Lives that had a commit to begin at, and lived long enough to say where they began."""
        return tuple(life for life in self.lives if life.newest and (life.of("restored") or life.of("damaged")))

    @property
    def losses(self) -> tuple[tuple[float, float], ...]:
        return tuple((loss, self.expected[step]) for life in self.lives for step, loss in life.losses.items())

    @property
    def holds(self) -> bool:
        return (
            all(life.is_at_newest and not life.hung for life in self.lives)
            and all(loss == expected for loss, expected in self.losses)
            and bool(self.restarts)
        )

    @property
    def on_another_mesh(self) -> float:
        return max(abs(loss / expected - 1) for loss, expected in self.elsewhere)


@lru_cache(maxsize=4)
def measured(assumed: Kills) -> Found:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        work = Work(
            root / "killed",
            f"{FSDP}={assumed.processes}",
            assumed.processes,
            assumed.steps,
            assumed.every,
            assumed.heartbeat_s,
            root / "cache",
        )
        whole = replace(work, folder=root / "whole")
        expected = dict(uninterrupted(whole))
        lives = killed(work, assumed.times, assumed.seed)
        signalled = replace(work, steps=100_000, every=100_000)
        after_kill_s = detected_s(replace(signalled, folder=root / "kill"), signal.SIGKILL)
        after_stop_s = detected_s(replace(signalled, folder=root / "stop"), signal.SIGSTOP)
        return Found(lives, expected, _elsewhere(whole, expected), after_kill_s, after_stop_s)


def _elsewhere(whole: Work, expected: dict[int, float]) -> tuple[tuple[float, float], ...]:
    """Half of the steps again, from what several processes saved, by one process on a mesh of another axis."""
    steps = whole.steps // 2 // whole.every * whole.every
    uninterrupted(replace(whole, folder=whole.folder / "half", steps=steps))
    other = replace(whole, folder=whole.folder / "half", processes=1, axes=ELSEWHERE)
    return tuple((loss, expected[step]) for step, loss in uninterrupted(other).items())


def answer(assumed: Kills) -> tuple[Row, ...]:
    found = measured(assumed)
    lost = [life.lost_s for life in found.kills if life.lost_s is not None]
    between = [b.at - a.at for life in found.lives for a, b in pairwise(life.of("saving"))]
    restarts, steps = len(found.restarts), len(found.losses)
    return (
        Row("kills", len(found.kills), predicted=assumed.times),
        Row("of these while a checkpoint was written", sum(life.while_saving for life in found.kills)),
        Row("of these before the first step", sum(not life.losses for life in found.kills)),
        Row("restarts from a checkpoint", restarts),
        Row("of these at the newest commit", sum(life.is_at_newest for life in found.restarts), "", restarts),
        Row("damaged checkpoints loaded", sum(bool(life.of("damaged")) for life in found.lives), predicted=0),
        Row("hangs of over a minute", sum(life.hung for life in found.lives), predicted=0),
        Row("steps with a loss", steps),
        Row("equal to those without a failure, to the bit", sum(a == b for a, b in found.losses), "", steps),
        Row(f"largest difference on {ELSEWHERE} in one process", found.on_another_mesh),
        Row("a process ends after another was killed", found.after_kill_s, "s"),
        Row("a process ends after another hangs", found.after_stop_s, "s", predicted=float(assumed.heartbeat_s)),
        Row("from a start to the restored state", _median(found.restarts, "restored"), "s"),
        Row("from a start to the first step", _median(found.restarts, "step"), "s"),
        *_lost(lost, between),
    )


def _lost(lost: list[float], between: list[float]) -> tuple[Row, ...]:
    """A save begins when the one before it is committed, so that it takes as long to write as lies between two."""
    if not (lost and between):
        return ()
    interval_s = float(np.mean(between))
    return (
        Row("between two saves", interval_s, "s"),
        Row("work lost by a kill, mean", float(np.mean(lost)), "s", predicted=work_lost_s(interval_s, interval_s)),
    )


def _median(lives: tuple[Life, ...], what: str) -> float:
    return statistics.median([life.of(what)[0].at - life.began for life in lives if life.of(what)] or [np.nan])


def claims(assumed: Kills) -> tuple[Claim, ...]:
    found = measured(assumed)
    writing = sum(life.while_saving for life in found.kills)
    return (
        decided(
            "ch26.consistency",
            found.holds,
            f"{len(found.kills)} kills, {writing} of them while a checkpoint was written: {len(found.restarts)} "
            f"restarts at the newest commit, {len(found.losses)} losses equal to those without a failure to the bit",
            statement="resuming reproduces the uninterrupted trajectory",
        ),
        decided(
            "ch26.consistency",
            found.on_another_mesh <= OTHER_MESH,
            f"{len(found.elsewhere)} steps after a restore on another mesh: losses differ by "
            f"{found.on_another_mesh:.1e}, at most {OTHER_MESH:.0e} expected",
            statement="on another mesh the losses are the same within the rounding of float32",
        ),
    )


EXPERIMENT = Question(
    name="ch26_kill",
    chapter=26,
    question="Does a training that is killed at random instants go on from its newest checkpoint, to the bit?",
    parameters=Kills(),
    answer=answer,
    claims=claims,
    is_quick=False,
)
