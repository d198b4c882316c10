"""Placements: how one array lies on a mesh. Pure Python, so that theory needs no JAX."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, pairwise, permutations
from math import prod
from typing import Any

from lab.core.dtypes import DTYPES
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError

Split = tuple[tuple[str, ...], ...]
"""For each dim the mesh axes that split it, major to minor."""


@dataclass(frozen=True)
class Array:
    """A global array: its shape and element type, as XLA names it.

    Raises:
      UsageError: another element type than those of `DTYPES`.
    """

    shape: tuple[int, ...]
    dtype: str = "f32"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype {self.dtype!r}: expected {', '.join(DTYPES)}")

    @classmethod
    def of(cls, x: Any) -> Array:
        """That of anything with a shape and a dtype: a JAX or NumPy array, a `ShapeDtypeStruct`."""
        name = str(x.dtype)
        return cls(tuple(x.shape), next((xla for xla, (numpy, _) in DTYPES.items() if numpy == name), name))

    @property
    def bytes_per_element(self) -> int:
        return DTYPES[self.dtype][1]

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.bytes_per_element


@dataclass(frozen=True)
class Placement:
    """An array on a mesh: whole over the axes that are not named.

    Attributes:
      dims: for each dim the axes that split it, major to minor.
      partial: axes over which the devices hold summands of the array instead of the array.
    Raises:
      UsageError: an axis is named twice.
    """

    dims: Split
    partial: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        named = [axis for axes in (*self.dims, tuple(self.partial)) for axis in axes]
        for axis in named:
            if named.count(axis) > 1:
                raise UsageError(f"placement {self}: axis {axis!r} appears twice; name each axis once")

    @classmethod
    def of(cls, *entries: str | Sequence[str] | None, partial: Iterable[str] = ()) -> Placement:
        """From the entries of a `PartitionSpec`, one for each dim: `Placement.of(("a", "b"), None)`."""
        dims = ((e,) if isinstance(e, str) else tuple(e or ()) for e in entries)
        return cls(tuple(dims), frozenset(partial))

    @property
    def entries(self) -> tuple[str | tuple[str, ...] | None, ...]:
        """Those of the `PartitionSpec`, which cannot tell a partial sum."""
        return tuple(axes if len(axes) > 1 else next(iter(axes), None) for axes in self.dims)

    @property
    def axes(self) -> frozenset[str]:
        """All that are named."""
        return self.partial.union(*self.dims)

    def local_shape(self, array: Array, axes: Axes) -> tuple[int, ...]:
        """What one device holds.

        Raises:
          UsageError: another number of dims, an axis that the mesh lacks, or a dim that does not divide.
        """
        if len(self.dims) != len(array.shape):
            raise UsageError(
                f"placement {self} has {len(self.dims)} dims and the array {len(array.shape)}; give one entry a dim"
            )
        for axis in self.axes:
            axes[axis]
        parts = [prod(axes[axis] for axis in dim) for dim in self.dims]
        for size, count, dim in zip(array.shape, parts, self.dims, strict=True):
            if size % count:
                raise UsageError(
                    f"placement {self}: {size} is not divisible by {'*'.join(dim)}={count}; make it a multiple of "
                    f"{count}"
                )
        return tuple(size // count for size, count in zip(array.shape, parts, strict=True))

    def fits(self, array: Array, axes: Axes) -> bool:
        return not any(
            size % prod(axes[axis] for axis in dim) for size, dim in zip(array.shape, self.dims, strict=True)
        )

    def __str__(self) -> str:
        spec = f"P({', '.join(_entry(dim) for dim in self.dims)})"
        return f"{spec} summed over {'+'.join(sorted(self.partial))}" if self.partial else spec


def _entry(axes: tuple[str, ...]) -> str:
    return f"({', '.join(axes)})" if len(axes) > 1 else "".join(axes) or "-"


def arrangements(axes: Iterable[str], dims: int) -> Iterator[Split]:
    """Every way to put all of these axes, in any order, on this many dims."""
    if dims == 0:
        yield from [] if set(axes) else [()]
        return
    for order in permutations(sorted(axes)):
        for cuts in combinations_with_replacement(range(len(order) + 1), dims - 1):
            yield tuple(order[i:j] for i, j in pairwise((0, *cuts, len(order))))
