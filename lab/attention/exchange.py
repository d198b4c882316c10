"""Attention over a split sequence without a ring: all keys gathered, or tokens exchanged for heads. One rank's part,
inside `jax.shard_map`."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from lab.attention import tiles
from lab.attention.mask import Mask
from lab.attention.order import CONTIGUOUS
from lab.meshes.errors import UsageError


def gathered_attention(q_BSKGH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, mask: Mask, axis: str) -> jax.Array:
    """Every rank gathers all keys and values and attends with its own queries, [B, S, K, G, H] (Llama team 2024; Ch.
    34, `ch34.cp`).

    Cost: two all-gathers of b S K H forward, in the backward pass two reduce-scatters of as much.
    """
    q_at_S = CONTIGUOUS.positions(
        q_BSKGH.shape[1] * jax.lax.axis_size(axis), jax.lax.axis_index(axis), jax.lax.axis_size(axis)
    )
    with jax.named_scope("keys"):
        k_BTKH = jax.lax.all_gather(k_BTKH, axis, axis=1, tiled=True)
    with jax.named_scope("values"):
        v_BTKH = jax.lax.all_gather(v_BTKH, axis, axis=1, tiled=True)
    return tiles.attend(q_BSKGH, k_BTKH, v_BTKH, mask, q_at_S)


def check_heads(kv_heads: int, queries: int, ranks: int) -> None:
    """Raises UsageError where heads do not split over the ranks, or ranks over the heads and their queries."""
    copies = _copies(kv_heads, ranks)
    if kv_heads * copies % ranks or ranks % copies or queries % copies:
        cure = "make one a multiple of the other, and queries one of the copies"
        raise UsageError(f"kv_heads={kv_heads} with queries={queries} each are not divisible by {ranks} ranks; {cure}")


def _copies(kv_heads: int, ranks: int) -> int:
    """Of each key-value head, so that every rank has one at least."""
    return max(1, ranks // kv_heads)


def ulysses_attention(
    q_BSKGH: jax.Array,
    k_BTKH: jax.Array,
    v_BTKH: jax.Array,
    mask: Mask,
    axis: str,
    attend: Callable[..., jax.Array] = tiles.attend,
) -> jax.Array:
    """Every rank exchanges its share of the tokens of all heads for all tokens of its share of the heads, attends, and
    exchanges back (Jacobs et al. 2023).

    Args:
      attend: attention of a rank's heads, to be given (q, k, v, mask).
    Raises:
      UsageError: see `check_heads`.

    Cost: all-to-alls of b (S / P) A H twice and b (S / P) max(K, P) H twice, forward and backward alike.
    """
    B, S, K, G, H = q_BSKGH.shape  # H of scores; values may be narrower.
    check_heads(K, G, jax.lax.axis_size(axis))
    copies = _copies(K, jax.lax.axis_size(axis))
    q_BSKGH = q_BSKGH.reshape(B, S, K * copies, G // copies, H)
    k_BTKH, v_BTKH = (jnp.repeat(x_BTKH, copies, axis=2) for x_BTKH in (k_BTKH, v_BTKH))
    whole = {
        name: _exchanged(name, x, axis, 2, 1)
        for name, x in {"queries": q_BSKGH, "keys": k_BTKH, "values": v_BTKH}.items()
    }
    y_BSKGH = attend(*whole.values(), mask)
    return _exchanged("outputs", y_BSKGH, axis, 1, 2).reshape(B, S, K, G, -1)


def _exchanged(name: str, x: jax.Array, axis: str, split: int, joined: int) -> jax.Array:
    with jax.named_scope(name):
        return jax.lax.all_to_all(x, axis, split, joined, tiled=True)
