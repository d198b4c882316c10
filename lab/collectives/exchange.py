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
    pick,
    rotate,
    shift,
    shift_pairs,
)
from meshes.axes import Axes


def pairwise(x_PC: jax.Array, axis: Axis) -> jax.Array:
    """Each block goes straight to its rank, 1, 2, ..., P - 1 places on.

    Cost: P - 1 steps; sends (P - 1) / P of the buffer.
    """
    rank = jax.lax.axis_index(axis)
    arrived = [shift(pick(x_PC, rank + step), axis, step) for step in range(x_PC.shape[0])]
    return in_rank_order(jnp.stack(arrived), axis)


def pairwise_cost(axes: Axes, elements: int) -> Cost:
    block = block_size(elements, axes.size)
    return sum((rounds(permute(axes, shift_pairs(axes.size, step), block)) for step in range(1, axes.size)), Cost())


def bruck(x_PC: jax.Array, axis: Axis) -> jax.Array:
    """A block due i places on takes the hops of the binary digits of i, together with all others that share the hop (Bruck et al. 1997).

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
