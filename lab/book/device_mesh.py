"""Part VI: ranks, coordinates and process groups of a mesh, and what a change of layout sends (Ch. 23).

Sizes of axes are given outermost first: the last axis varies fastest.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import prod

import numpy as np

from lab.book.checks import count, finite, not_negative, positive, ratio, whole


def strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """Ranks between neighbours along each axis: the product of the sizes inside it. Source: Ch. 23, `ch23.mesh_map`."""
    _check_sizes(sizes)
    return tuple(prod(sizes[k + 1 :]) for k in range(len(sizes)))


def rank_of(coordinates: Sequence[int], sizes: Sequence[int]) -> int:
    """sum of i_k stride_k. Source: Ch. 23, `ch23.mesh_map`.

    Raises:
      ValueError: a coordinate that the mesh does not have.
    """
    if len(coordinates) != len(sizes) or not all(0 <= i < size for i, size in zip(coordinates, sizes, strict=True)):
        raise ValueError(f"coordinates={list(coordinates)}: expected one number below each of sizes={list(sizes)}")
    return sum(i * stride for i, stride in zip(coordinates, strides(sizes), strict=True))


def coordinates_of(rank: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """floor(rank / stride_k) mod d_k for each axis: the inverse of `rank_of`. Source: Ch. 23, `ch23.mesh_map`."""
    not_negative(rank=rank)
    return tuple(rank // stride % size for stride, size in zip(strides(sizes), sizes, strict=True))


def group_size(sizes: Sequence[int], axes: Sequence[int]) -> int:
    """Members of a group over the axes at these places: the product of their sizes. Source: Ch. 23,
    `ch23.composite_groups`."""
    _check_sizes(sizes)
    if not all(axis in range(len(sizes)) for axis in axes):
        raise ValueError(f"axes={list(axes)}: expected places in sizes={list(sizes)}, from 0 to {len(sizes) - 1}")
    return prod(sizes[axis] for axis in axes)


def group_count(sizes: Sequence[int], axes: Sequence[int]) -> int:
    """Disjoint groups over the axes at these places: the product of all other sizes. Source: Ch. 23,
    `ch23.group_bijection`."""
    return prod(sizes) // group_size(sizes, axes)


def groups(sizes: Sequence[int], axes: Sequence[int]) -> np.ndarray:
    """[groups, members] ranks over the axes at these places, members in the order of the mesh. Source: Ch. 23,
    `ch23.composite_groups`."""
    members, inside = group_size(sizes, axes), sorted(axes)
    outside = [axis for axis in range(len(sizes)) if axis not in inside]
    return np.arange(prod(sizes)).reshape(sizes).transpose(outside + inside).reshape(-1, members)


def process_groups(sizes: Sequence[int]) -> int:
    """N sum of 1 / d_k: groups over single axes, those of one member included. Source: Ch. 23, `ch23.group_count`."""
    _check_sizes(sizes)
    return sum(prod(sizes) // size for size in sizes)


def local_elements(shape: Sequence[int], splits: Sequence[int]) -> int:
    """Elements on one device of an array whose dims are split that many times. Source: Ch. 23, `ch23.local_shape`.

    Raises:
      ValueError: a dim that does not divide.
    """
    count(splits=np.asarray(splits))
    finite(shape=np.asarray(shape), splits=np.asarray(splits))
    for size, split in zip(shape, splits, strict=True):
        if size % split:
            raise ValueError(f"shape={list(shape)}: {size} is not divisible by {split} devices")
    return prod(size // split for size, split in zip(shape, splits, strict=True))


def resplit_wire_bytes(payload_bytes: int, ranks: int) -> Fraction:
    """(n - 1) / n^2 V bytes that one rank sends to split an array of V bytes by another dim: an n-th of a gather.

    Source: Ch. 23, `ch23.redistribution` as corrected (6-8:D-1).
    """
    finite(ranks=ranks)
    count(ranks=ranks)
    positive(payload_bytes=payload_bytes)
    return ratio((ranks - 1) * payload_bytes, ranks * ranks)


def domains_spanned(ranks: int, stride: int, ranks_per_domain: float, first: int = 0) -> int:
    """Nodes (or any domain of consecutive ranks) that the group first, first + stride, ... lies in.

    Source: Ch. 23, `ch23.topology_placement`; Ch. 25, `ch25.mesh_4d5d`.
    """
    finite(ranks=ranks)
    count(ranks=ranks, ranks_per_domain=ranks_per_domain)
    positive(stride=stride)
    not_negative(first=first)
    reached = (first + (ranks - 1) * stride) // ranks_per_domain - first // ranks_per_domain + 1
    return np.minimum(reached, ranks)


def free_degree(devices: int, specified: int) -> int:
    """N over the product of the specified degrees: what the first axis without one takes. Source: Ch. 23,
    `ch23.auto_mesh` as corrected (6-8:D-5).

    Raises:
      ValueError: the product does not divide the devices.
    """
    count(devices=devices)
    positive(specified=specified)
    if devices % specified:
        raise ValueError(f"devices={devices}: do not divide by the degrees' product specified={specified}")
    return devices // specified


def _check_sizes(sizes: Sequence[int]) -> None:
    whole(sizes=np.asarray(sizes))
    positive(sizes=np.asarray(sizes))
