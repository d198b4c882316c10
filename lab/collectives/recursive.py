"""Ranks paired up 1, 2, 4, ... places apart, which takes a power of two, 2^k (Thakur, Rabenseifner & Gropp 2005).

For other P the all_reduces fold: P - 2^k ranks first hand their buffer to a neighbour, and get the result back.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lab.collectives.cost import Cost, Pairs, permute, rounds
from lab.collectives.wires import (
    Axis,
    Op,
    backwards,
    block_size,
    join,
    merge,
    receive,
    split,
)
from lab.meshes.axes import Axes


def all_reduce_doubling(x: jax.Array, axis: Axis, op: Op) -> jax.Array:
    """Exchanges whole buffers at distance 1, 2, 4, ...; keeps the order of ranks, so `op` need only be associative, on
    whole arrays.

    Cost: floor(log2 P) steps of n; two more where P is no power of two.
    """
    P = jax.lax.axis_size(axis)
    x = merge(x, axis, _fold_pairs(P), op)
    for distance in exchange_distances(P):
        x = op(*_pair(x, axis, distance))
    return receive(x, axis, backwards(_fold_pairs(P)), otherwise=x)


def all_reduce_doubling_cost(axes: Axes, elements: int) -> Cost:
    exchanges = (
        rounds(permute(axes, _exchange_pairs(axes.size, distance), elements))
        for distance in exchange_distances(axes.size)
    )
    return _folded_cost(axes, elements, sum(exchanges, Cost()))


def all_reduce_halving(x: jax.Array, axis: Axis, op: Op) -> jax.Array:
    """A reduce_scatter by halving, then an all_gather by doubling (Rabenseifner); `op` elementwise and commutative.

    Cost: 2 floor(log2 P) steps of n/2, n/4, ..., n/P and back; two more of n where P is no power of two.
    """
    P = jax.lax.axis_size(axis)
    folded = merge(x, axis, _fold_pairs(P), op)
    x_QC = split(folded.reshape(-1), _power(P))
    sum_QC = all_gather_doubling(reduce_scatter_halving(x_QC, axis, op), axis)
    reduced = join(sum_QC, x.size).reshape(x.shape)
    return receive(reduced, axis, backwards(_fold_pairs(P)), otherwise=reduced)


def all_reduce_halving_cost(axes: Axes, elements: int) -> Cost:
    return _folded_cost(
        axes, elements, reduce_scatter_halving_cost(axes, elements) + all_gather_doubling_cost(axes, elements)
    )


def reduce_scatter_halving(x_QC: jax.Array, axis: Axis, op: Op) -> jax.Array:
    """[Q, C] to [C] over the Q = 2^k ranks that are paired: halves the buffer at distance Q/2, ..., 2, 1; `op`
    elementwise and commutative.

    Cost: log2 Q steps of n/2, n/4, ..., n/Q.
    """
    P = jax.lax.axis_size(axis)
    for distance in reversed(exchange_distances(P)):
        lower, upper = x_QC[:distance], x_QC[distance:]
        is_upper = _is_upper(axis, distance)
        kept, given = jnp.where(is_upper, upper, lower), jnp.where(is_upper, lower, upper)
        x_QC = op(kept, receive(given, axis, _exchange_pairs(P, distance), otherwise=kept))
    return x_QC[0]


def reduce_scatter_halving_cost(axes: Axes, elements: int) -> Cost:
    return sum((_blocks_cost(axes, elements, distance) for distance in reversed(exchange_distances(axes.size))), Cost())


def all_gather_doubling(x_C: jax.Array, axis: Axis) -> jax.Array:
    """[C] to [Q, C] over the Q = 2^k ranks that are paired: doubles the buffer at distance 1, 2, ..., Q/2.

    Cost: log2 Q steps of n/Q, ..., n/4, n/2.
    """
    x_QC = x_C[None]
    for distance in exchange_distances(jax.lax.axis_size(axis)):
        x_QC = jnp.concatenate(_pair(x_QC, axis, distance))
    return x_QC


def all_gather_doubling_cost(axes: Axes, elements: int) -> Cost:
    return sum((_blocks_cost(axes, elements, distance) for distance in exchange_distances(axes.size)), Cost())


def exchange_distances(ranks: int) -> list[int]:
    """1, 2, 4, ... below the greatest power of two that is at most P."""
    return [2**k for k in range(ranks.bit_length() - 1)]


def _power(ranks: int) -> int:
    return 2 ** (ranks.bit_length() - 1)


def _fold_pairs(ranks: int) -> Pairs:
    """The odd ones among the first ranks, each with the one before: that keeps the order."""
    return [(2 * i + 1, 2 * i) for i in range(ranks - _power(ranks))]


def _exchange_pairs(ranks: int, distance: int) -> Pairs:
    """Both ways between the ranks that stay, numbered without gaps."""
    extra = ranks - _power(ranks)
    stay = [2 * i if i < extra else i + extra for i in range(_power(ranks))]
    return [(stay[i], stay[i ^ distance]) for i in range(_power(ranks))]


def _is_upper(axis: Axis, distance: int) -> jax.Array:
    """Whether this rank is the second of its pair."""
    P, rank = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    extra = P - _power(P)
    number = jnp.where(rank < 2 * extra, rank // 2, rank - extra) if extra else rank
    return number // distance % 2 == 1


def _pair(x: jax.Array, axis: Axis, distance: int) -> tuple[jax.Array, jax.Array]:
    """`x` of the first and of the second rank of the pair, on both."""
    arrived = receive(x, axis, _exchange_pairs(jax.lax.axis_size(axis), distance), otherwise=x)
    is_upper = _is_upper(axis, distance)
    return jnp.where(is_upper, arrived, x), jnp.where(is_upper, x, arrived)


def _folded_cost(axes: Axes, elements: int, core: Cost) -> Cost:
    pairs = _fold_pairs(axes.size)
    return rounds(permute(axes, pairs, elements)) + core + rounds(permute(axes, backwards(pairs), elements))


def _blocks_cost(axes: Axes, elements: int, distance: int) -> Cost:
    blocks = distance * block_size(elements, _power(axes.size))
    return rounds(permute(axes, _exchange_pairs(axes.size, distance), blocks))
