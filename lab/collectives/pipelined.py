"""Buffers cut into slices, so that a rank passes one on while the next is on its way.

Every slice is summed as a whole, so the operation must be elementwise, and commutative.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lab.collectives.algorithm import Algorithm
from lab.collectives.cost import Cost, permute, rounds
from lab.collectives.tree import only_on
from lab.collectives.wires import Axis, Op, block_size, is_among, join, pick, put, split
from meshes.axes import Axes

SLICES = 4


class Hop(NamedTuple):
    """A slice of the buffer on its way from rank to rank."""

    source: int
    target: int
    slice: int


Turn = tuple[Hop, ...]
"""What one permute carries: every rank sends one slice at most, and gets one at most."""


def chain_broadcast(slices: int = SLICES) -> Algorithm:
    """Slices run down a chain of ranks from the root on. Cost: P - 2 + k steps of n/k for k slices."""

    def run(x: jax.Array, axis: Axis, root: int) -> jax.Array:
        return _in_slices(x, slices, axis, _down_chain(jax.lax.axis_size(axis), slices, root), _second)

    def cost(axes: Axes, elements: int) -> Cost:
        return _cost(axes, _down_chain(axes.size, slices, 0), block_size(elements, slices))

    return Algorithm(run, cost)


def chain_reduce(slices: int = SLICES) -> Algorithm:
    """A chain broadcast backwards in time: slices run up the chain and are summed on the way. Cost: P - 2 + k steps of n/k."""

    def run(x: jax.Array, axis: Axis, root: int, op: Op) -> jax.Array:
        return only_on(root, _in_slices(x, slices, axis, _backwards(_down_chain(jax.lax.axis_size(axis), slices, root)), op), axis)

    def cost(axes: Axes, elements: int) -> Cost:
        return _cost(axes, _backwards(_down_chain(axes.size, slices, 0)), block_size(elements, slices))

    return Algorithm(run, cost)


def double_tree(slices: int = SLICES) -> Algorithm:
    """Half of the buffer up and down one binary tree, half another in which inner ranks and leaves change places (Sanders, Speck & Traeff 2009).

    Cost: at most 4 (floor(log2 P) + k - 1) steps of n/(2k) for k slices of each half: about 2 n sent, however many ranks.
    """

    def run(x: jax.Array, axis: Axis, op: Op) -> jax.Array:
        down = _down_trees(jax.lax.axis_size(axis), slices)
        x_KC = split(x.reshape(-1), 2 * slices)
        summed_KC = _played(x_KC, axis, _backwards(down), op)
        return join(_played(summed_KC, axis, down, _second), x.size).reshape(x.shape)

    def cost(axes: Axes, elements: int) -> Cost:
        down, size = _down_trees(axes.size, slices), block_size(elements, 2 * slices)
        return _cost(axes, _backwards(down), size) + _cost(axes, down, size)

    return Algorithm(run, cost)


def sliced(whole: Algorithm, slices: int = SLICES) -> Algorithm:
    """An all_reduce for one slice after the other: more and shorter messages, so that a device may sum one while it sends the next.

    Cost: k times that of n/k.
    """

    def run(x: jax.Array, axis: Axis, op: Op) -> jax.Array:
        x_KC = split(x.reshape(-1), slices)
        return join(jnp.stack([whole.run(x_C, axis, op=op) for x_C in x_KC]), x.size).reshape(x.shape)

    def cost(axes: Axes, elements: int) -> Cost:
        return whole.cost(axes, block_size(elements, slices)) * slices

    return Algorithm(run, cost, misfit=whole.misfit)


def _in_slices(x: jax.Array, slices: int, axis: Axis, turns: Sequence[Turn], op: Op) -> jax.Array:
    return join(_played(split(x.reshape(-1), slices), axis, turns, op), x.size).reshape(x.shape)


def _played(x_KC: jax.Array, axis: Axis, turns: Sequence[Turn], op: Op) -> jax.Array:
    """`x` after every turn: a slice that arrives is met by `op` with the one in its place."""
    P = jax.lax.axis_size(axis)
    for turn in turns if x_KC.size else ():
        sent = _slice_of({hop.source: hop.slice for hop in turn}, P, axis)
        place = _slice_of({hop.target: hop.slice for hop in turn}, P, axis)
        arrived_C = jax.lax.ppermute(pick(x_KC, sent), axis, _pairs(turn))
        old_C = pick(x_KC, place)
        new_C = jnp.where(is_among([hop.target for hop in turn], axis), op(old_C, arrived_C), old_C)
        x_KC = jax.lax.optimization_barrier(put(x_KC, new_C, place))
    return x_KC


def _second(old: jax.Array, arrived: jax.Array) -> jax.Array:
    return arrived


def _slice_of(slices: Mapping[int, int], ranks: int, axis: Axis) -> jax.Array:
    """The slice that this rank sends or gets; any other where it does not."""
    return jnp.array([slices.get(rank, 0) for rank in range(ranks)])[jax.lax.axis_index(axis)]


def _cost(axes: Axes, turns: Iterable[Turn], elements: int) -> Cost:
    return sum((rounds(permute(axes, _pairs(turn), elements)) for turn in turns), Cost())


def _pairs(turn: Turn) -> list[tuple[int, int]]:
    return [(hop.source, hop.target) for hop in turn]


def _backwards(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    return tuple(tuple(Hop(hop.target, hop.source, hop.slice) for hop in turn) for turn in reversed(turns))


def _down_chain(ranks: int, slices: int, root: int) -> tuple[Turn, ...]:
    """In turn t the rank i places after the root passes slice t - i on."""

    def turn(t: int) -> Turn:
        senders = range(max(0, t - slices + 1), min(t, ranks - 2) + 1)
        return tuple(Hop((root + i) % ranks, (root + i + 1) % ranks, t - i) for i in senders)

    return tuple(turn(t) for t in range(ranks - 2 + slices)) if ranks > 1 else ()


class Edge(NamedTuple):
    """From parent to child, in tree 0 or 1."""

    parent: int
    child: int
    tree: int


@cache
def _down_trees(ranks: int, slices: int) -> tuple[Turn, ...]:
    """Slices down both trees, those of tree 1 numbered after those of tree 0: even turns use edges of one colour, odd turns of the other."""
    firsts = _first_turns(_two_trees(ranks))
    last = max(firsts.values(), default=-1) + 2 * (slices - 1)
    turns: list[list[Hop]] = [[] for _ in range(last + 1)] if firsts else []
    for edge, first in firsts.items():
        for i in range(slices):
            turns[first + 2 * i].append(Hop(edge.parent, edge.child, edge.tree * slices + i))
    return tuple(map(tuple, turns))


def _first_turns(edges: Sequence[Edge]) -> dict[Edge, int]:
    """When each edge carries its first slice: after its parent has it, in a turn of the edge's colour."""
    colours = _coloured(edges)
    above = {(edge.child, edge.tree): edge for edge in edges}

    @cache
    def first(edge: Edge) -> int:
        upper = above.get((edge.parent, edge.tree))
        ready = 0 if upper is None else first(upper) + 1
        return ready + (ready + colours[edge]) % 2

    return {edge: first(edge) for edge in edges}


