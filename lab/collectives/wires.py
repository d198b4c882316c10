"""How ranks of a kernel speak to each other: permutes over lists of (source, target) pairs, and the blocks that they
carry."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from lab.collectives.cost import Pairs

Axis = str | tuple[str, ...]
"""A mesh axis inside `jax.shard_map`, or several as one, in row-major order."""

Op = Callable[[jax.Array, jax.Array], jax.Array]
"""An associative operation."""


def shift_pairs(ranks: int, by: int) -> Pairs:
    return [(rank, (rank + by) % ranks) for rank in range(ranks)]


def along(pairs: int | Pairs, ranks: int) -> Pairs:
    """Pairs as they are; a number of places on as pairs."""
    return shift_pairs(ranks, pairs) if isinstance(pairs, int) else pairs


def shift(x: jax.Array, axis: Axis, by: int) -> jax.Array:
    """Every rank sends `x` to the rank `by` places on, around the axis. What is empty, or at home, stays."""
    P = jax.lax.axis_size(axis)
    return jax.lax.ppermute(x, axis, shift_pairs(P, by)) if x.size and by % P else x


def receive(x: jax.Array, axis: Axis, pairs: Pairs, otherwise: jax.Array) -> jax.Array:
    """What arrives when `x` is sent over `pairs`; on a rank to which nothing is sent, `otherwise`."""
    if not pairs or not x.size:
        return otherwise
    arrived = jax.lax.ppermute(x, axis, pairs)
    return jnp.where(is_among([target for _, target in pairs], axis), arrived, otherwise)


def merge(x: jax.Array, axis: Axis, pairs: Pairs, op: Op) -> jax.Array:
    """`op(x, arrived)` where `x` of another rank arrives over `pairs`, `x` elsewhere."""
    # Where nothing arrives `op` meets x twice and not zeros, at which its gradient may not be finite.
    merged = op(x, receive(x, axis, pairs, otherwise=x)) if pairs and x.size else x
    return jnp.where(is_among([target for _, target in pairs], axis), merged, x)


def is_among(ranks: Sequence[int], axis: Axis) -> jax.Array | bool:
    """Whether this rank is one of `ranks`."""
    size = jax.lax.axis_size(axis)
    return len(ranks) == size or jnp.array([rank in ranks for rank in range(size)])[jax.lax.axis_index(axis)]


def backwards(pairs: Pairs) -> Pairs:
    return [(target, source) for source, target in pairs]


def block_size(elements: int, ranks: int) -> int:
    """Elements of one of `ranks` equal blocks, the last of them padded."""
    return -(-elements // ranks)


def parts_of(rows: int, count: int) -> list[tuple[int, int]]:
    """(start, size) of nearly equal parts; one at least, none of the others empty."""
    size = block_size(rows, count)
    return [(start, min(size, rows - start)) for start in range(0, max(rows, 1), max(size, 1))]


def split(x_NS: jax.Array, ranks: int) -> jax.Array:
    """[N, S] to [ranks, C, S], C = ceil(N / ranks): rows in order, zeros after them."""
    C = block_size(x_NS.shape[0], ranks)
    padding = [(0, ranks * C - x_NS.shape[0])] + [(0, 0)] * (x_NS.ndim - 1)
    return jnp.pad(x_NS, padding).reshape(ranks, C, *x_NS.shape[1:])


def join(x_PCS: jax.Array, rows: int | None = None) -> jax.Array:
    """[P, C, S] to [P C, S], or to its first `rows`."""
    P, C, *S = x_PCS.shape
    return x_PCS.reshape(P * C, *S)[:rows]


def pick(x_PC: jax.Array, block: jax.Array, start: int = 0, size: int | None = None) -> jax.Array:
    """Block number `block` modulo P; or `size` rows of it, from `start` on."""
    P, C, *S = x_PC.shape
    rows = C - start if size is None else size
    return jax.lax.dynamic_slice(x_PC, (block % P, start, *[0] * len(S)), (1, rows, *S))[0]


def put(x_PC: jax.Array, new_C: jax.Array, block: jax.Array, start: int = 0) -> jax.Array:
    """`x` with block number `block` modulo P replaced; or as many rows of it as `new` has, from `start` on."""
    return jax.lax.dynamic_update_slice(x_PC, new_C[None], (block % x_PC.shape[0], start, *[0] * (x_PC.ndim - 2)))


def everywhere(x_C: jax.Array, axis: Axis) -> jax.Array:
    """[P, C], to be overwritten."""
    return jnp.broadcast_to(x_C, (jax.lax.axis_size(axis), *x_C.shape))


def in_turn(first: jax.Array, then: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both as they are; what is made of either has to wait for both.

    So XLA neither fuses into one kernel what belongs beside different messages, nor puts it off until the last of them.
    """
    return jax.lax.optimization_barrier((first, then))


def rotate(x_PC: jax.Array, by: jax.Array) -> jax.Array:
    """Block i of the result is block i + `by` modulo P."""
    P = x_PC.shape[0]
    return jax.lax.dynamic_slice_in_dim(jnp.concatenate([x_PC, x_PC]), by % P, P)


def in_rank_order(from_behind_PC: jax.Array, axis: Axis) -> jax.Array:
    """Blocks of which block i is from the rank i places back: block r is from rank r."""
    return rotate(from_behind_PC[::-1], -(jax.lax.axis_index(axis) + 1))
