"""AdamW in closed form: moments and weights after any number of steps from the history of all gradients.

With gradients g_1 ... g_T: m_T = (1 - b1) sum_t b1^(T-t) g_t, v_T the same of squares with b2, u_T = m_T / (1 - b1^T) /
(sqrt(v_T / (1 - b2^T)) + e), and w_T = (1 - r d)^T w_0 - r sum_t (1 - r d)^(T-t) u_t for a learning rate r and a weight
decay d. Source: Loshchilov & Hutter 2019, with the betas of Brown et al. 2020; clipping by Pascanu et al. 2013.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lab.reference.layers import Array

LEARNING_RATE, B1, B2, EPSILON, DECAY = 3e-4, 0.9, 0.95, 1e-8, 0.1
CLIP = 1.0
BIAS_STEP = 1e-3
"""By which each step moves a router's bias towards balance (DeepSeek-V3)."""
LARGEST_STEP = 1.1
"""No entry of u_1, u_2 or u_3 is larger: by Cauchy and Schwarz |u_T| <= sqrt(sum a_t^2 / c_t), the shares that m_T and
v_T give each step; 1.002 for T = 3."""


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
    """After as many steps as its history of clipped gradients is long; a bias goes by the sign of its excess load."""
    if is_bias(name):
        return start - BIAS_STEP * _sum([np.sign(excess) for excess in history])
    kept, T = 1 - LEARNING_RATE * DECAY, len(history)
    return kept**T * start - LEARNING_RATE * _sum([kept ** (T - t) * _step(history[:t]) for t in range(1, T + 1)])


def movable(history: Sequence[Array], errors: Sequence[float]) -> Array:
    """By how much each entry of a weight may be off where no entry of g_t is off by more than `errors[t]`.

    Adam divides by the root of the second moment, so that an entry whose gradient is not much larger than its error is
    hardly known: |d u| <= d (1 + |u|) / (sqrt(v) + e), since neither m nor sqrt(v), a mean and a root of a mean square,
    can be off by more than the largest of the errors d; and no step is larger than `LARGEST_STEP`.
    """
    moved = []
    for t in range(1, len(history) + 1):
        step, error = np.abs(_step(history[:t])), max(errors[:t])
        moved.append(np.minimum(error * (1 + step) / _root(history[:t]), step + LARGEST_STEP))
    return LEARNING_RATE * _sum(moved)


def _sum(terms: Sequence[Array]) -> Array:
    return np.sum(np.stack(terms), axis=0)