def _coloured(edges: Sequence[Edge]) -> dict[Edge, int]:
    """Two colours such that no rank sends, or gets, over two edges of one colour. There are two of each at most, so these conflicts form chains and even cycles."""
    colours: dict[Edge, int] = {}
    for start in edges:
        waiting = [] if start in colours else [(start, 0)]
        while waiting:
            edge, colours[edge] = waiting.pop()
            meeting = (other for other in edges if other.parent == edge.parent or other.child == edge.child)
            waiting += [(other, 1 - colours[edge]) for other in meeting if other not in colours]
    return colours


def _two_trees(ranks: int) -> tuple[Edge, ...]:
    """An in-order binary tree, and its image under a map that exchanges odd and even numbers: a rank is inner in one of the two at most."""
    one = [(child, _parent(child, ranks)) for child in range(1, ranks + 1) if child != 2 ** (ranks.bit_length() - 1)]
    moved = (lambda v: v % ranks + 1) if ranks % 2 else (lambda v: ranks + 1 - v)
    first = tuple(Edge(parent - 1, child - 1, 0) for child, parent in one)
    return first + tuple(Edge(moved(parent) - 1, moved(child) - 1, 1) for child, parent in one)


def _parent(child: int, ranks: int) -> int:
    """In the in-order tree of 1, 2, ...: the nearest ancestor among the first `ranks`."""
    lowest = child & -child
    above = child - lowest | 2 * lowest
    return above if above <= ranks else _parent(above, ranks)
