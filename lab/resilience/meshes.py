"""Meshes that remain when devices are lost, and which of the old devices they are made of."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lab.meshes.axes import DATA, FSDP, Axes
from lab.meshes.targets import Target
from lab.resilience.loss import holding

OF_REPLICAS = frozenset({DATA, FSDP, "dp", "zero", "replica", "replicas", "batch"})
"""Names of axes along which devices do the same with other sequences."""


@dataclass(frozen=True)
class Remaining:
    """A mesh, and the part of the machine that it takes."""

    axes: Axes
    target: Target


def replica_axes(axes: Axes, of_batch: Sequence[str]) -> tuple[str, ...]:
    """The axes that may shrink first: by their names, else those that split the batch, else all."""
    named = tuple(name for name in axes.names if name.lower() in OF_REPLICAS)
    return named or tuple(name for name in axes.names if name in of_batch) or axes.names


def remaining_meshes(axes: Axes, first: Collection[str], target: Target, devices: int) -> list[Remaining]:
    """Meshes with one axis smaller, on at most so many devices, the largest first: an axis of `first` cut down to what
    fits, or to a divisor; another one only where none of those will do.

    Args:
      target: of the mesh as it was.
    """
    found = _with_smaller(axes, first, target, devices)
    return found or _with_smaller(axes, set(axes.names).difference(first), target, devices)


def other_splits(axes: Axes, first: Collection[str]) -> list[Axes]:
    """Meshes of as many devices with an axis of `first` smaller by its least factor, and another one as much larger."""
    pairs = [(name, to) for name in axes.names if name in first and axes[name] > 1 for to in axes.names if to != name]
    least = {name: next(n for n in range(2, axes[name] + 1) if axes[name] % n == 0) for name, _ in pairs}
    return [
        Axes.of(axes.shape | {name: axes[name] // least[name], to: axes[to] * least[name]})
        for name, to in sorted(pairs, key=lambda pair: pair[1] in first)
    ]


def _with_smaller(axes: Axes, names: Collection[str], target: Target, devices: int) -> list[Remaining]:
    meshes = [
        Axes.of(axes.shape | {name: size})
        for name in axes.names
        if name in names
        for size in _sizes(axes[name], devices * axes[name] // axes.size)
    ]
    fitting = [Remaining(mesh, part) for mesh in meshes if (part := holding(target, mesh.size)) is not None]
    return sorted(fitting, key=lambda one: -one.axes.size)


def _sizes(size: int, most: int) -> Iterator[int]:
    """What fits, and divisors that do."""
    yield from sorted(
        {n for n in range(1, min(size - 1, most) + 1) if n == min(size - 1, most) or size % n == 0}, reverse=True
    )


def kept_devices(before: Axes, after: Axes, lost: np.ndarray) -> np.ndarray:
    """Which device of the old mesh each of the new one is, by positions: along the axis that shrinks, coordinates
    without a lost device, as long as there are enough; else survivors in their order.

    Returns:
      [devices of `after`].
    """
    coordinates = np.array(np.unravel_index(lost, before.sizes))
    positions = np.arange(before.size).reshape(before.sizes)
    for at, name in enumerate(before.names):
        if after[name] < before[name]:
            whole = np.setdiff1d(np.arange(before[name]), coordinates[at])
            if whole.size < after[name]:
                return np.setdiff1d(np.arange(before.size), lost)[: after.size]
            positions = positions.take(whole[: after[name]], axis=at)
    return positions.ravel()
