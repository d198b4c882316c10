"""A schedule as constant arrays: what each stage does at each tick, and where in its stash a message waits until it is
needed (Ch. 16)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from lab.meshes.errors import UsageError
from lab.programs.pipelines.schedule import Schedule, Task, Work, ticks, ticks_in_lockstep

NOWHERE = -1


class Job(IntEnum):
    """What a stage can do in a tick. BACKWARD gives the gradients of input and weights at once, the last two give one
    of them each."""

    IDLE = 0
    FORWARD = 1
    BACKWARD = 2
    INPUT_GRADIENT = 3
    WEIGHT_GRADIENT = 4

    @property
    def scope(self) -> str:
        """As programs name it."""
        return self.name.lower()


T = TypeVar("T")


class Row(NamedTuple, Generic[T]):
    """What a stage does at a tick, in numbers; in a table each field is an int32 array, [ticks, stages].

    Attributes:
      job: a number of `Job`.
      micro_batch, chunk: what it is done on, and with.
      input, cotangent: slots of the two stashes with the chunk's input and with the gradient of its output.
      new_input, new_cotangent: slots for what the neighbours sent at the end of the last tick; `NOWHERE` where they
        sent nothing.
      kept: slot of the stash for what the first half of a split backward leaves to the second.
    """

    job: T
    micro_batch: T
    chunk: T
    input: T
    cotangent: T
    new_input: T
    new_cotangent: T
    kept: T


class Table(NamedTuple):
    """Rows of all ticks and stages, and how many inputs, gradients of outputs and halves of backwards a stage needs
    room for.

    Attributes:
      is_in_lockstep: at a tick all stages do the same job; those that have none do it in vain.
    """

    rows: Row[np.ndarray]
    inputs: int
    cotangents: int
    kept: int
    is_in_lockstep: bool

    @property
    def ticks(self) -> int:
        return len(self.rows.job)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Those that some stage does at some tick."""
        return tuple(map(Job, np.unique(self.rows.job.max(1) if self.is_in_lockstep else self.rows.job)))

    @property
    def branches(self) -> np.ndarray:
        """[ticks, stages]: jobs as numbers among `jobs`."""
        job = np.broadcast_to(self.rows.job.max(1, keepdims=True), self.rows.job.shape)
        return np.searchsorted(self.jobs, job if self.is_in_lockstep else self.rows.job)

    def ticks_of(self, job: Job) -> int:
        """In which some stage does it."""
        return int((self.rows.job == job).any(1).sum())


class Message(NamedTuple):
    """What a neighbour or the stage itself leaves of one micro-batch and chunk, and the ticks of its arrival and of its
    last use."""

    way: tuple[int, int]
    arrives: int
    ends: int


Slots = dict[Message, int]


class Stash(NamedTuple):
    """Slots by the tick of the message's arrival, and by its way."""

    arriving: dict[int, int]
    of: dict[tuple[int, int], int]

    @classmethod
    def of_slots(cls, slots: Slots) -> Stash:
        return cls(
            {message.arrives: slot for message, slot in slots.items()},
            {message.way: slot for message, slot in slots.items()},
        )


def table_of(schedule: Schedule, is_in_lockstep: bool = False) -> Table:
    """The table of a schedule.

    Args:
      is_in_lockstep: stages that have nothing to do at a tick do what the others do, in vain: then all devices meet in
        every transfer of a job.
    Raises:
      Deadlock: some work can never start.
      UsageError: micro-batches go through the stages in both directions.
    """
    turns = (ticks_in_lockstep if is_in_lockstep else ticks)(one_way(schedule))
    stages = range(schedule.stages)
    when = {(stage, task): tick for tick, turn in enumerate(turns) for stage, task in enumerate(turn) if task}
    inputs, cotangents = (
        [_slots(_messages(schedule, when, stage, work)) for stage in stages] for work in (Work.FORWARD, Work.BACKWARD)
    )
    kept = [_slots(_halves(schedule, when, stage)) for stage in stages]
    stashes = [list(map(Stash.of_slots, of_stage)) for of_stage in zip(inputs, cotangents, kept, strict=True)]
    rows = [
        [_row(schedule, stage, tick, turn[stage], *stashes[stage]) for stage in stages]
        for tick, turn in enumerate(turns)
    ]
    fields = np.moveaxis(np.array(rows, np.int32), -1, 0)
    room = _room(inputs, least=1), _room(cotangents, least=1), _room(kept, least=0)
    return Table(Row(*fields), *room, is_in_lockstep)


