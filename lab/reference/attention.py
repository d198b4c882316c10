"""Attention of grouped queries, over the whole sequence.

Dims: B sequences, S queries, T keys, K key-value heads, G queries a key-value head, H head dim. Source: Vaswani et al.
2017, Ainslie et al. 2023 (GQA), Beltagy et al. 2020 (windows).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lab.reference.layers import Array, softmax, softmax_pulled


def sees(query: int, key: int, causal: bool, window: int) -> bool:
    """Whether the token at `query` attends to that at `key`: to none after it, and with a window to the nearest
    `window` tokens, its own among them."""
    if not causal:
        return True
    if key > query:
        return False
    return window == 0 or query - key <= window - 1


def attention(
    q_BSKGH: Array, k_BTKH: Array, v_BTKH: Array, causal: bool, window: int
) -> tuple[Array, Callable[[Array], tuple[Array, Array, Array]]]:
    """[B, S, K, G, H]; the pullback gives the gradients of queries, keys and values."""
    S, T, scale = q_BSKGH.shape[1], k_BTKH.shape[1], q_BSKGH.shape[-1] ** -0.5
    is_hidden_ST = np.array([[not sees(s, t, causal, window) for t in range(T)] for s in range(S)])
    # One key-value head for each of its queries: [B, K, 1, T, H].
    q_BKGSH, k_BK1TH, v_BK1TH = np.moveaxis(q_BSKGH, 1, 3), _by_head(k_BTKH), _by_head(v_BTKH)
    scores_BKGST = scale * (q_BKGSH @ _transposed(k_BK1TH))
    scores_BKGST[..., is_hidden_ST] = -np.inf
    weights_BKGST = softmax(scores_BKGST)

    def pull(dy_BSKGH: Array) -> tuple[Array, Array, Array]:
        dy_BKGSH = np.moveaxis(dy_BSKGH, 1, 3)
        dscores_BKGST = scale * softmax_pulled(dy_BKGSH @ _transposed(v_BK1TH), weights_BKGST)
        dq_BKGSH = dscores_BKGST @ k_BK1TH
        dk_BKTH = np.sum(_transposed(dscores_BKGST) @ q_BKGSH, axis=2)
        dv_BKTH = np.sum(_transposed(weights_BKGST) @ dy_BKGSH, axis=2)
        return np.moveaxis(dq_BKGSH, 3, 1), np.moveaxis(dk_BKTH, 2, 1), np.moveaxis(dv_BKTH, 2, 1)

    return np.moveaxis(weights_BKGST @ v_BK1TH, 3, 1), pull


def _by_head(x_BTKH: Array) -> Array:
    return np.moveaxis(x_BTKH, 1, 2)[:, :, None]


def _transposed(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)
