"""Layouts: which mesh axes split which logical dims of all arrays of a program, as a value that composes with `|`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from jax.sharding import PartitionSpec

from lab.meshes.axes import AXIS_ORDER, Axes
from lab.meshes.errors import UsageError


@dataclass(frozen=True)
class Layout:
    """Rules "this axis splits this dim", without an order among them.

    So `|` is the union of two sets: associative, commutative and idempotent, with `Layout()`, replication, as its
    identity. Order enters only where a spec is written: axes that split one dim stand in the mesh's order, which is
    `AXIS_ORDER` unless one's own is given (`axes.names`).

    Attributes:
      rules: pairs of a logical dim and a mesh axis; a dim without a rule is whole on every device.
    """

    rules: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def of(cls, **axes_of_dims: str | tuple[str, ...]) -> Layout:
        """`Layout.of(batch=(DATA, FSDP), mlp=TENSOR)`."""
        named = {dim: (axes,) if isinstance(axes, str) else axes for dim, axes in axes_of_dims.items()}
        return cls(frozenset((dim, axis) for dim, axes in named.items() for axis in axes))

    def __or__(self, other: Layout) -> Layout:
        return Layout(self.rules | other.rules)

    def axes_of(self, dim: str | None, order: Sequence[str] = AXIS_ORDER) -> tuple[str, ...]:
        """The axes that split `dim`, in the mesh's order.

        Raises:
          UsageError: several do, and `order` lacks one of them.
        """
        axes = [axis for named, axis in self.rules if named == dim]
        if len(axes) < 2:
            return tuple(axes)
        if strange := sorted(set(axes) - set(order)):
            known = ", ".join(order)
            raise UsageError(
                f"axis {strange[0]!r} splits dim {dim!r} and is not among the axes {known}; add it or give the mesh's "
                "own order"
            )
        return tuple(sorted(axes, key=order.index))

    def spec(self, *dims: str | None, order: Sequence[str] = AXIS_ORDER) -> PartitionSpec:
        """The `PartitionSpec` of an array with these dims; None is a dim without a name, never split.

        Raises:
          UsageError: one axis splits two of the dims.
        """
        axes = [self.axes_of(dim, order) for dim in dims]
        _check_used_once(dims, axes)
        return PartitionSpec(*(_entry(names) for names in axes))

    def local_shape(self, dims: Sequence[str | None], sizes: Sequence[int], axes: Axes) -> tuple[int, ...]:
        """What one device holds of an array with these dims and sizes.

        Raises:
          UsageError: one axis splits two of the dims, the mesh lacks an axis, or a size is no multiple of what splits
            it.
        """
        used = [self.axes_of(dim, axes.names) for dim in dims]
        _check_used_once(dims, used)
        return tuple(_share(dim, size, names, axes) for dim, size, names in zip(dims, sizes, used, strict=True))

    def __str__(self) -> str:
        return " | ".join(f"{dim}: {axis}" for dim, axis in sorted(self.rules)) or "replicated"


def _entry(names: tuple[str, ...]) -> str | tuple[str, ...] | None:
    return names if len(names) > 1 else next(iter(names), None)


def _check_used_once(dims: Sequence[str | None], axes: Iterable[tuple[str, ...]]) -> None:
    user: dict[str, str | None] = {}
    for dim, names in zip(dims, axes, strict=True):
        for name in names:
            if name in user:
                array = ", ".join(map(repr, dims))
                raise UsageError(
                    f"axis {name!r} splits both {user[name]!r} and {dim!r} of an array ({array}); drop one of the two "
                    "rules"
                )
            user[name] = dim


def _share(dim: str | None, size: int, names: tuple[str, ...], axes: Axes) -> int:
    parts = prod(axes[name] for name in names)
    if size % parts:
        split = "*".join(f"{name}={axes[name]}" for name in names)
        raise UsageError(f"dim {dim!r} of size {size} is not divisible by {split}; make it a multiple of {parts}")
    return size // parts
