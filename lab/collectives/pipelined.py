"""Buffers cut into slices, so that a rank passes one on while the next is on its way.

Every slice is summed as a whole, so the operation must be elementwise, and commutative.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lab.collectives.algorithm import Algorithm
from lab.collectives.cost import Cost, permute, rounds
from lab.collectives.tree import only_on
from lab.collectives.wires import (
    Axis,
    Op,
    block_size,
    is_among,
    join,
    pick,
    put,
    receive,
    split,
)
from lab.meshes.axes import Axes

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
        return _in_slices(x, slices, axis, _down_chain(jax.lax.axis_size(axis), slices, root), keep_arrived)

    def cost(axes: Axes, elements: int) -> Cost:
        return turns_cost(axes, _down_chain(axes.size, slices, 0), block_size(elements, slices))

    return Algorithm("broadcast", run, cost)


def chain_reduce(slices: int = SLICES) -> Algorithm:
    """A chain broadcast backwards in time: slices run up the chain and are summed on the way. Cost: P - 2 + k steps of
    n/k."""

    def run(x: jax.Array, axis: Axis, root: int, op: Op) -> jax.Array:
        return only_on(
            root, _in_slices(x, slices, axis, backwards(_down_chain(jax.lax.axis_size(axis), slices, root)), op), axis
        )

    def cost(axes: Axes, elements: int) -> Cost:
        return turns_cost(axes, backwards(_down_chain(axes.size, slices, 0)), block_size(elements, slices))

    return Algorithm("reduce", run, cost)


def _in_slices(x: jax.Array, slices: int, axis: Axis, turns: Sequence[Turn], op: Op) -> jax.Array:
    return join(play(split(x.reshape(-1), slices), axis, turns, op), x.size).reshape(x.shape)


def play(x_KC: jax.Array, axis: Axis, turns: Sequence[Turn], op: Op) -> jax.Array:
    """`x` after every turn: a slice that arrives is met by `op` with the one in its place."""
    P = jax.lax.axis_size(axis)
    for turn in turns:
        sent = _slice_of({hop.source: hop.slice for hop in turn}, P, axis)
        place = _slice_of({hop.target: hop.slice for hop in turn}, P, axis)
        old_C = pick(x_KC, place)
        arrived_C = receive(pick(x_KC, sent), axis, _pairs(turn), otherwise=old_C)
        new_C = jnp.where(is_among([hop.target for hop in turn], axis), op(old_C, arrived_C), old_C)
        # Without the barrier XLA fuses the whole chain of updates into each of its readers.
        x_KC = jax.lax.optimization_barrier(put(x_KC, new_C, place))
    return x_KC


def keep_arrived(old: jax.Array, arrived: jax.Array) -> jax.Array:
    return arrived


def _slice_of(slices: Mapping[int, int], ranks: int, axis: Axis) -> jax.Array:
    """The slice that this rank sends or gets; any other where it does not."""
    return jnp.array([slices.get(rank, 0) for rank in range(ranks)])[jax.lax.axis_index(axis)]


def turns_cost(axes: Axes, turns: Iterable[Turn], elements: int) -> Cost:
    return sum((rounds(permute(axes, _pairs(turn), elements)) for turn in turns), Cost())


def _pairs(turn: Turn) -> list[tuple[int, int]]:
    return [(hop.source, hop.target) for hop in turn]


def backwards(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    return tuple(tuple(Hop(hop.target, hop.source, hop.slice) for hop in turn) for turn in reversed(turns))


def _down_chain(ranks: int, slices: int, root: int) -> tuple[Turn, ...]:
    """In turn t the rank i places after the root passes slice t - i on."""

    def turn(t: int) -> Turn:
        senders = range(max(0, t - slices + 1), min(t, ranks - 2) + 1)
        return tuple(Hop((root + i) % ranks, (root + i + 1) % ranks, t - i) for i in senders)

    return tuple(turn(t) for t in range(ranks - 2 + slices)) if ranks > 1 else ()
