"""Blocks of attention by tiles of keys: the scores of one tile alone are at hand, so that a block needs memory linear
in its tokens (Dao et al. 2022; Ch. 17, `ch17.flash_ring_memory`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import add
from typing import TypeVar

import jax
import jax.numpy as jnp

from lab.attention import softmax
from lab.attention.mask import CAUSAL, Mask
from lab.attention.softmax import (
    Finished,
    Gradients,
    Partial,
    Pulled,
    finished,
    merged,
    nothing,
    pulled,
)

Kept = tuple[jax.Array, jax.Array, jax.Array, jax.Array | None, Finished]
"""Queries, keys, values, positions of the queries and what came of them, for the backward pass."""
Total = TypeVar("Total")
Own = TypeVar("Own")
TILE = 512
"""Keys of a tile, at most."""


def tile_size(keys: int) -> int:
    """The largest that splits so many keys evenly and is no larger than a tile."""
    return max(size for size in range(1, min(keys, TILE) + 1) if keys % size == 0)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def attend(
    q_BSKGH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, mask: Mask = CAUSAL, q_at_S: jax.Array | None = None
) -> jax.Array:
    """[B, S, K, G, H] of all keys: `dense.attend` without its scores. The backward pass makes each tile's again."""
    return _forward(q_BSKGH, k_BTKH, v_BTKH, mask, q_at_S)[0]


def _forward(
    q_BSKGH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, mask: Mask, q_at_S: jax.Array | None
) -> tuple[jax.Array, Kept]:
    done = finished(attended(q_BSKGH, k_BTKH, v_BTKH, mask, *_positions(q_BSKGH, k_BTKH, q_at_S)), q_BSKGH.dtype)
    return done.y, (q_BSKGH, k_BTKH, v_BTKH, q_at_S, done)


def _backward(mask: Mask, kept: Kept, y_bar_BSKGH: jax.Array) -> tuple[jax.Array | None, ...]:
    q_BSKGH, k_BTKH, v_BTKH, q_at_S, done = kept
    at = _positions(q_BSKGH, k_BTKH, q_at_S)
    found = block_gradients(q_BSKGH, k_BTKH, v_BTKH, mask, *at, pulled(done, y_bar_BSKGH))
    return *(bar.astype(x.dtype) for bar, x in zip(found, (q_BSKGH, k_BTKH, v_BTKH), strict=True)), None


attend.defvjp(_forward, _backward)


def _positions(q_BSKGH: jax.Array, k_BTKH: jax.Array, q_at_S: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    return jnp.arange(q_BSKGH.shape[1]) if q_at_S is None else q_at_S, jnp.arange(k_BTKH.shape[1])


def attended(
    q_BSKGH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, mask: Mask, q_at_S: jax.Array, k_at_T: jax.Array
) -> Partial:
    """Attention to the keys of one block, of queries and keys at these positions."""

    def of_tile(k_BtKH: jax.Array, v_BtKH: jax.Array, k_at_t: jax.Array) -> tuple[Partial, None]:
        return softmax.attended(q_BSKGH, k_BtKH, v_BtKH, mask.seen(q_at_S, _with_keys(k_at_t, k_BtKH))), None

    return _over_tiles(of_tile, merged, nothing(q_BSKGH, v_BTKH.shape[-1]), k_BTKH, v_BTKH, k_at_T)[0]


def block_gradients(
    q_BSKGH: jax.Array,
    k_BTKH: jax.Array,
    v_BTKH: jax.Array,
    mask: Mask,
    q_at_S: jax.Array,
    k_at_T: jax.Array,
    back: Pulled,
) -> Gradients:
    """The block's share of the gradients."""

    def of_tile(k_BtKH: jax.Array, v_BtKH: jax.Array, k_at_t: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        query, *own = softmax.block_gradients(
            q_BSKGH, k_BtKH, v_BtKH, mask.seen(q_at_S, _with_keys(k_at_t, k_BtKH)), back
        )
        return query, tuple(own)

    query, (key, value) = _over_tiles(of_tile, add, jnp.zeros_like(q_BSKGH, jnp.float32), k_BTKH, v_BTKH, k_at_T)
    return Gradients(query, key, value)


def _with_keys(k_at_t: jax.Array, k_BtKH: jax.Array) -> jax.Array:
    """Positions no earlier than their keys: known before, they would have JAX make the masks of all tiles and heads
    first, and keep them."""
    return jax.lax.optimization_barrier((k_at_t, k_BtKH))[0]


def _over_tiles(
    of_tile: Callable[[jax.Array, jax.Array, jax.Array], tuple[Total, Own]],
    plus: Callable[[Total, Total], Total],
    zero: Total,
    k_BTKH: jax.Array,
    v_BTKH: jax.Array,
    k_at_T: jax.Array,
) -> tuple[Total, Own]:
    """The sum of what tiles give for the queries, and what each gives for its own keys, [B, T, ...]. One after the
    other: of a tile outside the loop, the scores would stand beside all others."""
    tiles = k_BTKH.shape[1] // tile_size(k_BTKH.shape[1])
    if tiles == 1:
        return of_tile(k_BTKH, v_BTKH, k_at_T)

    def following(total: Total, tile: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[Total, Own]:
        more, own = of_tile(*tile)
        return plus(total, more), own

    total, own_n = jax.lax.scan(
        following, zero, (parted(k_BTKH, tiles), parted(v_BTKH, tiles), k_at_T.reshape(tiles, -1))
    )
    return total, jax.tree.map(joined, own_n)


def parted(x_BSX: jax.Array, pieces: int) -> jax.Array:
    """[n, B, S / n, ...]"""
    return jnp.moveaxis(x_BSX.reshape(x_BSX.shape[0], pieces, -1, *x_BSX.shape[2:]), 1, 0)


def joined(x_nBSX: jax.Array) -> jax.Array:
    """[B, n S, ...]"""
    return jnp.moveaxis(x_nBSX, 0, 1).reshape(x_nBSX.shape[1], -1, *x_nBSX.shape[3:])
