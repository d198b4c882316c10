"""Pairs of placements, one for each class of pairs that differ only in the names of equal axes and in the order of dims."""

from __future__ import annotations

from itertools import chain, combinations, groupby, permutations, product

from lab.redistribution.placement import Placement, arrangements
from meshes.axes import Axes

Pair = tuple[Placement, Placement]


def placements(dims: int, axes: Axes) -> list[Placement]:
    """Every placement of an array with so many dims that is no partial sum."""
    used = chain.from_iterable(combinations(axes.names, n) for n in range(len(axes.names) + 1))
    return [Placement(split) for names in used for split in arrangements(names, dims)]


def classes(dims: int, axes: Axes) -> list[Pair]:
    """One pair of every class, without those that change nothing."""
    everywhere = placements(dims, axes)
    found: list[Pair] = []
    seen: set[Pair] = set()
    for pair in product(everywhere, repeat=2):
        if pair[0] != pair[1] and pair not in seen:
            found.append(pair)
            seen.update(alike(pair, axes))
    return found


def alike(pair: Pair, axes: Axes) -> list[Pair]:
    """The pair under every renaming of equal axes and every order of the dims."""
    orders = list(permutations(range(len(pair[0].dims))))
    return [(_renamed(pair[0], names, order), _renamed(pair[1], names, order)) for names in _renamings(axes) for order in orders]


def _renamings(axes: Axes) -> list[dict[str, str]]:
    by_size = sorted(axes.names, key=lambda name: axes[name])
    equals = [list(names) for _, names in groupby(by_size, key=lambda name: axes[name])]
    return [dict(zip(by_size, chain.from_iterable(new))) for new in product(*map(permutations, equals))]


def _renamed(placement: Placement, names: dict[str, str], order: tuple[int, ...]) -> Placement:
    return Placement(tuple(tuple(names[axis] for axis in placement.dims[i]) for i in order))
