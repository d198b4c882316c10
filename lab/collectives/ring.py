"""Rings: each rank speaks to its neighbours only, and every link carries the same (Patarasu & Yuan 2009).

Blocks are summed starting from a different rank each, so the operation must be elementwise and commutative.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lab.collectives.cost import Cost, Message, permute, rounds
from lab.collectives.wires import (
    Axis,
    Op,
    block_size,
    in_rank_order,
    pick,
    shift,
    shift_pairs,
)
from meshes.axes import Axes

RIGHT, LEFT = 1, -1


def reduce_scatter(x_PC: jax.Array, axis: Axis, op: Op, way: int = RIGHT) -> jax.Array:
    """[P, C], one block a rank, to [C]: block r of the result on rank r.

    Cost: P - 1 steps; sends (P - 1) / P of the buffer.
    """
    P, rank = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    # Start one block behind one's own, so that after P - 1 hops rank r holds block r.
    travelling_C = pick(x_PC, rank - way)
    for step in range(1, P):
        travelling_C = op(shift(travelling_C, axis, way), pick(x_PC, rank - way * (1 + step)))
    return travelling_C


def all_gather(x_C: jax.Array, axis: Axis, way: int = RIGHT) -> jax.Array:
    """[C] to [P, C]: block r from rank r.

    Cost: P - 1 steps; sends (P - 1) / P of the result.
    """
    passing = _passing(x_C, axis, way, jax.lax.axis_size(axis) - 1)
    return in_rank_order(jnp.stack(passing if way == RIGHT else _turned_round(passing)), axis)


def half_cost(axes: Axes, elements: int) -> Cost:
    """Of a reduce_scatter, or of an all_gather."""
    return rounds(_message(axes, block_size(elements, axes.size), RIGHT), times=axes.size - 1)


def reduce_scatter_split(x_PC: jax.Array, axis: Axis, op: Op) -> jax.Array:
    """As `reduce_scatter`, half of every block going round each way.

    Cost: P - 1 steps; sends (P - 1) / (2 P) of the buffer in each direction.
    """
    half = block_size(x_PC.shape[1], 2)
    halves = reduce_scatter(x_PC[:, :half], axis, op, RIGHT), reduce_scatter(x_PC[:, half:], axis, op, LEFT)
    return jnp.concatenate(halves)


def all_gather_split(x_C: jax.Array, axis: Axis) -> jax.Array:
    """As `all_gather`, half of every block going round each way.

    Cost: P - 1 steps; sends (P - 1) / (2 P) of the result in each direction.
    """
    half = block_size(x_C.shape[0], 2)
    return jnp.concatenate([all_gather(x_C[:half], axis, RIGHT), all_gather(x_C[half:], axis, LEFT)], axis=1)


def half_cost_split(axes: Axes, elements: int) -> Cost:
    """Of a reduce_scatter, or of an all_gather."""
    return rounds(*_both_ways(axes, *_halves(block_size(elements, axes.size))), times=axes.size - 1)


def reduce_scatter_both_ways(x_PC: jax.Array, axis: Axis, op: Op) -> jax.Array:
    """As `reduce_scatter`, each block coming to its rank from both sides, so half as far.

    Cost: floor(P / 2) steps; sends (P - 1) / (2 P) of the buffer in each direction.
    """
    P, rank = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    sum_C = pick(x_PC, rank)
    for way in (RIGHT, LEFT) if P > 1 else ():
        travelling_C = pick(x_PC, rank + way * (P // 2))[_farthest_part(P, x_PC.shape[1], way)]
        for hops_left in range(P // 2 - 1, -1, -1):
            here_C = pick(x_PC, rank + way * hops_left) if hops_left else sum_C
            travelling_C = _added(here_C, shift(travelling_C, axis, way), way, op)
        sum_C = travelling_C
    return sum_C


def all_gather_both_ways(x_C: jax.Array, axis: Axis) -> jax.Array:
    """As `all_gather`, each block leaving its rank to both sides, so half as far.

    Cost: floor(P / 2) steps; sends (P - 1) / (2 P) of the result in each direction.
    """
    P, half = jax.lax.axis_size(axis), block_size(x_C.shape[0], 2)
    right, left = (_passing(x_C, axis, way, (P - 1) // 2) for way in (RIGHT, LEFT))
    # For even P the farthest rank is as far both ways: half of its block comes each.
    farthest = [] if P % 2 else [jnp.concatenate([shift(right[-1][:half], axis, RIGHT), shift(left[-1][half:], axis, LEFT)])]
    return in_rank_order(jnp.stack([*right, *farthest, *_turned_round(left)[1:]]), axis)


def half_cost_both_ways(axes: Axes, elements: int) -> Cost:
    """Of a reduce_scatter; of an all_gather the farthest hop comes last, not first."""
    P, block = axes.size, block_size(elements, axes.size)
    whole = rounds(*_both_ways(axes, block, block), times=(P - 1) // 2)
    return whole if P % 2 else rounds(*_both_ways(axes, *_halves(block))) + whole


def additions_both_ways(axes: Axes) -> int:
    """Half of the way round, then what comes from the other side."""
    return min(axes.size - 1, axes.size // 2 + 1)


def _passing(x_C: jax.Array, axis: Axis, way: int, steps: int) -> list[jax.Array]:
    """One's own block, and those that pass on their way around: of the neighbour, of the one behind it, ..."""
    blocks = [x_C]
    for _ in range(steps):
        blocks.append(shift(blocks[-1], axis, way))
    return blocks


def _turned_round(blocks: list[jax.Array]) -> list[jax.Array]:
    """One's own block first, the others in the opposite order."""
    return blocks[:1] + blocks[:0:-1]


def _farthest_part(ranks: int, block: int, way: int) -> slice:
    """What of a block comes this way from the farthest rank."""
    half = block_size(block, 2)
    if ranks % 2:
        return slice(0, None)
    return slice(0, half) if way == RIGHT else slice(half, None)


def _added(here_C: jax.Array, arrived_C: jax.Array, way: int, op: Op) -> jax.Array:
    """All of `here`, summed with what arrived: the whole block, or its first or second half."""
    if arrived_C.shape == here_C.shape:
        return op(arrived_C, here_C)
    start = 0 if way == RIGHT else here_C.shape[0] - arrived_C.shape[0]
    part_C = op(arrived_C, jax.lax.dynamic_slice_in_dim(here_C, start, arrived_C.shape[0]))
    return jax.lax.dynamic_update_slice_in_dim(here_C, part_C, start, 0)


def _halves(block: int) -> tuple[int, int]:
    return block_size(block, 2), block // 2


def _both_ways(axes: Axes, right: int, left: int) -> tuple[Message, Message]:
    return _message(axes, right, RIGHT), _message(axes, left, LEFT)


def _message(axes: Axes, elements: int, way: int) -> Message:
    return permute(axes, shift_pairs(axes.size, way), elements)
