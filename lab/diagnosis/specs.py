"""Shardings as XLA prints them, in the words of the user's mesh: `devices=[2,1,4]<=[4,2]T(1,0)` is P('y', None,
'x')."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import takewhile
from math import prod

import numpy as np

from lab.meshes.axes import Axes

_TILES = re.compile(r"devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))")
_MESH = re.compile(r"mesh\[([^\]]*)\](?:,\s*device_ids=\([^)]*\)+)?,\s*\[(.*?)\](?:[,}]|$)")
_SIZE = re.compile(r"'?([^\s,='\"]+)'?=(\d+)")

Dims = tuple[tuple[str, ...], ...]
"""For each dim of an array, the axes that split it."""


@lru_cache(maxsize=1 << 12)
def axes_of_dims(sharding: str, axes: Axes) -> Dims | None:
    """Which axes split each dim; () where the array is whole on every device, None where the sharding is of another
    mesh or not understood."""
    try:
        if tiles := _TILES.search(sharding):
            found = _from_tiles(tiles, "last_tile_dim_replicate" in sharding, axes)
        elif named := _MESH.search(sharding):
            found = _from_names(named[1], named[2], axes)
        else:
            found = () if "replicated" in sharding else None
    except (ValueError, ArithmeticError, LookupError):  # Numbers that do not fit each other, in a damaged text.
        return None
    return found if found is None or any(found) else ()


def spec_text(dims: Dims) -> str:
    """`P('y', None, ('x', 'z'))`."""
    return "P(" + ", ".join("None" if not d else repr(d[0]) if len(d) == 1 else repr(d) for d in dims) + ")"


def most_alike(name: str, others: Sequence[str]) -> int:
    """Which of other names ends as this one does: `state[0]['w']` of those that `result[1]['w']` may belong to."""

    def common(other: str) -> int:
        ends = zip(reversed(name), reversed(other), strict=False)
        return len(list(takewhile(lambda pair: pair[0] == pair[1], ends)))

    return max(range(len(others)), key=lambda at: common(others[at]))


def without(dims: Dims, axes: Sequence[str]) -> Dims:
    """The same, no dim split over these axes."""
    return tuple(tuple(name for name in names if name not in axes) for names in dims)


def _from_tiles(found: re.Match[str], is_partly_replicated: bool, axes: Axes) -> Dims | None:
    sizes, iota, order, listed = (_numbers(group) for group in found.groups())
    if prod(sizes) != axes.size:
        return None
    ids = (
        np.array(listed)
        if listed
        else np.arange(axes.size).reshape(iota).transpose(order or range(len(iota))).reshape(-1)
    )
    if sorted(ids) != list(range(axes.size)):
        return None
    tile_of = np.empty((axes.size, len(sizes)), int)
    tile_of[ids] = np.stack(np.unravel_index(np.arange(axes.size), sizes), -1)
    tile_of = tile_of[:, : len(sizes) - is_partly_replicated].reshape(*axes.sizes, -1)
    return split_by(tile_of, axes)


def split_by(tile_of: np.ndarray, axes: Axes) -> Dims:
    """From the tile of every mesh position to the axes of every dim, the one with the longest stride first."""
    split: list[list[tuple[int, str]]] = [[] for _ in range(tile_of.shape[-1])]
    for at, name in enumerate(axes.names):
        if axes.sizes[at] > 1:
            step = tile_of[tuple(int(i == at) for i in range(len(axes.sizes)))] - tile_of[(0,) * len(axes.sizes)]
            for dim in np.flatnonzero(step):
                split[dim].append((-int(step[dim]), name))
    return tuple(tuple(name for _, name in sorted(found)) for found in split)


def _from_names(mesh: str, dims: str, axes: Axes) -> Dims | None:
    """Of newer JAX: `{mesh['x'=4,'y'=2], [{'y'}, {}, {'x'}]}`."""
    sizes = {name: int(size) for name, size in _SIZE.findall(mesh)}
    if ":(" in dims:  # A part of an axis.
        return None
    split = tuple(tuple(re.findall(r"'([^']*)'", one)) for one in re.findall(r"\{([^}]*)\}", dims))
    if any(sizes.get(name) != axes.shape.get(name) for found in split for name in found):
        return None
    return split


def _numbers(text: str | None) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text or "")]
