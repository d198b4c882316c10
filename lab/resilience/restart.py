"""Before a failure: which meshes remain, whether the step fits there, and what a restart takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Literal

import numpy as np

from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target
from lab.resilience.loss import Loss, remaining
from lab.resilience.meshes import kept_devices, remaining_meshes, replica_axes
from lab.resilience.restore import Restore, restore
from lab.resilience.survey import Survey
from lab.resilience.tiers import Machine, Plan, best, plans

SCHEMA: Final = "sharding-lab/restart/1"
MOST_COMPILED, MOST_TRIED = 2, 6


@dataclass(frozen=True)
class LeverJson:
    """A change of a step that does not fit, as compiled on the same devices: peak is null where it is refused."""

    change: str
    peak: int | None
    fits: bool


@dataclass(frozen=True)
class MeshJson:
    """A mesh after a loss.

    Attributes:
      refused: why the step does not build or compile on it; then the rest is null.
      fits: null where nobody knows the memory; lever: what to do where it does not fit.
      levers: what was compiled then, up to the first that fits.
      batch: over that before the loss; rate: work a second over that before, null where no rates say it.
      store_s: to load what is gone from the store.
    """

    mesh: Mapping[str, int]
    target: str
    devices: int
    idle: int
    refused: str | None = None
    peak: int | None = None
    fits: bool | None = None
    lever: str = ""
    step_s: float | None = None
    batch: float | None = None
    rate: float | None = None
    restore: Restore | None = None
    store_s: float | None = None
    plan: Plan | None = None
    levers: tuple[LeverJson, ...] = ()

    @property
    def can_go_on(self) -> bool:
        """It fits or nobody knows, or one of its levers does."""
        return self.refused is None and (self.fits is not False or any(lever.fits for lever in self.levers))


@dataclass(frozen=True)
class LossJson:
    """A loss, and the meshes that remain, those of most devices first."""

    loss: str
    lost: int
    meshes: tuple[MeshJson, ...]


@dataclass(frozen=True)
class RestartJson:
    """What `lab restart --json` prints. `unplaced`: state that is not counted, since its placement is not known."""

    schema: Literal["sharding-lab/restart/1"]
    source: str
    target: str
    before: MeshJson
    unplaced: tuple[str, ...]
    losses: tuple[LossJson, ...]


Compile = Callable[[Axes, Target], Survey]
Levers = Callable[[Axes, Target], Iterable[LeverJson]]


def restarts(
    source: str, axes: Axes, machine: Machine, losses: Sequence[Loss], compile: Compile, levers: Levers
) -> RestartJson:
    """Compiles the step on its mesh, and on a few of those that remain after each loss; a mesh once.

    Args:
      levers: changes of the step on a mesh where it does not fit, each compiled when it is asked for.

    Raises:
      UsageError: the step does not compile on its own mesh, or a loss is none of its machine.
    """
    lost = [one.lost(machine.target) for one in losses]
    whole, known = compile(axes, machine.target), dict[Axes, Survey | UsageError]()
    pulled = cache(lambda mesh, target: tuple(_until_one_fits(levers(mesh, target))))
    before = _surveyed(axes, machine.target, 0, whole, whole, machine)

    def tried(mesh: Axes, target: Target) -> Survey | UsageError:
        if mesh not in known:
            try:
                known[mesh] = compile(mesh, target)
            except UsageError as refusal:
                known[mesh] = refusal
        return known[mesh]

    found = []
    for loss, count in zip(losses, lost, strict=True):
        gone = np.arange(axes.size - count, axes.size)
        most = remaining(machine.target, count).devices or 0
        meshes = list[MeshJson]()
        for one in remaining_meshes(axes, replica_axes(axes, whole.batch_axes), machine.target, most)[:MOST_TRIED]:
            if sum(mesh.refused is None for mesh in meshes) == MOST_COMPILED:
                break
            idle, survey = axes.size - count - one.axes.size, tried(one.axes, one.target)
            if isinstance(survey, UsageError):
                shape, size = one.axes.shape, one.axes.size
                meshes.append(MeshJson(shape, str(one.target), size, idle, refused=" ".join(str(survey).split())))
                continue
            row = _surveyed(one.axes, one.target, idle, survey, whole, machine)
            old = {each.name: each for each in whole.state}
            pairs = [(old[each.name], each) for each in survey.state if each.name in old]
            moved = restore(pairs, axes, one.axes, kept_devices(axes, one.axes, gone), gone)
            tries = pulled(one.axes, one.target) if row.fits is False else ()
            meshes.append(replace(row, restore=moved, store_s=moved.gone / machine.store_bytes_per_s, levers=tries))
        found.append(LossJson(str(loss), count, tuple(meshes)))
    return RestartJson(SCHEMA, source, str(machine.target), before, whole.unplaced, tuple(found))


def _until_one_fits(levers: Iterable[LeverJson]) -> Iterator[LeverJson]:
    for lever in levers:
        yield lever
        if lever.fits:
            return


def _surveyed(axes: Axes, target: Target, idle: int, found: Survey, whole: Survey, machine: Machine) -> MeshJson:
    batch = found.batch / whole.batch if whole.batch else 1.0
    rate = batch * whole.step_s / found.step_s if whole.step_s and found.step_s else None
    of_device = sum(each.local_bytes(axes) for each in found.state)
    state = sum(each.array.bytes for each in found.state)
    plan = best(plans(replace(machine, target=target), state, of_device)) if state else None
    return MeshJson(
        axes.shape,
        str(target),
        axes.size,
        idle,
        peak=found.peak,
        fits=found.fits,
        lever=found.lever,
        step_s=found.step_s,
        batch=batch,
        rate=rate,
        plan=plan,
    )
