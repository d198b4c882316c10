"""All-to-all, the transpose of the matrix of blocks: block j of rank i becomes block i of rank j."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lab.collectives.circulant import distances
from lab.collectives.cost import Cost, permute, rounds
from lab.collectives.wires import (
    Axis,
    block_size,
    in_rank_order,
    in_turn,
    parts_of,
    pick,
    put,
    rotate,
    shift,
    shift_pairs,
)
from lab.meshes.axes import Axes


def pairwise(x_PC: jax.Array, axis: Axis, slices: int = 1) -> jax.Array:
    """Each block, or one slice of it after the other, goes straight to its rank, 1, 2, ..., P - 1 places on.

    Cost of k slices: k (P - 1) steps; sends (P - 1) / P of the buffer.
    """
    rank, arrived = jax.lax.axis_index(axis), None
    for step, start, size in _turns(x_PC.shape[0], x_PC.shape[1], slices):
        x_PC, due_C = in_turn(x_PC, pick(x_PC, rank + step, start, size))
        # What came before is put in its place, from which all has left or leaves now, while this is on its way.
        x_PC = put(x_PC, *arrived) if arrived else x_PC
        arrived = shift(due_C, axis, step), rank - step, start
    return put(x_PC, *arrived) if arrived else x_PC


def _turns(ranks: int, rows: int, slices: int) -> list[tuple[int, int, int]]:
    """(step, start, size), d places on and back in turn: what is sent there goes to where the next one comes from."""
    there_and_back = (dict.fromkeys((there, ranks - there)) for there in range(1, ranks // 2 + 1))
    return [(step, *part) for steps in there_and_back for part in parts_of(rows, slices) for step in steps]


def pairwise_cost(axes: Axes, elements: int, slices: int = 1) -> Cost:
    turns = _turns(axes.size, block_size(elements, axes.size), slices)
    return sum((rounds(permute(axes, shift_pairs(axes.size, step), size)) for step, _, size in turns), Cost())


def bruck(x_PC: jax.Array, axis: Axis) -> jax.Array:
    """A block due i places on takes the hops of the binary digits of i, together with all others that share the hop
    (Bruck et al. 1997).

    Cost: ceil(log2 P) steps; sends about half of the buffer in each.
    """
    P, due_PC = jax.lax.axis_size(axis), rotate(x_PC, jax.lax.axis_index(axis))  # Block i is due i places on.
    for distance in distances(P):
        runs = [due_PC[i : i + distance] for i in range(0, P, distance)]
        arrived = shift(jnp.concatenate(runs[1::2]), axis, distance)
        runs[1::2] = [arrived[i : i + distance] for i in range(0, arrived.shape[0], distance)]
        due_PC = jnp.concatenate(runs)
    return in_rank_order(due_PC, axis)


def bruck_cost(axes: Axes, elements: int) -> Cost:
    return sum((_digit_cost(axes, elements, distance) for distance in distances(axes.size)), Cost())


def _digit_cost(axes: Axes, elements: int, distance: int) -> Cost:
    moved = sum(1 for block in range(axes.size) if block & distance)
    return rounds(permute(axes, shift_pairs(axes.size, distance), moved * block_size(elements, axes.size)))
