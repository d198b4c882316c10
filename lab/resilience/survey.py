"""What a compiled step says of a restart: its state and where that lies, its memory, its time, and its batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod

from lab.core.room import Room
from lab.diagnosis.holding import BATCH, kinds
from lab.diagnosis.kinds.memory import out_of_memory
from lab.diagnosis.program import Argument, Program
from lab.hlo.shapes import arrays
from lab.measure.prediction import predicted
from lab.measure.step_time import Taken
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.redistribution.placement import Array, Placement
from lab.resilience.restore import StateArray


@dataclass(frozen=True)
class Survey:
    """One step on one mesh.

    Attributes:
      unplaced: arrays of the state whose placement the compiled text does not tell.
      peak: bytes of a device; fits: None where nobody knows.
      lever: what to do where it does not fit.
      step_s: predicted; None where no rates say it, or only in part.
      batch: elements of the largest argument that is no state.
      batch_axes: that split it.
    """

    state: tuple[StateArray, ...]
    unplaced: tuple[str, ...]
    peak: int | None
    fits: bool | None
    lever: str
    step_s: float | None
    batch: int
    batch_axes: tuple[str, ...]


def surveyed(program: Program, by_trip: Sequence[Collection[Taken]] = ()) -> Survey:
    """State is what is donated, or has the shape of a result of its own and is no batch by its name.

    Args:
      by_trip: see `lab.measure.prediction.predicted`.
    """
    axes = program.axes or Axes.of({"devices": 1})
    state = _state(program)
    others = [a for a in program.arguments if a.number not in {one.number for one in state}]
    batch = max(others, key=lambda a: prod(a.whole(axes)), default=None)
    placed = {a.name: _placed(a, axes) for a in state}
    memory, room = program.ledger.memory, Room.of(program.target)
    peak = memory.peak if memory else None
    too_much = next(out_of_memory(program), None)
    return Survey(
        tuple(one for one in placed.values() if one),
        tuple(name for name, one in placed.items() if one is None),
        peak,
        room.fits(peak) if room and peak is not None else None,
        too_much.advice if too_much else "",
        _step_s(program, by_trip),
        prod(batch.whole(axes)) if batch else 0,
        tuple(name for names in batch.dims or () for name in names) if batch else (),
    )


def _state(program: Program) -> list[Argument]:
    donated = program.aliased | program.donors
    root = program.module.entry.root if program.module.entry else None
    free = Counter(arrays(root.shape) if root else ())
    free.subtract(a.local for a in program.arguments if a.number in donated)
    found, kind_of = [], kinds(program)
    for a in program.arguments:
        is_given_back = kind_of[a.number] != BATCH and free[a.local] > 0
        if a.number in donated or is_given_back:
            found.append(a)
            free[a.local] -= a.number not in donated
    return found


def _placed(a: Argument, axes: Axes) -> StateArray | None:
    if a.dims is None and axes.size > 1:
        return None
    dims = (*(a.dims or ()), *[()] * len(a.local.dims))[: len(a.local.dims)]
    try:
        return StateArray(a.name, Array(a.whole(axes), a.local.dtype), Placement(dims))
    except UsageError:
        return None


def _step_s(program: Program, by_trip: Sequence[Collection[Taken]]) -> float | None:
    try:
        found = predicted(program, by_trip)
    except UsageError:
        return None
    return found.time.total if found.is_known else None
