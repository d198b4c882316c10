"""Attention with all keys at hand: scores and softmax in one piece."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lab.attention.mask import CAUSAL, Mask


def attend(
    q_BSKGH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, mask: Mask = CAUSAL, q_at_S: jax.Array | None = None
) -> jax.Array:
    """[B, S, K, G, H], scores and softmax in float32; each of K key-value heads serves G queries (Ainslie et al. 2023).

    Args:
      q_at_S: positions of the queries; of the first S tokens where they are not given. Keys are those of all T tokens,
        in order.
    """
    scores_BKGST = (
        jnp.einsum("bskgh,btkh->bkgst", q_BSKGH, k_BTKH, preferred_element_type=jnp.float32) * q_BSKGH.shape[-1] ** -0.5
    )
    S, T = scores_BKGST.shape[-2:]
    seen_ST = mask.seen(jnp.arange(S) if q_at_S is None else q_at_S, jnp.arange(T))
    weights_BKGST = jax.nn.softmax(jnp.where(seen_ST, scores_BKGST, -jnp.inf)).astype(v_BTKH.dtype)
    return jnp.einsum("bkgst,btkh->bskgh", weights_BKGST, v_BTKH)