def one_way(schedule: Schedule) -> Schedule:
    """The schedule; raises UsageError where micro-batches go through the stages in both directions."""
    if schedule.is_two_way:
        raise UsageError(
            f"{schedule.name}: its micro-batches go through the stages in both directions; expected one direction: "
            "use 1f1b or zb_h1"
        )
    return schedule


def _messages(schedule: Schedule, when: dict[tuple[int, Task], int], stage: int, work: Work) -> Iterator[Message]:
    """All inputs that a stage receives from forwards, or all gradients of outputs from backwards."""
    for way in schedule.ways:
        if sender := schedule.neighbour(stage, way[1], -1 if work is Work.FORWARD else 1):
            yield Message(
                way, 1 + when[sender[0], Task(work, way[0], sender[1])], when[stage, Task(Work.BACKWARD, *way)]
            )


def _halves(schedule: Schedule, when: dict[tuple[int, Task], int], stage: int) -> Iterator[Message]:
    """What split backwards leave to their second halves."""
    for way in schedule.ways:
        if schedule.is_split(stage, Task(Work.BACKWARD, *way)):
            yield Message(way, when[stage, Task(Work.BACKWARD, *way)], when[stage, Task(Work.WEIGHT, *way)])


def _room(stash: list[Slots], least: int) -> int:
    """For the stage that fills most slots."""
    return max((1 + slot for slots in stash for slot in slots.values()), default=least)


def _slots(messages: Iterable[Message]) -> Slots:
    """The lowest free slot for each message, in the order of their arrival: as few slots as messages wait at once."""
    free_from: list[int] = []
    slots = {}
    for message in sorted(messages, key=lambda m: m.arrives):
        free = (slot for slot, since in enumerate(free_from) if since <= message.arrives)
        slot = slots[message] = next(free, len(free_from))
        free_from[slot : slot + 1] = [message.ends + 1]
    return slots


def _row(schedule: Schedule, stage: int, tick: int, task: Task | None, *stashes: Stash) -> Row[int]:
    new_input, new_cotangent = (stash.arriving.get(tick, NOWHERE) for stash in stashes[:2])
    if task is None:
        return Row(Job.IDLE, 0, 0, 0, 0, new_input, new_cotangent, 0)
    # The first chunk of all receives no input, the last one no gradient of its output: they read some slot, and use
    # nothing of it.
    way = task.micro_batch, task.chunk
    input, cotangent, kept = (stash.of.get(way, 0) for stash in stashes)
    return Row(_job(schedule, stage, task), *way, input, cotangent, new_input, new_cotangent, kept)


def _job(schedule: Schedule, stage: int, task: Task) -> Job:
    if task.work is Work.BACKWARD:
        return Job.INPUT_GRADIENT if schedule.is_split(stage, task) else Job.BACKWARD
    return Job.FORWARD if task.work is Work.FORWARD else Job.WEIGHT_GRADIENT


def to_do(schedule: Schedule, is_in_lockstep: bool = False) -> list[list[int]]:
    """[stages, jobs]: how often a stage has to do each job: as its order says, and idle for the rest of the ticks, but
    not in lockstep."""
    counts = [Counter(_job(schedule, stage, task) for task in order) for stage, order in enumerate(schedule.orders)]
    T = 0 if is_in_lockstep else len(ticks(schedule))
    return [[max(0, T - count.total()), *(count[job] for job in Job if job)] for count in counts]
