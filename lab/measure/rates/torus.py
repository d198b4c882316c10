"""Where the TPUs of a mesh stand in their torus, and which of its wires a group of them has.

A slice is closed to rings along each direction in which it is whole: of blocks of a cube that optical switches join, or
as wide as the pod.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np

from lab.meshes.axes import Axes
from lab.meshes.hardware import Pod
from lab.meshes.targets import Target, slice_axis


@dataclass(frozen=True)
class Line:
    """What a group spans of one direction: `chips`, each `stride` after the one before; `is_ring` where the last one
    is next to the first."""

    chips: int
    stride: int = 1
    is_ring: bool = False

    @property
    def links(self) -> float:
        """Of a chip, in one direction each, that carry a gather: both ways round a ring, and of a line the one way in
        which an end is reached. Groups that stand between one another share them."""
        return (2 if self.is_ring else 1) / self.stride

    @property
    def hops(self) -> int:
        """To the farthest."""
        return self.stride * (self.chips // 2 if self.is_ring else self.chips - 1)

    @property
    def crossing(self) -> float:
        """How often the buffer of a chip crosses the fullest link of an all-to-all: each half of a line sends half of
        what it has to the other one, over one cut, or two of a ring."""
        return self.stride * self.chips / (8 if self.is_ring else 4)


@dataclass(frozen=True)
class Torus:
    """Of one slice.

    Attributes:
      sides: chips along each direction.
      rings: the directions that are closed.
      stand: of each position of the mesh, its chip.
    """

    sides: tuple[int, ...]
    rings: tuple[bool, ...]
    stand: np.ndarray

    def lines(self, members: Sequence[int]) -> tuple[Line, ...]:
        """What a group spans; a single line where it is no box."""
        chips = np.unique(self.stand[list(members)], axis=0)
        spanned = [np.unique(along) for along in chips.T]
        if prod(len(places) for places in spanned) != len(chips):
            return (Line(len(chips)),)
        return tuple(
            _line(places, side, is_ring)
            for places, side, is_ring in zip(spanned, self.sides, self.rings, strict=True)
            if len(places) > 1
        )

    def on_a_chip(self, members: Sequence[int]) -> int:
        """How many of them share a chip."""
        return len(members) // len(np.unique(self.stand[list(members)], axis=0))

    def hops(self, source: int, target: int) -> tuple[int, ...]:
        """Along each direction, the shorter way."""
        apart = np.abs(self.stand[source] - self.stand[target])
        return tuple(
            int(min(gap, side - gap)) if is_ring else int(gap)
            for gap, side, is_ring in zip(apart, self.sides, self.rings, strict=True)
        )


def torus_of_coords(coords: Sequence[Sequence[int]], pod: Pod | None) -> Torus:
    """That of the devices of a mesh, which tell their coordinates."""
    stand = np.array(coords)[:, : len(pod.block) if pod else None]
    sides = tuple((stand.max(axis=0) + 1).tolist())
    return Torus(sides, rings(sides, pod), stand)


def torus_of(target: Target, axes: Axes) -> Torus:
    """That of a TPU target, with the mesh laid along its wires as JAX does where whole axes fit."""
    sides = target.shape
    return Torus(sides, rings(sides, target.hardware.pod), _stand(target, axes))


def rings(sides: Sequence[int], pod: Pod | None) -> tuple[bool, ...]:
    """Source: the Cloud TPU documentation; How to Scale Your Model, chapter on TPUs: cubes of 4 x 4 x 4 have
    wrap-around links, smaller slices of v4, v5p and 7x have none; v5e and v6e along sides of 16."""
    if pod is None:
        return (False,) * len(sides)
    block = (*pod.block, *[1] * len(sides))[: len(sides)]
    is_whole = [side % whole == 0 for side, whole in zip(sides, block, strict=True)]
    if pod.blocks > 1:
        return (len(sides) == len(pod.block) and all(is_whole),) * len(sides)
    return tuple(is_whole)


def _stand(target: Target, axes: Axes) -> np.ndarray:
    """[devices, directions]: each axis of the mesh along the first directions that it fills; where one fits none, all
    in the order of the devices."""
    a_chip = target.hardware.devices_per_chip
    sides = (*target.shape, a_chip)
    across = slice_axis(target.slices, axes) if target.slices > 1 else None
    inside = [size // (target.slices if name == across else 1) for name, size in axes.shape.items()]
    free, taken = list(range(len(sides))), list[tuple[int, ...]]()
    for size in reversed(inside):
        found = _filled(size, free, sides)
        if found is None:
            taken = [tuple(range(len(sides)))]
            inside = [prod(sides)]
            break
        taken.insert(0, found)
        free = [one for one in free if one not in found]
    order = [one for some in taken for one in some]
    order += [one for one in range(len(sides)) if one not in order]
    numbers = np.indices([sides[one] for one in order]).reshape(len(sides), -1)
    stand = numbers[np.argsort(order)].T[:, :-1]
    if across is None:
        return stand
    # Each slice has a run of the coordinates of one axis.
    in_slice = np.arange(prod(inside)).reshape(inside)
    at = axes.names.index(across)
    return (
        stand[np.concatenate([in_slice] * target.slices, axis=at).ravel()]
        if len(inside) == len(axes.names)
        else (np.concatenate([stand] * target.slices))
    )


def _filled(size: int, free: Sequence[int], sides: Sequence[int]) -> tuple[int, ...] | None:
    """Directions of which an axis takes all: the devices of a chip, the last, if it can, then as many as can be."""
    if size == 1:
        return ()
    many = [one for one in free if sides[one] > 1]
    tries = [some for count in range(len(many), 0, -1) for some in combinations(many, count)]
    tries.sort(key=lambda some: len(sides) - 1 not in some)
    return next((some for some in tries if prod(sides[one] for one in some) == size), None)


def _line(places: np.ndarray, side: int, is_ring: bool) -> Line:
    gaps = np.diff(places)
    stride = int(gaps.min())
    return Line(len(places), stride, bool(is_ring and (gaps == stride).all() and stride * len(places) == side))
