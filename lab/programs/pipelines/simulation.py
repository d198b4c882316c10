"""What a schedule costs in time, by simulation: it knows orders and dependencies, and no formula of `lab.book`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from lab.meshes.errors import UsageError
from lab.programs.pipelines.schedule import Schedule, Span, Task, Time, Work, spans

Seconds = Time | Sequence[Time] | Sequence[Sequence[Time]]


@dataclass(frozen=True)
class Durations:
    """How long a stage takes for one chunk of one micro-batch: a number for all, or one a stage, or for each stage one
    a chunk; in any unit of time.

    Attributes:
      backward: to the input's gradient.
      weight: to the weights' gradients, in a task of its own or as a part of the backward.
      both: of a forward and a whole backward that overlap; their sum where it is None.
      transfer: until a result can be used by another stage.
    """

    forward: Seconds = 1
    backward: Seconds = 1
    weight: Seconds = 0
    both: Time | None = None
    transfer: Time = 0


@dataclass(frozen=True)
class Timeline:
    """[stage][turn] of a schedule that was run from time 0."""

    schedule: Schedule
    rows: tuple[tuple[Span, ...], ...]

    @property
    def makespan(self) -> Time:
        return max(row[-1].end for row in self.rows)

    @property
    def busy(self) -> tuple[Time, ...]:
        """[stage]"""
        return tuple(sum(span.end - span.start for span in row) for row in self.rows)

    @property
    def idle_share(self) -> float:
        """Of the time of all stages from the first start to the last end."""
        return float(1 - sum(self.busy) / (self.makespan * len(self.rows)))

    @property
    def stage_spans(self) -> tuple[Time, ...]:
        """[stage], from its own first start to its own last end."""
        return tuple(row[-1].end - row[0].start for row in self.rows)


def simulate(schedule: Schedule, durations: Durations) -> Timeline:
    """Runs a schedule, each piece of work as soon as it can.

    Raises:
      Deadlock: it cannot be run.
      ValueError: durations of another number of stages or chunks.
      UsageError: durations whose step has no finite length.
    """
    table = {work: _table(schedule, seconds) for work, seconds in _by_work(durations).items()}

    def lasts(stage: int, task: Task) -> Time:
        if task.beside and durations.both is not None:
            return durations.both
        return sum(_alone(schedule, stage, part, table) for part in task.parts)

    timeline = Timeline(schedule, spans(schedule, lasts, durations.transfer))
    if not isfinite(timeline.makespan * schedule.stages):
        found = (
            f"forward={durations.forward}, backward={durations.backward}, weight={durations.weight}, "
            f"transfer={durations.transfer}"
        )
        raise UsageError(
            f"{schedule.name}: {found}: the length of the step overflows a float; expected durations whose step is "
            "finite"
        )
    return timeline


def _by_work(durations: Durations) -> dict[Work, Seconds]:
    return {Work.FORWARD: durations.forward, Work.BACKWARD: durations.backward, Work.WEIGHT: durations.weight}


def _table(schedule: Schedule, seconds: Seconds) -> list[list[Time]]:
    """[stage][chunk]"""
    given = np.asarray(seconds, dtype=object)
    return np.broadcast_to(given[:, None] if given.ndim == 1 else given, (schedule.stages, schedule.chunks)).tolist()


def _alone(schedule: Schedule, stage: int, task: Task, table: dict[Work, list[list[Time]]]) -> Time:
    both_gradients = task.work is Work.BACKWARD and not schedule.is_split(stage, task)
    works = (Work.BACKWARD, Work.WEIGHT) if both_gradients else (task.work,)
    return sum(table[work][stage][task.chunk] for work in works)
