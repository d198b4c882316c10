"""What any redistribution must send at the least: counted, not planned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from math import prod

import numpy as np

from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.redistribution.placement import Array, Placement


def least_bytes(before: Placement, after: Placement, array: Array, axes: Axes) -> Fraction:
    """Bytes that a device must send at the least, whatever the way.

    Elements: what the device which lacks most of its new block must receive.
    A partial sum of P summands, each element of which k devices are to have: P - 2 + k messages of an element, shared
    by all devices: P - 1 until the first device has the sum, and another for each further one (for k = P: Patarasu &
    Yuan 2009).

    Raises:
      UsageError: a placement does not fit the array or the mesh, or `after` is a partial sum.
    """
    if after.partial:
        raise UsageError(
            f"{before} to {after}: what a partial sum needs cannot be counted; give a placement without it"
        )
    summands = prod(axes[axis] for axis in before.partial)
    elements = (
        _least_to_sum(summands, after, array, axes)
        if summands > 1
        else Fraction(int(_lacking(before, after, array, axes).max()))
    )
    return elements * array.bytes_per_element


def least_bytes_together(changes: Iterable[tuple[Placement, Placement, Array]], axes: Axes) -> int:
    """The same of several arrays, none of them a partial sum: what the device must receive that lacks most of all of
    them together, which may be less than the sum of what each alone takes.

    Raises:
      UsageError: a placement does not fit its array or the mesh, or is a partial sum.
    """
    lacking = np.zeros(axes.size, int)
    for before, after, array in changes:
        if before.partial or after.partial:
            raise UsageError(f"{before} to {after}: found a partial sum, expected placements of whole arrays")
        lacking += array.bytes_per_element * _lacking(before, after, array, axes)
    return int(lacking.max())


def _least_to_sum(summands: int, after: Placement, array: Array, axes: Axes) -> Fraction:
    everywhere = axes.size * prod(after.local_shape(array, axes))
    return Fraction((summands - 2) * prod(array.shape) + everywhere, axes.size)


def _lacking(before: Placement, after: Placement, array: Array, axes: Axes) -> np.ndarray:
    """[devices], elements of the new block of a device that it does not hold."""
    held, needed = (ranges(placement, array, axes) for placement in (before, after))
    both = np.minimum(held[1], needed[1]) - np.maximum(held[0], needed[0])
    missing: np.ndarray = np.prod(needed[1] - needed[0], axis=-1) - np.prod(np.maximum(both, 0), axis=-1)
    return missing


@lru_cache(maxsize=1024)
def ranges(placement: Placement, array: Array, axes: Axes) -> np.ndarray:
    """First and last-plus-one index of every device's block: [2, devices, dims]."""
    local = np.array(placement.local_shape(array, axes), int)
    where = dict(zip(axes.names, np.indices(axes.sizes).reshape(len(axes.sizes), axes.size), strict=True))
    blocks = np.array([_block(dim, where, axes) for dim in placement.dims], int).reshape(len(local), axes.size)
    first = blocks.T * local
    return np.stack([first, first + local])


def _block(dim: Sequence[str], where: dict[str, np.ndarray], axes: Axes) -> np.ndarray:
    """Which block of a dim each device has: its coordinates along the dim's axes read as one number."""
    number = np.zeros(axes.size, int)
    for axis in dim:
        number = number * axes[axis] + where[axis]
    return number
