"""What a decoder is made of, each as its value and its pullback: from the gradient of the value to those of what it was
made from.

Dims: B sequences of S tokens, D embed, F mlp, V vocabulary, H head dim, n any head dims, I inputs, O outputs. Float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Tokens = NDArray[np.integer]
NORM_EPSILON = 1e-5
ROTARY_BASE = 500_000.0


def rms_norm(x_BSD: Array, scale_D: Array) -> tuple[Array, Callable[[Array], tuple[Array, Array]]]:
    """x / sqrt(mean x^2 + 1e-5) times the scale, over the last dim of any number; its pullback gives the gradients of
    both."""
    root_BS1 = np.sqrt(np.mean(x_BSD**2, axis=-1, keepdims=True) + NORM_EPSILON)
    unit_BSD = x_BSD / root_BS1

    def pull(dy_BSD: Array) -> tuple[Array, Array]:
        du_BSD = dy_BSD * scale_D
        dx_BSD = (du_BSD - unit_BSD * np.mean(du_BSD * unit_BSD, axis=-1, keepdims=True)) / root_BS1
        return dx_BSD, np.sum(dy_BSD * unit_BSD, axis=tuple(range(dy_BSD.ndim - 1)))

    return unit_BSD * scale_D, pull


def rotated(x_BSnH: Array, sense: int = 1) -> Array:
    """Token s turns its pair (i, i + H / 2) by the angle s base^(-2 i / H); -1 turns back, which is the pullback."""
    S, half = x_BSnH.shape[1], x_BSnH.shape[-1] // 2
    turn_SH = np.exp(1j * sense * np.outer(np.arange(S), ROTARY_BASE ** (-np.arange(half) / half)))
    pairs = x_BSnH[..., :half] + 1j * x_BSnH[..., half:]
    pairs = pairs * turn_SH.reshape(S, *(1,) * (x_BSnH.ndim - 3), half)
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


def linear(x: Array, w: Array) -> tuple[Array, Callable[[Array], tuple[Array, Array]]]:
    """[..., S, I] x [I, ...]: the product over the last dim of x; the pullback gives the gradients of x and w."""
    w_IO = w.reshape(x.shape[-1], -1)
    sizes = *x.shape[:-1], *w.shape[1:]

    def pull(dy: Array) -> tuple[Array, Array]:
        dy_SO = dy.reshape(*x.shape[:-1], w_IO.shape[1])
        # Sequence by sequence, then their sum: matrices too small for BLAS to wake its threads for.
        by_sequence = np.swapaxes(x, -1, -2) @ dy_SO
        return dy_SO @ w_IO.T, np.sum(by_sequence.reshape(-1, *w_IO.shape), axis=0).reshape(w.shape)

    return (x @ w_IO).reshape(sizes), pull


def swiglu(
    x: Array, gate_DF: Array, up_DF: Array, down_FD: Array
) -> tuple[Array, Callable[[Array], tuple[Array, Array, Array, Array]]]:
    """(silu(x gate) * x up) down of [..., S, D]; the pullback gives the gradients of x and of the three matrices."""
    gate, pull_gate = linear(x, gate_DF)
    up, pull_up = linear(x, up_DF)
    share = sigmoid(gate)
    y, pull_down = linear(gate * share * up, down_FD)

    def pull(dy: Array) -> tuple[Array, Array, Array, Array]:
        dhidden, ddown_FD = pull_down(dy)
        by_gate, dgate_DF = pull_gate(dhidden * up * share * (1 + gate * (1 - share)))
        by_up, dup_DF = pull_up(dhidden * gate * share)
        return by_gate + by_up, dgate_DF, dup_DF, ddown_FD

    return y, pull


def relu2(x: Array) -> tuple[Array, Array]:
    """The square of what is positive, and its slope."""
    positive = np.where(x > 0, x, 0.0)
    return positive**2, 2 * positive


def gelu(x: Array) -> tuple[Array, Array]:
    """x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), and its slope."""
    root = np.sqrt(2 / np.pi)
    bent = np.tanh(root * (x + 0.044715 * x**3))
    return x / 2 * (1 + bent), (1 + bent) / 2 + x / 2 * (1 - bent**2) * root * (1 + 3 * 0.044715 * x**2)


UNGATED = {"relu2": relu2, "gelu": gelu}


def ungated(
    x: Array, up_DF: Array, down_FD: Array, activation: str
) -> tuple[Array, Callable[[Array], tuple[Array, Array, Array]]]:
    """a(x up) down of [..., S, D]; the pullback gives the gradients of x and of the two matrices."""
    up, pull_up = linear(x, up_DF)
    hidden, slope = UNGATED[activation](up)
    y, pull_down = linear(hidden, down_FD)

    def pull(dy: Array) -> tuple[Array, Array, Array]:
        dhidden, ddown_FD = pull_down(dy)
        dx, dup_DF = pull_up(dhidden * slope)
        return dx, dup_DF, ddown_FD

    return y, pull


def mlp(
    x: Array, matrices: Mapping[str, Array], activation: str
) -> tuple[Array, Callable[[Array], tuple[Array, dict[str, Array]]]]:
    """An MLP of [..., S, D], of its matrices by name; the pullback gives the gradients of x and of these."""
    names = ("gate", "up", "down") if activation == "swiglu" else ("up", "down")
    pull_all: Callable[[Array], tuple[Array, ...]]
    if activation == "swiglu":
        y, pull_all = swiglu(x, matrices["gate"], matrices["up"], matrices["down"])
    else:
        y, pull_all = ungated(x, matrices["up"], matrices["down"], activation)

    def pull(dy: Array) -> tuple[Array, dict[str, Array]]:
        dx, *of_matrices = pull_all(dy)
        return dx, dict(zip(names, of_matrices, strict=True))

    return y, pull


def mean_cross_entropy(logits_BSV: Array, targets_BS: Tokens) -> tuple[float, Array]:
    """The mean loss of all tokens, and its gradient by the logits."""
    at_BS1 = targets_BS[..., None]
    logarithms_BSV = logits_BSV - log_sum_exp(logits_BSV)
    dlogits_BSV = np.exp(logarithms_BSV)
    np.put_along_axis(dlogits_BSV, at_BS1, np.take_along_axis(dlogits_BSV, at_BS1, axis=-1) - 1, axis=-1)
    return -float(np.mean(np.take_along_axis(logarithms_BSV, at_BS1, axis=-1))), dlogits_BSV / targets_BS.size


def softmax(x: Array) -> Array:
    """Along the last dim."""
    powers: Array = np.exp(x - np.max(x, axis=-1, keepdims=True))
    total: Array = np.sum(powers, axis=-1, keepdims=True)
    return powers / total


def softmax_pulled(dy: Array, y: Array) -> Array:
    """From the gradient of a softmax `y` to that of what it was taken of."""
    along: Array = np.sum(dy * y, axis=-1, keepdims=True)
    return y * (dy - along)


def log_sum_exp(x: Array) -> Array:
    """Along the last dim, which is kept."""
    largest: Array = np.max(x, axis=-1, keepdims=True)
    logarithm: Array = np.log(np.sum(np.exp(x - largest), axis=-1, keepdims=True))
    return largest + logarithm


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))
