"""Two binary trees, each for half of the buffer, in which inner ranks and leaves change places (Sanders, Speck & Traeff
2009).

A rank sends to two children in one tree and to none in the other, so over both trees it sends as much as it gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import jax

from lab.collectives.algorithm import Algorithm, rounds_down
from lab.collectives.cost import Cost
from lab.collectives.pipelined import (
    SLICES,
    Hop,
    Turn,
    backwards,
    keep_arrived,
    play,
    turns_cost,
)
from lab.collectives.wires import Axis, Op, block_size, join, split
from lab.meshes.axes import Axes


def all_reduce(slices: int = SLICES) -> Algorithm:
    """Slices up both trees, summed on the way, and down again; `op` elementwise and commutative.

    Cost: at most 4 (floor(log2 P) + k - 1) steps of n/(2k) for k slices of each half: about 2 n sent, however many
    ranks.
    """

    def run(x: jax.Array, axis: Axis, op: Op) -> jax.Array:
        down = _down_trees(jax.lax.axis_size(axis), slices)
        x_KC = split(x.reshape(-1), 2 * slices)
        summed_KC = play(x_KC, axis, backwards(down), op)
        return join(play(summed_KC, axis, down, keep_arrived), x.size).reshape(x.shape)

    def cost(axes: Axes, elements: int) -> Cost:
        down, size = _down_trees(axes.size, slices), block_size(elements, 2 * slices)
        return turns_cost(axes, backwards(down), size) + turns_cost(axes, down, size)

    return Algorithm("all_reduce", run, cost, additions=lambda axes: 2 * rounds_down(axes))


class Edge(NamedTuple):
    """From parent to child, in tree 0 or 1."""

    parent: int
    child: int
    tree: int


@cache
def _down_trees(ranks: int, slices: int) -> tuple[Turn, ...]:
    """Slices down both trees, numbered through; even turns use edges of one colour, odd turns of the other."""
    firsts = _first_turns(_two_trees(ranks))
    last = max(firsts.values(), default=-1) + 2 * (slices - 1)
    turns: list[list[Hop]] = [[] for _ in range(last + 1)] if firsts else []
    for edge, first in firsts.items():
        for i in range(slices):
            turns[first + 2 * i].append(Hop(edge.parent, edge.child, edge.tree * slices + i))
    return tuple(tuple(turn) for turn in turns if turn)


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
    """Two colours such that no rank sends, or gets, over two edges of one colour.

    It sends over two at most and gets over two at most, so edges that meet form chains and even cycles.
    """
    colours: dict[Edge, int] = {}
    for start in edges:
        waiting = [] if start in colours else [(start, 0)]
        while waiting:
            edge, colours[edge] = waiting.pop()
            meeting = (other for other in edges if other.parent == edge.parent or other.child == edge.child)
            waiting += [(other, 1 - colours[edge]) for other in meeting if other not in colours]
    return colours


def _two_trees(ranks: int) -> tuple[Edge, ...]:
    """An in-order binary tree, in which odd numbers are leaves, and its image under a map that makes most of them even.

    So a rank is inner in one of the two at most.
    """
    root = 2 ** (ranks.bit_length() - 1)
    first = [Edge(_parent(child, ranks), child, 0) for child in range(1, ranks + 1) if child != root]

    def moved(number: int) -> int:
        return number % ranks + 1 if ranks % 2 else ranks + 1 - number

    second = [Edge(moved(edge.parent), moved(edge.child), 1) for edge in first]
    return tuple(Edge(edge.parent - 1, edge.child - 1, edge.tree) for edge in first + second)


def _parent(child: int, ranks: int) -> int:
    """In the in-order tree of 1, 2, ...: the nearest ancestor among the first `ranks`."""
    lowest = child & -child
    above = child - lowest | 2 * lowest
    return above if above <= ranks else _parent(above, ranks)
