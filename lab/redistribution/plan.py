"""The cheapest way from one placement to another: the least bytes on the wire, then the fewest transfers.

A move takes axes away from the minor end of dims, puts them at the minor end of others, or renames them:

  slice         an unused axis splits a dim            nothing
  all_gather    axes leave a dim                       (P - 1) / P of the gathered block
  all_to_all    axes leave some dims for others        (P - 1) / P of the block
  permute       other axes, the same block sizes       the block
  reduce_scatter, all_reduce of a partial sum          (P - 1) / P, 2 (P - 1) / P of the block

Source: Ch. 23, `ch23.redistribution`, where the all-to-all is said to cost as much as the gather.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import chain, combinations, count, product
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lab.core.ledger import Kind, Ledger, Totals, Transfer
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.redistribution.bound import least_bytes
from lab.redistribution.placement import Array, Placement, Split, arrangements

if TYPE_CHECKING:
    from lab.meshes.layouts import Layout


class Move(NamedTuple):
    """One step; `kind` is None for a slice, which sends nothing."""

    kind: Kind | None
    over: frozenset[str]
    before: Placement
    after: Placement

    def transfers(self, array: Array, axes: Axes) -> tuple[Transfer, ...]:
        """None or one."""
        if self.kind is None:
            return ()
        over = axes.ordered(self.over)
        group = prod(axes[axis] for axis in over)
        block = prod(self.before.local_shape(array, axes)) * array.bytes_per_element
        payload = block * group if self.kind is Kind.ALL_GATHER else block
        if self.kind is not Kind.COLLECTIVE_PERMUTE:
            return (Transfer(self.kind, over, group, 1, array.dtype, payload, groups=axes.size // group),)
        pairs = self.pairs(axes)
        shifts = {(target - source) % group for source, target in pairs} - {0}
        shift = shifts.pop() if len(shifts) == 1 else None
        rings = _rings(pairs)
        groups = axes.size // group * len(rings)
        return (Transfer(self.kind, over, max(rings), 1, array.dtype, payload, groups=groups, shift=shift),)

    def pairs(self, axes: Axes) -> list[tuple[int, int]]:
        """Who sends to whom in a permute, as positions along `over`: each to one that is to have its block."""
        group = axes.groups(self.over)[0]
        have, want = (_blocks(placement, axes)[group] for placement in (self.before, self.after))
        return list(zip(*(np.argsort(blocks, kind="stable").tolist() for blocks in (have, want)), strict=True))


Route = tuple[Move, ...]


def plan(before: Placement, after: Placement, array: Array, axes: Axes) -> Ledger:
    """What has to be sent to turn `before` into `after`. Raises: see `route`."""
    moves = route(before, after, array, axes)
    sent = tuple(transfer for move in moves for transfer in move.transfers(array, axes))
    return Ledger(sent, source=f"{before} to {after}", devices=axes.size, mesh=axes.shape)


def layout_change(before: Layout, after: Layout, dims: Sequence[str | None], array: Array, axes: Axes) -> Ledger:
    """What has to be sent to go from one layout to another, for an array with these dims. Raises: see `route`."""
    old, new = (Placement(tuple(layout.axes_of(dim, axes.names) for dim in dims)) for layout in (before, after))
    return plan(old, new, array, axes)


def route(before: Placement, after: Placement, array: Array, axes: Axes) -> Route:
    """The moves that turn `before` into `after`.

    Every axis moves as a whole: where two axes of unlike sizes change places, `Axes.split` the larger one for a cheaper
    route.

    Raises:
      UsageError: a placement does not fit the array or the mesh, or `after` is a partial sum that `before` is not.
    """
    for placement in (before, after):
        placement.local_shape(array, axes)
    if not after.partial <= before.partial:
        raise UsageError(
            f"no way from {before} to {after}: a partial sum can be summed up, and not made; give a placement without "
            "it"
        )
    *_, found = tried(before, after, array, axes)
    return found


def tried(before: Placement, after: Placement, array: Array, axes: Axes) -> Iterator[Route]:
    """Cheapest routes to ever more placements, until the last one ends at `after` (A*: Hart, Nilsson & Raphael 1968).

    The order is that of the bytes so far and the least that the rest must send; no move saves more of the latter than
    it sends.
    """
    done: set[Placement] = set()
    turn = count()
    queue = [_Way(Fraction(0), 0, Fraction(0), next(turn), before, ())]
    while after not in done:
        way = heapq.heappop(queue)
        if way.here in done:
            continue
        done.add(way.here)
        yield way.moves
        for move, cost in steps(way.here, array, axes):
            if move.after not in done:
                rest = Fraction(0) if after.partial else least_bytes(move.after, after, array, axes)
                total = way.total - way.rest + cost.wire_bytes + rest
                heapq.heappush(
                    queue, _Way(total, way.transfers + cost.sites, rest, next(turn), move.after, (*way.moves, move))
                )


class _Way(NamedTuple):
    """A route so far, in the order in which it is tried; `rest` are the bytes that it must send yet, in `total`
    already."""

    total: Fraction
    transfers: int
    rest: Fraction
    turn: int
    here: Placement
    moves: Route


@lru_cache(maxsize=1024)
def steps(here: Placement, array: Array, axes: Axes) -> tuple[tuple[Move, Totals], ...]:
    """Every single move from a placement, and what it costs."""
    moves = chain(_slices(here, axes), _gathers(here), _exchanges(here), _permutes(here, axes), _sums(here))
    return tuple((move, Totals.of(move.transfers(array, axes))) for move in moves if move.after.fits(array, axes))


def _slices(here: Placement, axes: Axes) -> Iterator[Move]:
    for axis, dim in product(sorted(set(axes.names) - here.axes), range(len(here.dims))):
        added = tuple((axis,) if i == dim else () for i in range(len(here.dims)))
        yield Move(None, frozenset([axis]), here, Placement(_joined(here.dims, added), here.partial))


def _gathers(here: Placement) -> Iterator[Move]:
    for left, gone in _shortened(here.dims):
        if gone:
            yield Move(Kind.ALL_GATHER, gone, here, Placement(left, here.partial))


def _exchanges(here: Placement) -> Iterator[Move]:
    for left, gone in _shortened(here.dims):
        for added in arrangements(gone, len(here.dims)) if gone else ():
            # A dim that gives and takes at once is no all-to-all: its pieces would go to some of the others only.
            if not any(new and old != kept for new, old, kept in zip(added, here.dims, left, strict=True)):
                yield Move(Kind.ALL_TO_ALL, gone, here, Placement(_joined(left, added), here.partial))


def _permutes(here: Placement, axes: Axes) -> Iterator[Move]:
    """Every placement with blocks of the same sizes."""
    free = sorted(set(axes.names) - here.partial)
    for used in chain.from_iterable(combinations(free, n) for n in range(1, len(free) + 1)):
        for dims in arrangements(used, len(here.dims)):
            if dims != here.dims and _parts(dims, axes) == _parts(here.dims, axes):
                yield Move(Kind.COLLECTIVE_PERMUTE, _moved(here.dims, dims, axes), here, Placement(dims, here.partial))


def _sums(here: Placement) -> Iterator[Move]:
    for over in chain.from_iterable(combinations(sorted(here.partial), n) for n in range(1, len(here.partial) + 1)):
        rest = here.partial.difference(over)
        yield Move(Kind.ALL_REDUCE, frozenset(over), here, Placement(here.dims, rest))
        for added in arrangements(over, len(here.dims)):
            yield Move(Kind.REDUCE_SCATTER, frozenset(over), here, Placement(_joined(here.dims, added), rest))


def _shortened(dims: Split) -> Iterator[tuple[Split, frozenset[str]]]:
    """The dims without some of their minor axes, and the axes that are gone."""
    for lengths in product(*(range(len(dim) + 1) for dim in dims)):
        gone = chain.from_iterable(dim[n:] for dim, n in zip(dims, lengths, strict=True))
        yield tuple(dim[:n] for dim, n in zip(dims, lengths, strict=True)), frozenset(gone)


def _joined(major: Split, minor: Split) -> Split:
    return tuple(a + b for a, b in zip(major, minor, strict=True))


def _parts(dims: Split, axes: Axes) -> list[int]:
    return [prod(axes[axis] for axis in dim) for dim in dims]


def _moved(before: Split, after: Split, axes: Axes) -> frozenset[str]:
    """The axes that do not stand where they stood: in the same dim, above as many pieces."""
    return frozenset(axis for axis, *_ in _places(before, axes) ^ _places(after, axes))


def _places(dims: Split, axes: Axes) -> set[tuple[str, int, int]]:
    return {
        (axis, i, prod(axes[minor] for minor in dim[j:])) for i, dim in enumerate(dims) for j, axis in enumerate(dim)
    }


def _blocks(placement: Placement, axes: Axes) -> np.ndarray:
    """The number of every device's block, as one counts blocks in row-major order."""
    coordinates, number = dict(zip(axes.names, np.indices(axes.sizes), strict=True)), np.zeros(axes.sizes, int)
    for axis in chain.from_iterable(placement.dims):
        number = number * axes[axis] + coordinates[axis]
    return number.ravel()


def _rings(pairs: list[tuple[int, int]]) -> list[int]:
    """How many devices each cycle of a permutation has."""
    target, lengths, seen = dict(pairs), [], set()
    for start in target:
        length, here = 0, start
        while here not in seen:
            seen.add(here)
            length, here = length + 1, target[here]
        lengths += [length] if length else []
    return lengths
