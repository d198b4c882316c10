"""Binomial trees: half of the ranks hand what they have to the other half, then half of those, until one rank has it;
and back.

Ranks are counted from the root, around the axis.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lab.collectives import ring
from lab.collectives.circulant import distances
from lab.collectives.cost import Cost, Pairs, permute, rounds
from lab.collectives.wires import (
    Axis,
    Op,
    backwards,
    block_size,
    is_among,
    join,
    merge,
    receive,
    split,
)
from lab.meshes.axes import Axes


def reduce(x: jax.Array, axis: Axis, root: int, op: Op) -> jax.Array:
    """The result on `root`, zeros elsewhere; `op` on whole arrays, associative, and commutative unless the root is rank
    0.

    Cost: ceil(log2 P) steps of n.
    """
    return only_on(root, _to_root(x, axis, root, op), axis)


def broadcast(x: jax.Array, axis: Axis, root: int) -> jax.Array:
    """`x` of `root` everywhere.

    Cost: ceil(log2 P) steps of n.
    """
    P = jax.lax.axis_size(axis)
    for distance in reversed(distances(P)):
        x = receive(x, axis, backwards(_pairs(P, distance, root)), otherwise=x)
    return x


def all_reduce(x: jax.Array, axis: Axis, op: Op) -> jax.Array:
    """A reduce to rank 0, then a broadcast; keeps the order of ranks, so `op` need only be associative, on whole
    arrays.

    Cost: 2 ceil(log2 P) steps of n.
    """
    return broadcast(_to_root(x, axis, 0, op), axis, 0)


def reduce_cost(axes: Axes, elements: int) -> Cost:
    return sum(
        (rounds(permute(axes, _pairs(axes.size, distance), elements)) for distance in distances(axes.size)), Cost()
    )


def broadcast_cost(axes: Axes, elements: int) -> Cost:
    down = (backwards(_pairs(axes.size, distance)) for distance in reversed(distances(axes.size)))
    return sum((rounds(permute(axes, pairs, elements)) for pairs in down), Cost())


def all_reduce_cost(axes: Axes, elements: int) -> Cost:
    return reduce_cost(axes, elements) + broadcast_cost(axes, elements)


def gather(x_C: jax.Array, axis: Axis, root: int) -> jax.Array:
    """[C] to [P, C]: block r from rank r, on `root`; zeros elsewhere.

    Cost: ceil(log2 P) steps; the root gets (P - 1) / P of the result.
    """
    P, held_DC = jax.lax.axis_size(axis), x_C[None]  # Block i is from i places on.
    for distance in distances(P):
        sent_DC = held_DC[: P - distance]
        arrived_DC = receive(sent_DC, axis, _pairs(P, distance, root), otherwise=jnp.zeros_like(sent_DC))
        held_DC = jnp.concatenate([held_DC, arrived_DC])
    return only_on(root, jnp.roll(held_DC, root, axis=0), axis)


def scatter(x_PC: jax.Array, axis: Axis, root: int) -> jax.Array:
    """[P, C] of `root` to [C]: block r on rank r.

    Cost: ceil(log2 P) steps; the root sends (P - 1) / P of its buffer.
    """
    P, held_DC = jax.lax.axis_size(axis), jnp.roll(x_PC, -root, axis=0)  # Block i is due i places on.
    for distance in reversed(distances(P)):
        kept_DC, sent_DC = held_DC[:distance], held_DC[distance:]
        count = sent_DC.shape[0]
        arrived_DC = receive(sent_DC, axis, backwards(_pairs(P, distance, root)), otherwise=kept_DC[:count])
        held_DC = jnp.concatenate([arrived_DC, kept_DC[count:]])
    return held_DC[0]


def gather_cost(axes: Axes, elements: int) -> Cost:
    return sum(
        (_blocks_cost(axes, elements, distance, _pairs(axes.size, distance)) for distance in distances(axes.size)),
        Cost(),
    )


def scatter_cost(axes: Axes, elements: int) -> Cost:
    down = reversed(distances(axes.size))
    return sum(
        (_blocks_cost(axes, elements, distance, backwards(_pairs(axes.size, distance))) for distance in down), Cost()
    )


def broadcast_by_blocks(x: jax.Array, axis: Axis, root: int) -> jax.Array:
    """A scatter down the tree, then an all_gather around the ring (van de Geijn; Thakur, Rabenseifner & Gropp 2005).

    Cost: ceil(log2 P) + P - 1 steps; sends 2 (P - 1) / P of the buffer.
    """
    x_PC = split(x.reshape(-1), jax.lax.axis_size(axis))
    return join(ring.all_gather(scatter(x_PC, axis, root), axis), x.size).reshape(x.shape)


def broadcast_by_blocks_cost(axes: Axes, elements: int) -> Cost:
    return scatter_cost(axes, elements) + ring.half_cost(axes, elements)


def reduce_by_blocks(x: jax.Array, axis: Axis, root: int, op: Op) -> jax.Array:
    """A reduce_scatter around the ring, then a gather up the tree; `op` elementwise and commutative.

    Cost: P - 1 + ceil(log2 P) steps; sends 2 (P - 1) / P of the buffer.
    """
    x_PC = split(x.reshape(-1), jax.lax.axis_size(axis))
    return join(gather(ring.reduce_scatter(x_PC, axis, op), axis, root), x.size).reshape(x.shape)


def reduce_by_blocks_cost(axes: Axes, elements: int) -> Cost:
    return ring.half_cost(axes, elements) + gather_cost(axes, elements)


def only_on(root: int, x: jax.Array, axis: Axis) -> jax.Array:
    """`x` on rank `root`, zeros elsewhere."""
    return jnp.where(is_among([root], axis), x, jnp.zeros_like(x))


def _to_root(x: jax.Array, axis: Axis, root: int, op: Op) -> jax.Array:
    P = jax.lax.axis_size(axis)
    for distance in distances(P):
        x = merge(x, axis, _pairs(P, distance, root), op)
    return x


def _pairs(ranks: int, distance: int, root: int = 0) -> Pairs:
    """Towards the root: of the ranks still in play, each second one to the one before."""
    targets = range(0, ranks - distance, 2 * distance)
    return [((root + rank + distance) % ranks, (root + rank) % ranks) for rank in targets]


def _blocks_cost(axes: Axes, elements: int, distance: int, pairs: Pairs) -> Cost:
    blocks = min(distance, axes.size - distance) * block_size(elements, axes.size)
    return rounds(permute(axes, pairs, blocks))
