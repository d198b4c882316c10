"""Rings: each rank speaks to its neighbours only, and every link carries the same (Patarasu & Yuan 2009).

Blocks are summed starting from a different rank each, so the operation must be elementwise and commutative. Blocks go
round in lanes: a lane is a part of every block, and while one is on its way another is summed, or put where it belongs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lab.collectives.cost import Cost, Message, at_once, permute, rounds
from lab.collectives.wires import (
    Axis,
    Op,
    block_size,
    everywhere,
    in_turn,
    join,
    parts_of,
    pick,
    put,
    shift,
    shift_pairs,
    split,
)
from lab.meshes.axes import Axes

RIGHT, LEFT = 1, -1
Ways = tuple[int, ...]
"""Of the lanes."""
WHOLE, HALVES, SLICES = (RIGHT,), (RIGHT, LEFT), (RIGHT,) * 4


class Lane(NamedTuple):
    """`size` rows of every block from `start` on, and the way that they go round."""

    start: int
    size: int
    way: int


def reduce_scatter(x_PC: jax.Array, axis: Axis, op: Op, ways: Ways = WHOLE) -> jax.Array:
    """[P, C], one block a rank, to [C]: block r of the result on rank r.

    Cost of k lanes: k (P - 1) messages, of opposite ways two at once; sends (P - 1) / P of the buffer.
    """
    sums, _ = summed(x_PC, axis, op, lanes_of(x_PC.shape[1], ways))
    return jnp.concatenate(sums)


def all_gather(x_C: jax.Array, axis: Axis, ways: Ways = WHOLE) -> jax.Array:
    """[C] to [P, C]: block r from rank r.

    Cost of k lanes: k (P - 1) messages, of opposite ways two at once; sends (P - 1) / P of the result.
    """
    lanes = lanes_of(x_C.shape[0], ways)
    parts = [x_C[lane.start : lane.start + lane.size] for lane in lanes]
    gathered_PC, _ = gathered(parts, axis, lanes, everywhere(x_C, axis))
    return gathered_PC


def all_reduce(x: jax.Array, axis: Axis, op: Op, ways: Ways = WHOLE) -> jax.Array:
    """A reduce_scatter, then an all_gather into the buffer that is summed up (AR = AG o RS: Ch. 11,
    `ch11.decomposition`).

    Cost: that of both.
    """
    x_PC = split(x.reshape(-1), jax.lax.axis_size(axis))
    lanes = lanes_of(x_PC.shape[1], ways)
    sums, spent_PC = summed(x_PC, axis, op, lanes)
    reduced_PC, _ = gathered(sums, axis, lanes, spent_PC)
    return join(reduced_PC, x.size).reshape(x.shape)


def half_cost(axes: Axes, elements: int, ways: Ways = WHOLE) -> Cost:
    """Of a reduce_scatter, or of an all_gather."""
    lanes = lanes_of(block_size(elements, axes.size), ways)
    one_way = ([_round(axes, lane) for lane in lanes if lane.way == way] for way in (RIGHT, LEFT))
    return at_once(*(sum(costs, Cost()) for costs in one_way))


def all_reduce_cost(axes: Axes, elements: int, ways: Ways = WHOLE) -> Cost:
    return half_cost(axes, elements, ways) * 2


def summed(x_PC: jax.Array, axis: Axis, op: Op, lanes: Sequence[Lane]) -> tuple[list[jax.Array], jax.Array]:
    """What is due here of every lane, and the buffer, now free."""
    P, rank = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    travelling: list[jax.Array] = []
    # Start one block behind one's own, so that after P - 1 hops rank r holds block r.
    for lane in lanes:
        x_PC, first = in_turn(x_PC, pick(x_PC, rank - lane.way, *lane[:2]))
        travelling.append(first)
    for step in range(2, P + 1):
        for i, lane in enumerate(lanes):
            here = pick(x_PC, rank - lane.way * step, *lane[:2])
            x_PC, travelling[i] = in_turn(x_PC, op(shift(travelling[i], axis, lane.way), here))
    return travelling, x_PC


def gathered(
    parts: Sequence[jax.Array], axis: Axis, lanes: Sequence[Lane], into_PC: jax.Array, steps: int | None = None
) -> tuple[jax.Array, list[jax.Array]]:
    """`into` with what comes in `steps` less one hops, by default all blocks, lane by lane put in place while it moves
    on; and what came last."""
    P, rank, travelling = jax.lax.axis_size(axis), jax.lax.axis_index(axis), list(parts)
    last = (P if steps is None else steps) - 1
    for step in range(last + 1):
        for i, lane in enumerate(lanes):
            here, then = travelling[i], (i + 1) % len(lanes)
            travelling[i] = shift(here, axis, lane.way) if step < last else here
            into_PC, travelling[then] = in_turn(
                put(into_PC, here, rank - lane.way * step, lane.start), travelling[then]
            )
    return into_PC, travelling


def lanes_of(block: int, ways: Ways) -> list[Lane]:
    return [Lane(*part, way) for part, way in zip(parts_of(block, len(ways)), ways, strict=False)]


def reduce_scatter_both_ways(x_PC: jax.Array, axis: Axis, op: Op) -> jax.Array:
    """As `reduce_scatter`, each block coming to its rank from both sides, so half as far.

    Cost: floor(P / 2) steps; sends (P - 1) / (2 P) of the buffer in each direction.
    """
    P, rank = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    sum_C = pick(x_PC, rank)
    travelling = {
        way: pick(x_PC, rank + way * (P // 2))[_farthest_part(P, x_PC.shape[1], way)] for way in (RIGHT, LEFT)
    }
    for hops_left in range(P // 2 - 1, -1, -1):
        for way in travelling:
            here_C = pick(x_PC, rank + way * hops_left) if hops_left else sum_C
            x_PC, travelling[way] = in_turn(x_PC, _added(here_C, shift(travelling[way], axis, way), way, op))
            sum_C = sum_C if hops_left else travelling[way]
    return sum_C


def all_gather_both_ways(x_C: jax.Array, axis: Axis) -> jax.Array:
    """As `all_gather`, each block leaving its rank to both sides, so half as far.

    Cost: floor(P / 2) steps; sends (P - 1) / (2 P) of the result in each direction.
    """
    P, C, half = jax.lax.axis_size(axis), x_C.shape[0], block_size(x_C.shape[0], 2)
    lanes = [Lane(0, C, RIGHT), Lane(0, C, LEFT)]
    gathered_PC, (right_C, left_C) = gathered([x_C, x_C], axis, lanes, everywhere(x_C, axis), steps=(P + 1) // 2)
    if P % 2:
        return gathered_PC
    # For even P the farthest rank is as far both ways: half of its block comes each.
    farthest = jax.lax.axis_index(axis) + P // 2
    gathered_PC = put(gathered_PC, shift(right_C[:half], axis, RIGHT), farthest)
    return put(gathered_PC, shift(left_C[half:], axis, LEFT), farthest, half)


def half_cost_both_ways(axes: Axes, elements: int) -> Cost:
    """Of a reduce_scatter; of an all_gather the farthest hop comes last, not first."""
    P, block = axes.size, block_size(elements, axes.size)
    whole = rounds(*_both_ways(axes, block, block), times=(P - 1) // 2)
    return whole if P % 2 else rounds(*_both_ways(axes, *_halves(block))) + whole


def additions_both_ways(axes: Axes) -> int:
    """Half of the way round, then what comes from the other side."""
    return min(axes.size - 1, axes.size // 2 + 1)


def _round(axes: Axes, lane: Lane) -> Cost:
    return rounds(_message(axes, lane.size, lane.way), times=axes.size - 1)


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
