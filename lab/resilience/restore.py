"""What a restart on another mesh must move: what devices still have, what others have, and what nobody has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np

from lab.meshes.axes import Axes
from lab.redistribution.bound import ranges
from lab.redistribution.placement import Array, Placement


@dataclass(frozen=True)
class StateArray:
    """An array that a step takes and gives back, as it lies on a mesh."""

    name: str
    array: Array
    placement: Placement

    def local_bytes(self, axes: Axes) -> int:
        return prod(self.placement.local_shape(self.array, axes)) * self.array.bytes_per_element


@dataclass(frozen=True)
class Restore:
    """Least bytes of a restore.

    Attributes:
      state: of all arrays, each element once.
      gone: of these, what only lost devices had, each element once: it comes from the store or from copies.
      held: that the devices of the new mesh need and have already, all together.
      from_peers: that they need and other survivors have, all together.
      most_from_peers: by the device that needs most.
      most_gone: of what is gone, by the device that needs most.
    """

    state: int
    gone: int
    held: int
    from_peers: int
    most_from_peers: int
    most_gone: int


def restore(
    changes: Iterable[tuple[StateArray, StateArray]], before: Axes, after: Axes, kept: np.ndarray, lost: np.ndarray
) -> Restore:
    """The least that must move for every array, as it lay and as it is to lie.

    Args:
      kept: the old position of each device of the new mesh.
      lost: old positions that are gone; who is neither kept nor lost still gives what it has.
    Raises:
      UsageError: a placement does not fit its array or its mesh.
    """
    survives = np.ones(before.size, bool)
    survives[lost] = False
    state = gone = 0
    held, missing, absent = (np.zeros(after.size, int) for _ in range(3))
    for old, new in changes:
        size = old.array.bytes_per_element
        blocks, wanted = _blocks(old, before), _blocks(new, after)
        extents = old.placement.local_shape(old.array, before)
        overlaps = [
            _overlap(total, parts, new_parts)
            for total, parts, new_parts in zip(old.array.shape, blocks.parts, wanted.parts, strict=True)
        ]
        is_gone = np.ones(blocks.parts, bool)
        is_gone[tuple(blocks.of_device[survives].T)] = False
        of_new = is_gone.astype(int)
        for overlap in overlaps:  # The first dim goes, its overlap with the new blocks comes last.
            of_new = np.tensordot(of_new, overlap, axes=(0, 0))
        lacks = of_new[tuple(wanted.of_device.T)]
        has = np.ones(after.size, int)
        for dim, overlap in enumerate(overlaps):
            has *= overlap[blocks.of_device[kept, dim], wanted.of_device[:, dim]]
        needs = prod(new.placement.local_shape(new.array, after))
        state += old.array.bytes
        gone += int(is_gone.sum()) * prod(extents) * size
        held += size * has
        absent += size * lacks
        missing += size * (needs - has - lacks)
    return Restore(
        state, gone, int(held.sum()), int(missing.sum()), int(missing.max(initial=0)), int(absent.max(initial=0))
    )


@dataclass(frozen=True)
class _Blocks:
    """How an array is cut: into so many parts along each dim; [devices, dims], which part each device has."""

    parts: tuple[int, ...]
    of_device: np.ndarray


def _blocks(one: StateArray, axes: Axes) -> _Blocks:
    local = one.placement.local_shape(one.array, axes)
    parts = tuple(size // max(1, part) for size, part in zip(one.array.shape, local, strict=True))
    return _Blocks(parts, ranges(one.placement, one.array, axes)[0] // np.maximum(1, np.array(local, int)))


def _overlap(size: int, parts: int, new_parts: int) -> np.ndarray:
    """[old parts, new parts], elements that they have in common along a dim."""
    old, new = np.arange(parts) * (size // parts), np.arange(new_parts) * (size // new_parts)
    ends = np.minimum(old[:, None] + size // parts, new + size // new_parts)
    found: np.ndarray = np.maximum(0, ends - np.maximum(old[:, None], new))
    return found
