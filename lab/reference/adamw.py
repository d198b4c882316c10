"""AdamW in closed form: moments and weights after any number of steps from the history of all gradients.

With gradients g_1 ... g_T: m_T = (1 - b1) sum_t b1^(T-t) g_t, v_T the same of squares with b2, and u_T = m_T / (1 -
b1^T) / (sqrt(v_T / (1 - b2^T)) + e). Where g_1 lies in the past and w_1 are the weights after it, w_T = (1 - r d)^(T-1)
w_1 - r sum_{t>1} (1 - r d)^(T-t) u_t for a learning rate r and a weight decay d. Source: Loshchilov & Hutter 2019, with
the betas of Brown et al. 2020; clipping by Pascanu et al. 2013.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lab.reference.layers import Array

LEARNING_RATE, B1, B2, EPSILON, DECAY = 3e-4, 0.9, 0.95, 1e-8, 0.1
CLIP = 1.0
BIAS_STEP = 1e-3
"""By which each step moves a router's bias towards balance (DeepSeek-V3)."""


def norm(gradients: Mapping[str, Array]) -> float:
    """Of all gradients together; a bias has none."""
    return float(np.sqrt(sum(np.sum(g**2) for name, g in gradients.items() if not is_bias(name))))


def is_bias(name: str) -> bool:
    return name.endswith("bias")


def clipped(gradients: Mapping[str, Array]) -> dict[str, Array]:
    """Scaled to a norm of 1 where theirs is larger."""
    scale = min(1.0, CLIP / norm(gradients))
    return {name: scale * g for name, g in gradients.items()}


def first_moment(history: Sequence[Array]) -> Array:
    return (1 - B1) * _sum([B1 ** (len(history) - t) * g for t, g in enumerate(history, 1)])


def second_moment(history: Sequence[Array]) -> Array:
    return (1 - B2) * _sum([B2 ** (len(history) - t) * g**2 for t, g in enumerate(history, 1)])


def _root(history: Sequence[Array]) -> Array:
    """What the first moment is divided by."""
    return np.sqrt(second_moment(history) / (1 - B2 ** len(history))) + EPSILON


def _step(history: Sequence[Array]) -> Array:
    return first_moment(history) / (1 - B1 ** len(history)) / _root(history)


def weight_after(name: str, start: Array, history: Sequence[Array]) -> Array:
    """From the weight after the first of the gradients in `history`, clipped ones, to that after the last; a bias goes
    by the sign of its excess load."""
    if is_bias(name):
        return start - BIAS_STEP * _sum([np.sign(excess) for excess in history[1:]])
    kept, T = 1 - LEARNING_RATE * DECAY, len(history)
    return kept ** (T - 1) * start - LEARNING_RATE * _sum(
        [kept ** (T - t) * _step(history[:t]) for t in range(2, T + 1)]
    )


def movable(history: Sequence[Array], errors: Sequence[float]) -> Array:
    """By how much each entry of `weight_after` may be off where no entry of g_t is off by more than `errors[t]`.

    Adam divides by the root of the second moment: |d u| <= d (1 + |u|) / (sqrt(v) + e), since neither m nor sqrt(v), a
    mean and a root of a mean square, can be off by more than the largest of the errors d.
    """
    steps = [history[:t] for t in range(2, len(history) + 1)]
    return LEARNING_RATE * _sum([max(errors[: len(h)]) * (1 + np.abs(_step(h))) / _root(h) for h in steps])


def _sum(terms: Sequence[Array]) -> Array:
    total: Array = np.sum(np.stack(terms), axis=0)
    return total
