"""Attention to some of the keys as a value that merges with attention to others (Milakov & Gimelshein 2018; Ch. 17,
`ch17.online_softmax`).

Merging is associative and commutative, with attention to no key as its identity: exactly in real numbers, to rounding
in floats.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Partial(NamedTuple):
    """What queries have of the keys seen so far, float32.

    Attributes:
      largest: [B, K, G, S], of the scores; -inf where no key was seen.
      total: [B, K, G, S], the sum of exp(score - largest).
      output: [B, K, G, S, H], the same sum weighing values.
    """

    largest: jax.Array
    total: jax.Array
    output: jax.Array


def merged(a: Partial, b: Partial) -> Partial:
    """Attention to the keys of both."""
    largest = jnp.maximum(a.largest, b.largest)
    scale_a, scale_b = (_exp(x.largest, largest) for x in (a, b))
    return Partial(
        largest, a.total * scale_a + b.total * scale_b, a.output * scale_a[..., None] + b.output * scale_b[..., None]
    )


def nothing(q_BSKGH: jax.Array, value_dim: int) -> Partial:
    """Attention of these queries to no key, whose value would have so many numbers: the identity of `merged`."""
    q_BKGSH = jnp.moveaxis(q_BSKGH, 1, 3)
    zero_BKGSH = jnp.zeros_like(q_BKGSH, jnp.float32, shape=(*q_BKGSH.shape[:-1], value_dim))
    return Partial(jnp.full_like(zero_BKGSH[..., 0], -jnp.inf), zero_BKGSH[..., 0], zero_BKGSH)


def attended(q_BSKGH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, seen_ST: jax.Array) -> Partial:
    """Attention to the keys of one block, some of which, or all, may be out of sight."""
    scores_BKGST = _scores(q_BSKGH, k_BTKH, seen_ST)
    largest_BKGS = jnp.max(scores_BKGST, axis=-1)
    weights_BKGST = _exp(scores_BKGST, largest_BKGS[..., None])
    output_BKGSH = jnp.einsum(
        "bkgst,btkh->bkgsh", weights_BKGST.astype(v_BTKH.dtype), v_BTKH, preferred_element_type=jnp.float32
    )
    return Partial(largest_BKGS, jnp.sum(weights_BKGST, axis=-1), output_BKGSH)


class Finished(NamedTuple):
    """Of all keys: y [B, S, K, G, H] in the dtype of the queries, and the logarithm of all exponentials, [B, K, G, S],
    which makes each weight again."""

    y: jax.Array
    log_total: jax.Array


def finished(a: Partial, dtype: jnp.dtype) -> Finished:
    y_BKGSH = (a.output / a.total[..., None]).astype(dtype)
    return Finished(jnp.moveaxis(y_BKGSH, 3, 1), a.largest + jnp.log(a.total))


class Gradients(NamedTuple):
    """Of one block's loss, float32: [B, S, K, G, H] and twice [B, T, K, H]."""

    query: jax.Array
    key: jax.Array
    value: jax.Array


class Pulled(NamedTuple):
    """What every block's gradients need of the queries: y's gradient, [B, S, K, G, H], its product with y, and
    `log_total`, both [B, K, G, S]."""

    y: jax.Array
    dot: jax.Array
    log_total: jax.Array


def pulled(done: Finished, y_bar_BSKGH: jax.Array) -> Pulled:
    dot_BKGS = jnp.einsum("bskgh,bskgh->bkgs", done.y, y_bar_BSKGH, preferred_element_type=jnp.float32)
    return Pulled(y_bar_BSKGH, dot_BKGS, done.log_total)


def block_gradients(
    q_BSKGH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, seen_ST: jax.Array, back: Pulled
) -> Gradients:
    """A block's share of the gradients: its weights are made again, so that none are kept (Dao et al. 2022)."""
    scores_BKGST = _scores(q_BSKGH, k_BTKH, seen_ST)
    weights_BKGST = jnp.exp(scores_BKGST - back.log_total[..., None])
    weights_bar_BKGST = jnp.einsum("bskgh,btkh->bkgst", back.y, v_BTKH, preferred_element_type=jnp.float32)
    scores_bar_BKGST = (weights_BKGST * (weights_bar_BKGST - back.dot[..., None]) * q_BSKGH.shape[-1] ** -0.5).astype(
        q_BSKGH.dtype
    )

    def product(dims: str, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.einsum(dims, x, y, preferred_element_type=jnp.float32)

    return Gradients(
        query=product("bkgst,btkh->bskgh", scores_bar_BKGST, k_BTKH),
        key=product("bkgst,bskgh->btkh", scores_bar_BKGST, q_BSKGH),
        value=product("bkgst,bskgh->btkh", weights_BKGST.astype(back.y.dtype), back.y),
    )


def _scores(q_BSKGH: jax.Array, k_BTKH: jax.Array, seen_ST: jax.Array) -> jax.Array:
    scores_BKGST = (
        jnp.einsum("bskgh,btkh->bkgst", q_BSKGH, k_BTKH, preferred_element_type=jnp.float32) * q_BSKGH.shape[-1] ** -0.5
    )
    return jnp.where(seen_ST, scores_BKGST, -jnp.inf)


def _exp(x: jax.Array, largest: jax.Array) -> jax.Array:
    """exp(x - largest), and zero where nothing was seen: -inf less -inf is no number."""
    return jnp.exp(x - jnp.where(jnp.isneginf(largest), 0, largest))
