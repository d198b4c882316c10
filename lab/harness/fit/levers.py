"""What of a training step may be changed to make it fit: parameters and degrees of its mesh, with which it computes the
same from the same batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from lab.harness.decoder.composed import ComposedShape
from lab.harness.experiment import Experiment
from lab.harness.settings import with_settings
from lab.meshes.axes import CONTEXT, DATA, FSDP, Axes
from lab.programs.composed.configuration import ZERO_STAGES, replicas
from lab.programs.models.shape import OFFLOAD, REMATS, DecoderShape


class Lever(StrEnum):
    REMAT = "remat"
    ATTENTION = "attention by tiles"
    MICRO_BATCHES = "micro-batches"
    SHARDING = "sharding of state"
    STATE_ON_HOST = "offload of state"


POLICIES = (*REMATS, OFFLOAD)
"""Of `remat`, each keeps less on the device than the one before."""


@dataclass(frozen=True)
class Change:
    """One setting of a lever.

    Attributes:
      settings: of `lab run --set`.
      axes: the whole mesh, where that is what changes.
    """

    lever: Lever
    settings: tuple[tuple[str, str], ...] = ()
    axes: Axes | None = None

    def __str__(self) -> str:
        """`remat=full`, or `mesh fsdp=16`."""
        mesh = [f"mesh {self.axes}"] if self.axes else []
        return " ".join([*mesh, *("=".join(setting) for setting in self.settings)])


def changed(parameters: Any, axes: Axes, changes: tuple[Change, ...]) -> tuple[Any, Axes]:
    """Raises UsageError of sizes that do not go together."""
    settings = dict(setting for change in changes for setting in change.settings)
    return with_settings(parameters, settings), next((change.axes for change in changes if change.axes), axes)


def levers(experiment: Experiment, parameters: Any, axes: Axes) -> dict[Lever, tuple[Change, ...]]:
    """Every setting beyond those that the step has, in which a layout may still refuse its sizes."""
    if not isinstance(parameters, DecoderShape):
        return dict.fromkeys(Lever, ())
    return {
        Lever.REMAT: tuple(
            Change(Lever.REMAT, (("remat", remat),)) for remat in POLICIES[POLICIES.index(parameters.remat) + 1 :]
        ),
        Lever.ATTENTION: (Change(Lever.ATTENTION, (("attention", "tiles"),)),) * _makes_all_scores(parameters, axes),
        Lever.MICRO_BATCHES: tuple(
            Change(Lever.MICRO_BATCHES, (("accumulation", str(parameters.accumulation * more)),))
            for more in _divisors(parameters.micro_batch)
        ),
        Lever.SHARDING: tuple(_sharded_further(parameters, axes)),
        Lever.STATE_ON_HOST: (),
    }


LACKING = {
    Lever.REMAT: "no policy keeps less, or none is to choose",
    Lever.ATTENTION: "it makes scores so already, or has no parameter for it",
    Lever.MICRO_BATCHES: "the batch does not divide into more, or its step has none",
    Lever.SHARDING: "its layout shards no more by ZeRO-1, ZeRO-2 or fsdp",
    Lever.STATE_ON_HOST: "no parameter moves master weights or moments to the host",
}
"""Why an experiment has no change of a lever."""


def _makes_all_scores(parameters: DecoderShape, axes: Axes) -> bool:
    """At once, where it could make them tile by tile."""
    is_open = isinstance(parameters, ComposedShape) and parameters.attention != "tiles"
    return is_open and axes.shape.get(CONTEXT, 1) == 1


def _divisors(n: int) -> list[int]:
    """But 1."""
    return [k for k in range(2, n + 1) if n % k == 0]


def _sharded_further(parameters: DecoderShape, axes: Axes) -> Iterator[Change]:
    """ZeRO-1 and 2 where that is a parameter; replicas that become shards, where the mesh says which is which."""
    zero = parameters.zero if isinstance(parameters, ComposedShape) else None
    if zero is None and FSDP not in axes.names:
        return
    if zero is not None and replicas(axes):
        for stage in ZERO_STAGES[zero + 1 :]:
            yield Change(Lever.SHARDING, (("zero", str(stage)),))
    of_data = axes.shape.get(DATA, 1)
    for shards in _divisors(of_data):
        mesh = _with_shards(axes, of_data // shards, shards, keeps_axis=zero is None)
        alone = (("zero", "0"),) if zero and not replicas(mesh) else ()
        yield Change(Lever.SHARDING, alone, mesh)


def _with_shards(axes: Axes, of_data: int, shards: int, keeps_axis: bool) -> Axes:
    """So many replicas less along `data` and more along `fsdp`, which comes next if it is new."""
    shape: dict[str, int] = {}
    for name, size in axes.shape.items():
        if name == DATA and (of_data > 1 or keeps_axis):
            shape[DATA] = of_data
        if name == DATA and FSDP not in axes.names:
            shape[FSDP] = shards
        if name != DATA:
            shape[name] = size * shards if name == FSDP else size
    return Axes.of(shape)
