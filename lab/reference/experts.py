"""A layer of experts, with what keeps their loads in balance.

Dims: B sequences of S tokens, N = B S, D embed, E experts. Source: Ch. 18 and 35; Fedus et al. 2021 (balance), Zoph et
al. 2022 (z), DeepSeek-AI 2024 (arXiv:2412.19437: bias).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lab.programs.models.shape import DecoderShape
from lab.reference.layers import Array, log_sum_exp, mlp, sigmoid, softmax, softmax_pulled
from lab.reference.routing import routing

Weights = Mapping[str, Array]
"""Of one layer, or their gradients, by name."""
Parts = NDArray[np.integer]
"""[parts, tokens of one]: which tokens of a sequence are routed together, and in which order they ask for slots."""


@dataclass(frozen=True)
class Mixture:
    """
    Attributes:
      auxiliary: losses of balance and z, which are added to what is differentiated and not to the loss that is shown.
      margin_B: by how much each sequence's closest choice was decided; see `Routing`.
      pull: from the gradient of the result to those of x_BSD and of the weights; a bias has the assignments to its
        expert beyond the mean instead.
    """

    y_BSD: Array
    auxiliary: float
    margin_B: Array
    pull: Callable[[Array], tuple[Array, dict[str, Array]]]


def mixture(x_BSD: Array, w: Weights, shape: DecoderShape, parts_Ps: Parts | None = None) -> Mixture:
    """What the experts that a router chooses make of each token; each sequence is routed by itself, or each of its
    `parts_Ps`, in the order that they have there."""
    if parts_Ps is None:
        return _of_sequences(x_BSD, w, shape)
    B, S, D = x_BSD.shape
    P, s = parts_Ps.shape
    place_S = np.argsort(parts_Ps.reshape(-1))

    def apart(x_BSD: Array) -> Array:
        return x_BSD[:, parts_Ps].reshape(B * P, s, D)

    def together(x_NsD: Array) -> Array:
        return x_NsD.reshape(B, S, D)[:, place_S]

    def pull(dy_BSD: Array) -> tuple[Array, dict[str, Array]]:
        dx_NsD, gradients = found.pull(apart(dy_BSD))
        return together(dx_NsD), gradients

    found = _of_sequences(apart(x_BSD), w, replace(shape, length=s))
    return Mixture(together(found.y_BSD), found.auxiliary, found.margin_B.reshape(B, P).min(1), pull)


def _of_sequences(x_BSD: Array, w: Weights, shape: DecoderShape) -> Mixture:
    B, S, D = x_BSD.shape
    N, E, x_ND = B * S, shape.experts, x_BSD.reshape(-1, D)
    logits_NE = x_ND @ w["router"]
    gates_NE = sigmoid(logits_NE) if shape.router == "sigmoid_bias" else softmax(logits_NE)
    routings = [routing(gates_NE[b * S : (b + 1) * S], w.get("bias"), shape) for b in range(B)]
    is_chosen_NE, is_served_NE = np.zeros((N, E)), np.zeros((N, E))
    for b, found in enumerate(routings):
        for token, expert in found.chosen:
            is_chosen_NE[b * S + token, expert] = 1
        for token, expert in found.served:
            is_served_NE[b * S + token, expert] = 1

    # What is dropped counts among a token's weights all the same. A single choice keeps its gate, and so a gradient.
    is_normalised = shape.router != "expert_choice" and shape.top_k > 1
    sum_N1 = np.sum(gates_NE * is_chosen_NE, axis=-1, keepdims=True) if is_normalised else np.ones((N, 1))
    share_NE = gates_NE * is_chosen_NE / sum_N1
    weight_NE = shape.routed_scale * share_NE
    y_ND, visits = np.zeros((N, D)), []
    matrices = [name for name in ("gate", "up", "down") if name in w]
    for expert in range(E):
        tokens = np.flatnonzero(is_served_NE[:, expert])
        out_nD, pull_expert = mlp(x_ND[tokens], {name: w[name][expert] for name in matrices}, shape.activation)
        y_ND[tokens] += weight_NE[tokens, expert, None] * out_nD
        visits.append((tokens, out_nD, pull_expert))

    auxiliary, dgates_of_auxiliary_NE, dlogits_of_auxiliary_NE = _auxiliary(logits_NE, gates_NE, is_chosen_NE, shape)

    def pull(dy_BSD: Array) -> tuple[Array, dict[str, Array]]:
        dy_ND = dy_BSD.reshape(N, D)
        dx_ND, dshare_NE = np.zeros((N, D)), np.zeros((N, E))
        gradients = {name: np.zeros_like(w[name]) for name in matrices}
        for expert, (tokens, out_nD, pull_expert) in enumerate(visits):
            dshare_NE[tokens, expert] = shape.routed_scale * np.sum(dy_ND[tokens] * out_nD, axis=-1)
            dx_nD, of_matrices = pull_expert(weight_NE[tokens, expert, None] * dy_ND[tokens])
            dx_ND[tokens] += dx_nD
            for name, gradient in of_matrices.items():
                gradients[name][expert] = gradient
        of_sum_N1 = np.sum(dshare_NE * share_NE, axis=-1, keepdims=True) if is_normalised else 0.0
        dgates_NE = is_chosen_NE * (dshare_NE - of_sum_N1) / sum_N1 + dgates_of_auxiliary_NE
        is_sigmoid = shape.router == "sigmoid_bias"
        dlogits_NE = dgates_NE * gates_NE * (1 - gates_NE) if is_sigmoid else softmax_pulled(dgates_NE, gates_NE)
        dlogits_NE = dlogits_NE + dlogits_of_auxiliary_NE
        gradients["router"] = x_ND.T @ dlogits_NE
        if "bias" in w:
            gradients["bias"] = np.sum(is_chosen_NE, axis=0) - np.sum(is_chosen_NE) / E
        return (dx_ND + dlogits_NE @ w["router"].T).reshape(B, S, D), gradients

    return Mixture(y_ND.reshape(B, S, D), auxiliary, np.array([found.margin for found in routings]), pull)


def _auxiliary(
    logits_NE: Array, gates_NE: Array, is_chosen_NE: Array, shape: DecoderShape
) -> tuple[float, Array, Array]:
    """The mean over sequences of balance E sum_i f_i p_i (f: shares of assignments, p: mean gates that sum to 1) and of
    z times the mean squared log of the sum of exponentials; its gradients by the gates and by the logits."""
    N, E = gates_NE.shape
    B = N // shape.length
    by_sequence = (B, shape.length, E)
    loss, dgates_NE, dlogits_NE = 0.0, np.zeros((N, E)), np.zeros((N, E))
    if shape.balance and shape.router != "expert_choice":  # Full slots are in balance.
        assigned_BE = np.mean(is_chosen_NE.reshape(by_sequence), axis=1) / shape.top_k
        sum_N1 = np.sum(gates_NE, axis=-1, keepdims=True)
        share_NE = gates_NE / sum_N1
        loss += shape.balance / B * E * float(np.sum(assigned_BE * np.mean(share_NE.reshape(by_sequence), axis=1)))
        dshare_NE = shape.balance / B * E * np.repeat(assigned_BE, shape.length, axis=0) / shape.length
        dgates_NE = (dshare_NE - np.sum(dshare_NE * share_NE, axis=-1, keepdims=True)) / sum_N1
    if shape.z:
        log_sum_N1 = log_sum_exp(logits_NE)
        loss += shape.z * float(np.mean(log_sum_N1**2))
        dlogits_NE = shape.z / N * 2 * log_sum_N1 * softmax(logits_NE)
    return loss, dgates_NE, dlogits_NE
