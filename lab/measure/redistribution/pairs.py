"""Pairs of placements, one for each class of pairs that differ only in the names of equal axes and in the order of
dims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain, combinations, groupby, permutations, product

from lab.meshes.axes import Axes
from lab.redistribution.placement import Placement, Split, arrangements

Pair = tuple[Placement, Placement]


def placements(dims: int, axes: Axes) -> list[Placement]:
    """Every placement of an array with so many dims that is no partial sum."""
    return [Placement(split) for names in _some(axes.names) for split in arrangements(names, dims)]


def partial_sums(dims: int, axes: Axes) -> list[Placement]:
    """Every placement that is one."""
    return [
        Placement(split, frozenset(names))
        for names in _some(axes.names)
        for split in _beside(names, dims, axes)
        if names
    ]


@cache
def classes(dims: int, axes: Axes) -> tuple[Pair, ...]:
    """One pair of every class, without those that change nothing and without partial sums."""
    every = placements(dims, axes)
    return _one_of_each(product(every, every), axes)


@cache
def sums(dims: int, axes: Axes) -> tuple[Pair, ...]:
    """One pair of every class that leads from a partial sum to a placement of its sum."""
    return _one_of_each(product(partial_sums(dims, axes), placements(dims, axes)), axes)


def _some(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Every choice of names, none and all among them."""
    names = tuple(names)
    return chain.from_iterable(combinations(names, n) for n in range(len(names) + 1))


def _beside(partial: Iterable[str], dims: int, axes: Axes) -> Iterator[Split]:
    return chain.from_iterable(
        arrangements(names, dims) for names in _some(name for name in axes.names if name not in partial)
    )


def _one_of_each(pairs: Iterable[Pair], axes: Axes) -> tuple[Pair, ...]:
    found: list[Pair] = []
    seen: set[Pair] = set()
    for pair in pairs:
        if pair[0] != pair[1] and pair not in seen:
            found.append(pair)
            seen.update(alike(pair, axes))
    return tuple(found)


def alike(pair: Pair, axes: Axes) -> list[Pair]:
    """The pair under every renaming of equal axes and every order of the dims."""
    orders = list(permutations(range(len(pair[0].dims))))
    return [
        (_renamed(pair[0], names, order), _renamed(pair[1], names, order))
        for names in _renamings(axes)
        for order in orders
    ]


def _renamings(axes: Axes) -> list[dict[str, str]]:
    by_size = sorted(axes.names, key=lambda name: axes[name])
    equals = [list(names) for _, names in groupby(by_size, key=lambda name: axes[name])]
    return [dict(zip(by_size, chain.from_iterable(new), strict=True)) for new in product(*map(permutations, equals))]


def _renamed(placement: Placement, names: dict[str, str], order: tuple[int, ...]) -> Placement:
    dims = tuple(tuple(names[axis] for axis in placement.dims[i]) for i in order)
    return Placement(dims, frozenset(names[axis] for axis in placement.partial))
