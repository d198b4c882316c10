"""What any redistribution must send at the least: the elements that a device needs and does not hold. Counted, not planned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.redistribution.placement import Array, Placement
from meshes.axes import Axes
from meshes.errors import Unusable


def least_bytes(before: Placement, after: Placement, array: Array, axes: Axes) -> int:
    """Bytes that the device which lacks most of its new block must receive.

    Raises:
      Unusable: one of the two is a partial sum, of which no device holds any element.
    """
    if before.partial or after.partial:
        raise Unusable(f"{before} to {after}: elements of a partial sum cannot be counted; sum it up first")
    held, needed = (_ranges(placement, array, axes) for placement in (before, after))
    both = np.minimum(held[1], needed[1]) - np.maximum(held[0], needed[0])
    lacking = np.prod(needed[1] - needed[0], axis=-1) - np.prod(np.maximum(both, 0), axis=-1)
    return int(lacking.max()) * array.bytes_per_element


def _ranges(placement: Placement, array: Array, axes: Axes) -> np.ndarray:
    """First and last-plus-one index of every device's block: [2, devices, dims]."""
    local = placement.local_shape(array, axes)
    where = np.array([axes.coordinates(rank) for rank in range(axes.size)]).reshape(axes.size, len(axes.names))
    first = np.stack([_block(dim, where, axes) * size for dim, size in zip(placement.dims, local)], axis=-1)
    return np.stack([first, first + np.array(local)])


def _block(dim: Sequence[str], where: np.ndarray, axes: Axes) -> np.ndarray:
    """Which block of a dim each device has: its coordinates along the dim's axes read as one number."""
    number = np.zeros(len(where), int)
    for axis in dim:
        number = number * axes[axis] + where[:, axes.names.index(axis)]
    return number
