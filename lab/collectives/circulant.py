"""Shifts around the axis by 1, 2, 4, ... places, the same for every rank: ceil(log2 P) steps for every P, power of two
or not."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lab.collectives.cost import Cost, permute, rounds
from lab.collectives.wires import Axis, Op, block_size, rotate, shift, shift_pairs
from lab.meshes.axes import Axes


def reduce_scatter(x_PC: jax.Array, axis: Axis, op: Op) -> jax.Array:
    """[P, C] to [C]: what is due d or more places on goes d places on (Traeff 2024); `op` elementwise and commutative.

    Cost: ceil(log2 P) steps; sends (P - 1) / P of the buffer.
    """
    due_DC = rotate(x_PC, jax.lax.axis_index(axis))  # Block i is due i places on.
    for distance in reversed(distances(jax.lax.axis_size(axis))):
        kept_DC, arrived_DC = due_DC[:distance], shift(due_DC[distance:], axis, distance)
        count = arrived_DC.shape[0]
        due_DC = jnp.concatenate([op(kept_DC[:count], arrived_DC), kept_DC[count:]])
    return due_DC[0]


def reduce_scatter_cost(axes: Axes, elements: int) -> Cost:
    return sum(
        (_blocks_cost(axes, elements, distance, distance) for distance in reversed(distances(axes.size))), Cost()
    )


def all_gather(x_C: jax.Array, axis: Axis) -> jax.Array:
    """[C] to [P, C]: fetches what the rank d places on has, for d = 1, 2, 4, ... (Bruck et al. 1997).

    Cost: ceil(log2 P) steps; sends (P - 1) / P of the result.
    """
    P, held_DC = jax.lax.axis_size(axis), x_C[None]  # Block i is from i places on.
    for distance in distances(P):
        held_DC = jnp.concatenate([held_DC, shift(held_DC[: P - distance], axis, -distance)])
    return rotate(held_DC, -jax.lax.axis_index(axis))


def all_gather_cost(axes: Axes, elements: int) -> Cost:
    return sum((_blocks_cost(axes, elements, distance, -distance) for distance in distances(axes.size)), Cost())


def barrier(rank: jax.Array, axis: Axis) -> jax.Array:
    """Every rank hears of every other (dissemination; Hensgen, Finkel & Manber 1988).

    Args:
      rank: int32[], one's own.
    Returns:
      int32[]: one more than the highest rank heard of.

    Cost: ceil(log2 P) steps of one number.
    """
    highest = rank
    for distance in distances(jax.lax.axis_size(axis)):
        highest = jnp.maximum(highest, shift(highest, axis, distance))
    return highest + 1


def barrier_cost(axes: Axes, elements: int) -> Cost:
    return sum(
        (rounds(permute(axes, shift_pairs(axes.size, distance), 1)) for distance in distances(axes.size)), Cost()
    )


def distances(ranks: int) -> list[int]:
    """1, 2, 4, ... below P."""
    return [2**k for k in range((ranks - 1).bit_length())]


def _blocks_cost(axes: Axes, elements: int, distance: int, by: int) -> Cost:
    blocks = min(distance, axes.size - distance) * block_size(elements, axes.size)
    return rounds(permute(axes, shift_pairs(axes.size, by), blocks))
