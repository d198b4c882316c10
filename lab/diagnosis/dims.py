"""Where a dim of an array is after steps that lay the array out anew, and whether it is still a dim of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lab.hlo.shapes import arrays
from lab.hlo.text import Instruction

_LAYOUT = re.compile(r"\{(\d{1,9}(?:,\d{1,9})*)")


def followed(dim: int, shape: str, steps: Iterable[Instruction], is_outermost: bool = False) -> int | None:
    """Its position after the steps; None where one of them merges it with another dim or splits it.

    Args:
      shape: of the array before the steps, as XLA prints it, with its layout.
      steps: each the user of the one before, as `Use.path` gives them; those that do not lay out anew change nothing.
      is_outermost: follow it also where it is the outermost of dims that are merged: shards then stay what they are.
    """
    at: int | None = dim
    for step in steps:
        if step.opcode in ("reshape", "bitcast", "transpose", "copy", "convert") and at is not None:
            at = _after(at, shape, step, is_outermost)
            shape = step.shape
    return at


def outermost_part(dim: int, shape: str, step: Instruction) -> int | None:
    """Where shards of a dim are after a reshape or bitcast: the dim that has the same dims outside of it; None where
    there is none.

    Args:
      shape: of the array before the step, as XLA prints it, with its layout.
    """
    is_in_memory = step.opcode == "bitcast"
    outside: dict[int, int] = {}
    product = 1
    for at, size in _sizes(step.shape, is_in_memory):
        outside[product] = at
        product *= size
    product = 1
    for at, size in _sizes(shape, is_in_memory):
        if at == dim:
            return outside.get(product)
        product *= size
    return None


def _after(dim: int, shape: str, step: Instruction, is_outermost: bool) -> int | None:
    if step.opcode == "transpose":
        order = [int(number) for number in re.findall(r"\d{1,9}", step.braced("dimensions") or "")]
        return order.index(dim) if dim in order else None
    if step.opcode in ("copy", "convert"):
        return dim
    is_in_memory = step.opcode == "bitcast"
    return _aligned(dim, _sizes(shape, is_in_memory), _sizes(step.shape, is_in_memory), is_outermost)


def _sizes(shape: str, is_in_memory: bool) -> list[tuple[int, int]]:
    """(position, size) of each dim but those of 1, as they lie in memory or as they are counted."""
    dims = next((array.dims for array in arrays(shape)), ())
    layout = _LAYOUT.search(shape)
    minor_to_major = [int(number) for number in layout[1].split(",")] if layout else []
    is_ordered = is_in_memory and sorted(minor_to_major) == list(range(len(dims)))
    order = reversed(minor_to_major) if is_ordered else range(len(dims))
    return [(at, dims[at]) for at in order if dims[at] != 1]


def _aligned(dim: int, before: list[tuple[int, int]], after: list[tuple[int, int]], is_outermost: bool) -> int | None:
    """The position in `after` of the dim at `dim` of `before`: both lists of sizes are cut where products agree."""
    left, right = iter(before), iter(after)
    for at, size in left:
        first, group, number, other, product = at, {at}, 1, -1, 1
        while size != product:
            step = next(right, None) if product < size else next(left, None)
            if step is None:
                return None
            if product < size:
                other, product, number = step[0], product * step[1], number if product == 1 else 2
            else:
                group, size = group | {step[0]}, size * step[1]
        if dim in group:
            return other if number == 1 and (len(group) == 1 or (is_outermost and dim == first)) else None
    return None
