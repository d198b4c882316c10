"""The axes of a mesh as names and sizes, in the order of `mesh.devices`: pure NumPy, no device.

A position counts devices in row-major order, as `mesh.devices.flat` does: the last axis varies fastest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from lab.meshes.errors import UsageError, no_such
from lab.meshes.picture import mesh_svg

DATA, FSDP, PIPE, CONTEXT, TENSOR, EXPERT = AXIS_ORDER = ("data", "fsdp", "pipe", "context", "tensor", "expert")
"""The lab's axes, in the order in which its meshes have them: replicas outermost, then towards the fastest links."""
REPLICA = "replica"
"""Copies of a training that meet now and then: outside of all other axes, between TPU slices or hosts."""

_NAME = re.compile(r"[^\s,=+?\[\]'\"]+")
"""JAX takes any name; these signs stand between names where axes are written: `data=2,my-axis=4`, `data+my-axis`."""


@dataclass(frozen=True)
class Axes:
    """Ordered axis names and sizes.

    Raises:
      UsageError: a name twice, or one that text about axes cannot hold, or a size below one.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.sizes):
            raise UsageError(f"{len(self.names)} axis names and {len(self.sizes)} sizes; give one size for each name")
        for name, size in zip(self.names, self.sizes, strict=True):
            if not (isinstance(name, str) and _NAME.fullmatch(name) and name.isprintable()):
                raise UsageError(f"axis name {name!r}: expected text without spaces and , = + ? [ ] ' \"; rename it")
            if self.names.count(name) > 1:
                raise UsageError(f"axis {name!r} appears twice in {self}; name each axis once")
            if size < 1:
                raise UsageError(f"axis {name!r} has size {size}; expected 1 or more")

    @classmethod
    def of(cls, shape: Mapping[str, int]) -> Axes:
        return cls(tuple(shape), tuple(shape.values()))

    @classmethod
    def parse(cls, text: str) -> Axes:
        """`fsdp=16,tensor=8`, in the order of `mesh.devices`."""
        return cls(*_zipped(_axis(part, text) for part in text.split(",")))

    @property
    def size(self) -> int:
        return prod(self.sizes)

    @property
    def shape(self) -> dict[str, int]:
        return dict(zip(self.names, self.sizes, strict=True))

    def __getitem__(self, name: str) -> int:
        return self.sizes[self._index(name)]

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in zip(self.names, self.sizes, strict=True))

    def _repr_html_(self) -> str:
        return mesh_svg(self.shape)

    def ordered(self, names: Iterable[str]) -> tuple[str, ...]:
        """The given names in the mesh's order."""
        return tuple(sorted(set(names), key=self._index))

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Where position `rank` lies, one number an axis."""
        if not 0 <= rank < self.size:
            raise UsageError(
                f"position {rank} in a mesh of {self.size} devices ({self}); expected 0 to {self.size - 1}"
            )
        return tuple(int(i) for i in np.unravel_index(rank, self.sizes))

    def rank(self, coordinates: Iterable[int]) -> int:
        """The position at these coordinates: the inverse of `coordinates`."""
        place = tuple(coordinates)
        if len(place) != len(self.sizes) or not all(0 <= i < size for i, size in zip(place, self.sizes, strict=True)):
            raise UsageError(f"coordinates {place} in a mesh {self}; expected one number below the size for each axis")
        return int(np.ravel_multi_index(place, self.sizes)) if place else 0

    def groups(self, names: Iterable[str]) -> np.ndarray:
        """Positions that differ only along the named axes.

        Returns:
          [groups, members]: members in row-major order of the named axes, groups by their first member.
        """
        spanned = [self._index(name) for name in self.ordered(names)]
        kept = [i for i in range(len(self.names)) if i not in spanned]
        positions = np.arange(self.size).reshape(self.sizes)
        return positions.transpose(kept + spanned).reshape(-1, prod(self.sizes[i] for i in spanned))

    def split(self, name: str, parts: Mapping[str, int]) -> Axes:
        """One axis as several, in its place: every device keeps its position."""
        at = self._index(name)
        if prod(parts.values()) != self.sizes[at]:
            raise UsageError(
                f"axis {name}={self.sizes[at]} cannot be split into {dict(parts)}; their product must be "
                f"{self.sizes[at]}"
            )
        return Axes(
            self.names[:at] + tuple(parts) + self.names[at + 1 :],
            self.sizes[:at] + tuple(parts.values()) + self.sizes[at + 1 :],
        )

    def merge(self, names: Iterable[str], into: str) -> Axes:
        """Adjacent axes as one, in their place: every device keeps its position."""
        merged = self.ordered(names)
        first = self._index(merged[0]) if merged else 0
        last = first + len(merged)
        if not merged or self.names[first:last] != merged:
            raise UsageError(f"axes {', '.join(merged) or 'none'} are not adjacent in {self}; merge adjacent axes only")
        return Axes(
            (*self.names[:first], into, *self.names[last:]),
            (*self.sizes[:first], prod(self.sizes[first:last]), *self.sizes[last:]),
        )

    def _index(self, name: str) -> int:
        if name not in self.names:
            raise no_such("axis", name, self.names, where=" in the mesh")
        return self.names.index(name)


@dataclass(frozen=True)
class TypedAxes:
    """Axes of a mesh to make.

    Attributes:
      explicit: the axes of type Explicit, along which an array's type says how it is split; all others are Auto.
    """

    axes: Axes
    explicit: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> TypedAxes:
        """`data=2:explicit,tensor=4`.

        Raises:
          UsageError: as for `Axes.parse`, or another type.
        """
        parts = [part.strip().partition(":") for part in text.split(",")]
        for part, colon, kind in parts:
            if colon and kind not in ("auto", "explicit"):
                raise UsageError(
                    f"mesh {text!r}: axis {part} of type {kind!r}; expected explicit, or auto as by default"
                )
        axes = Axes.parse(",".join(part for part, _, _ in parts))
        return cls(
            axes, tuple(name for name, (_, _, kind) in zip(axes.names, parts, strict=True) if kind == "explicit")
        )


def _axis(part: str, text: str) -> tuple[str, int]:
    name, equals, size = part.strip().partition("=")
    if not (equals and re.fullmatch("[0-9]{1,9}", size.strip())):
        raise UsageError(f"mesh {text!r}: found {part.strip()!r}, expected NAME=SIZE,... such as fsdp=16,tensor=8")
    return name.strip(), int(size)


def _zipped(axes: Iterable[tuple[str, int]]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    names, sizes = zip(*axes, strict=True)
    return names, sizes
