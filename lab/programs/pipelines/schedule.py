"""A pipeline's schedule as data: for each stage the order of its work. What that order needs, when it runs and what it
holds follow (Ch. 16)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, cycle, product

from lab.meshes.errors import UsageError

Time = float | Fraction
"""In any unit; fractions where results are compared exactly."""


class Work(StrEnum):
    """BACKWARD gives the gradient of the input, and that of the weights too where no WEIGHT of the same micro-batch and
    chunk follows."""

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHT = "W"


@dataclass(frozen=True)
class Task:
    """One piece of work on one micro-batch, through one of the stage's chunks of layers.

    Attributes:
      beside: work on another micro-batch that is done at the same time (DualPipe).
    """

    work: Work
    micro_batch: int
    chunk: int = 0
    beside: Task | None = None

    @property
    def parts(self) -> tuple[Task, ...]:
        """Itself alone, and what is beside it."""
        return (Task(self.work, self.micro_batch, self.chunk), *(self.beside.parts if self.beside else ()))

    def __str__(self) -> str:
        return "+".join(f"{part.work}{part.micro_batch}" + f".{part.chunk}" * (part.chunk > 0) for part in self.parts)


@dataclass(frozen=True)
class Span:
    """A task from its start to its end, in the unit of the durations given."""

    task: Task
    start: Time
    end: Time


class Deadlock(UsageError):
    """Stages that wait for one another for ever."""


@dataclass(frozen=True)
class Schedule:
    """The order of work on every stage. Chunk c of stage s is virtual stage c P + s; a micro-batch passes them all in
    that order.

    Attributes:
      orders: [stage][turn].
      is_two_way: chunk 1 is a second pipeline, from the last stage to the first, for the second half of the
        micro-batches (DualPipe).
    Raises:
      UsageError: a forward or a backward is missing, or any work is there twice or belongs to no micro-batch or chunk.
    """

    name: str
    stages: int
    micro_batches: int
    chunks: int
    orders: tuple[tuple[Task, ...], ...]
    is_two_way: bool = False

    def __post_init__(self) -> None:
        if min(self.stages, self.micro_batches, self.chunks) < 1 or len(self.orders) != self.stages:
            found = (
                f"{len(self.orders)} task orders for {self.stages} stages, {self.micro_batches} micro-batches, "
                f"{self.chunks} chunks"
            )
            raise UsageError(f"{self.name}: {found}; expected one task order per stage and at least one of each")
        for stage, order in enumerate(self.orders):
            self._each_once(stage, order)

    def _each_once(self, stage: int, order: tuple[Task, ...]) -> None:
        counts = Counter(part for task in order for part in task.parts)
        through = [Task(work, *way) for work, way in product((Work.FORWARD, Work.BACKWARD), self.ways)]
        may_be = {*through, *(Task(Work.WEIGHT, *way) for way in self.ways)}
        wrong = [task for task in through if task not in counts] + [
            task for task, count in counts.items() if count > 1 or task not in may_be
        ]
        if wrong:
            found = ", ".join(f"{counts[task]} times {task}" for task in wrong[:4])
            expected = "each forward and backward once, each weight gradient at most once"
            raise UsageError(
                f"{self.name}: stage {stage} runs {found}; expected {expected}, of {self.micro_batches} micro-batches "
                f"and {self.chunks} chunks"
            )

    @property
    def ways(self) -> list[tuple[int, int]]:
        """(micro-batch, chunk) of all that passes a stage."""
        if self.is_two_way:
            return [
                (micro_batch, int(2 * micro_batch >= self.micro_batches)) for micro_batch in range(self.micro_batches)
            ]
        return list(product(range(self.micro_batches), range(self.chunks)))

    @property
    def visits(self) -> int:
        """How often a micro-batch comes to a stage in each direction."""
        return 1 if self.is_two_way else self.chunks

    @cached_property
    def weights(self) -> frozenset[tuple[int, Task]]:
        """(stage, task) of every weight gradient that is put off."""
        everything = ((stage, part) for stage, order in enumerate(self.orders) for task in order for part in task.parts)
        return frozenset((stage, task) for stage, task in everything if task.work is Work.WEIGHT)

    @property
    def splits_backward(self) -> bool:
        return bool(self.weights)

    def is_split(self, stage: int, task: Task) -> bool:
        """Whether the weight gradient of a task's micro-batch and chunk comes after its backward."""
        return (stage, Task(Work.WEIGHT, task.micro_batch, task.chunk)) in self.weights

    def neighbour(self, stage: int, chunk: int, step: int) -> tuple[int, int] | None:
        """(stage, chunk) that a forward goes to (step 1) or comes from (step -1); None at the ends."""
        if self.is_two_way:
            stage += -step if chunk else step
            return (stage, chunk) if 0 <= stage < self.stages else None
        virtual = chunk * self.stages + stage + step
        return (virtual % self.stages, virtual // self.stages) if 0 <= virtual < self.stages * self.chunks else None


def needs(schedule: Schedule, stage: int, task: Task) -> Iterator[tuple[int, Task]]:
    """(stage, task) of all that has to end before a task of a stage starts."""
    for part in task.parts:
        if part.work is not Work.FORWARD:
            yield (
                stage,
                Task(Work.FORWARD if part.work is Work.BACKWARD else Work.BACKWARD, part.micro_batch, part.chunk),
            )
        if part.work is not Work.WEIGHT and (
            place := schedule.neighbour(stage, part.chunk, -1 if part.work is Work.FORWARD else 1)
        ):
            yield place[0], Task(part.work, part.micro_batch, place[1])


Lasts = Callable[[int, Task], Time]
Ended = dict[tuple[int, Task], Time]


def spans(schedule: Schedule, lasts: Lasts, transfer: Time = 0) -> tuple[tuple[Span, ...], ...]:
    """[stage][turn]: every stage does its work in its order, each piece as soon as what it needs has ended and, from
    another stage, has arrived.

    Args:
      lasts: (stage, task) to its duration.
      transfer: how much later another stage can use a result; nothing waits to send.
    Raises:
      Deadlock: some work can never start; the message names the stages and what each of them waits for.
    """
    rows: list[list[Span]] = [[] for _ in schedule.orders]
    ended: Ended = {}
    is_moving = True
    while is_moving:
        moved = [_advance(schedule, stage, rows[stage], ended, lasts, transfer) for stage in range(schedule.stages)]
        is_moving = any(moved)
    waiting = [
        (stage, order[len(rows[stage])]) for stage, order in enumerate(schedule.orders) if len(rows[stage]) < len(order)
    ]
    if waiting:
        what = ", ".join(
            f"stage {stage} waits before {task} for {_first_missing(schedule, stage, task, ended)}"
            for stage, task in waiting
        )
        raise Deadlock(
            f"{schedule.name} deadlocks: {what}; reorder the tasks of these stages so that none waits for another in "
            "a cycle"
        )
    return tuple(map(tuple, rows))


def _advance(schedule: Schedule, stage: int, row: list[Span], ended: Ended, lasts: Lasts, transfer: Time) -> bool:
    """Appends to a stage's row what can run by now; whether there was anything."""
    done = len(row)
    for task in schedule.orders[stage][done:]:
        needed = list(needs(schedule, stage, task))
        if any(need not in ended for need in needed):
            break
        arrived = [ended[place, part] + transfer * (place != stage) for place, part in needed]
        start = max([row[-1].end if row else 0, *arrived])
        row.append(Span(task, start, start + lasts(stage, task)))
        ended.update({(stage, part): row[-1].end for part in task.parts})
    return len(row) > done


def _first_missing(schedule: Schedule, stage: int, task: Task, ended: Ended) -> str:
    place, part = next(need for need in needs(schedule, stage, task) if need not in ended)
    return f"{part} of stage {place}"


def ticks(schedule: Schedule) -> tuple[tuple[Task | None, ...], ...]:
    """[tick][stage]: what each stage does when every task takes one tick, None where it waits; a result can be used a
    tick later, on any stage.

    Raises:
      Deadlock: as `spans`.
    """
    rows = [{span.start: span.task for span in row} for row in spans(schedule, lambda stage, task: 1)]
    return tuple(tuple(row.get(tick) for row in rows) for tick in range(1 + int(max(map(max, rows)))))


def ticks_in_lockstep(schedule: Schedule) -> tuple[tuple[Task | None, ...], ...]:
    """[tick][stage]: as `ticks`, but at a tick all stages do one kind of work, or wait: forwards, backwards and weight
    gradients in turn, those that some stage can do.

    Raises:
      Deadlock: as `spans`.
    """
    spans(schedule, lambda stage, task: 1)
    left, done, found = [list(reversed(order)) for order in schedule.orders], set[tuple[int, Task]](), []
    for work in cycle(Work):
        row = [
            order[-1]
            if order and order[-1].work is work and done.issuperset(needs(schedule, stage, order[-1]))
            else None
            for stage, order in enumerate(left)
        ]
        for stage, task in enumerate(row):
            if task:
                done.add((stage, left[stage].pop()))
        if any(row):
            found.append(tuple(row))
        if not any(left):
            return tuple(found)
    raise AssertionError


def in_flight(schedule: Schedule) -> tuple[int, ...]:
    """[stage]: the most micro-batches, counted once a chunk, that are forward and not yet backward, or not yet through
    the weight gradient that is put off."""
    return tuple(
        max(accumulate(_held(schedule, stage, part) for task in order for part in task.parts))
        for stage, order in enumerate(schedule.orders)
    )


def _held(schedule: Schedule, stage: int, task: Task) -> int:
    if task.work is Work.FORWARD:
        return 1
    last = Work.WEIGHT if schedule.is_split(stage, task) else Work.BACKWARD
    return -(task.work is last)
