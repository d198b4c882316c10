"""Part IV: mixtures of experts: what they compute, send and drop, and how routers are kept in balance (Ch. 18).

E experts, k of them for each token, T tokens of one rank, P ranks that share the experts. Where ranks lie in a mesh:
`device_mesh`.
"""

from fractions import Fraction
from math import comb

import numpy as np
from numpy.typing import ArrayLike

from lab.book.checks import Number, count, finite, not_negative, positive, ratio, share
from lab.book.collectives import all_gather_wire_bytes


def expert_parameters(experts: int, embed: int, mlp: int, mlp_matrices: int) -> int:
    """E n d F parameters a layer, n matrices each (2 for GELU, 3 for SwiGLU). Source: Ch. 18,
    `ch18.conditional_compute` as corrected (4-5:D-42)."""
    positive(experts=experts, embed=embed, mlp=mlp, mlp_matrices=mlp_matrices)
    return experts * mlp_matrices * embed * mlp


def token_flops(top_k: int, embed: int, mlp: int, mlp_matrices: int, experts: int = 0) -> int:
    """2 k n d F + 2 d E FLOP of a token's forward pass, the router's product included.

    Source: Ch. 18, `ch18.conditional_compute` as corrected (4-5:D-42).
    """
    positive(top_k=top_k)
    not_negative(experts=experts)
    return 2 * expert_parameters(top_k, embed, mlp, mlp_matrices) + 2 * embed * experts


def capacity(tokens: int, experts: int, top_k: int, capacity_factor: float = 1.0) -> float:
    """ceil(C_f T k / E) slots an expert and rank. Source: Ch. 18, `ch18.capacity`."""
    positive(tokens=tokens, experts=experts, top_k=top_k, capacity_factor=capacity_factor)
    return np.ceil(capacity_factor * tokens * top_k / experts)


def tokens_per_expert(tokens: int, experts: int, top_k: int) -> Fraction:
    """k T / E: what each expert chooses under expert choice. Source: Ch. 18, `ch18.expert_choice`."""
    positive(tokens=tokens, experts=experts, top_k=top_k)
    return ratio(top_k * tokens, experts)


def buffer_bytes(
    tokens: int, embed: int, bytes_per_element: int, top_k: float = 1, capacity_factor: float = 1
) -> float:
    """C_f k T H e bytes of one rank's buffer of an all-to-all; C_f = 1 without padding. Source: Ch. 18, `ch18.moe_comm`
    as corrected (4-5:D-43)."""
    positive(
        tokens=tokens, embed=embed, bytes_per_element=bytes_per_element, top_k=top_k, capacity_factor=capacity_factor
    )
    return capacity_factor * top_k * tokens * embed * bytes_per_element


def all_to_all_wire_bytes(payload_bytes: Number, ranks: int, all_to_alls: int = 4) -> Number:
    """a (P - 1) / P n bytes a rank: dispatch and combine, forward and backward. Source: Ch. 18, `ch18.a2a_volume`,
    `ch18.moe_comm`; `A36`."""
    positive(all_to_alls=all_to_alls)
    return all_to_alls * all_gather_wire_bytes(payload_bytes, ranks)


def dropped_share(tokens: int, chance: ArrayLike, slots: ArrayLike) -> float:
    """E[(X - C)+] / E[X], X the tokens of `tokens` that pick an expert, each with `chance`; k / E for a uniform router.

    `tokens` is one number; `chance` and `slots` may be arrays. Source: Ch. 18, `ch18.drop_rate_exercise` as corrected
    (4-5:D-52).
    """
    positive(tokens=tokens, chance=chance)
    not_negative(slots=slots)
    share(chance=chance)
    p, kept = np.asarray(chance)[..., None], np.asarray(slots)[..., None]
    loads = np.arange(tokens + 1)
    ways = np.array([float(comb(tokens, n)) for n in loads])
    lost = ways * p**loads * (1 - p) ** (tokens - loads) * np.maximum(0, loads - kept)
    return lost.sum(-1) / (tokens * p[..., 0])


def balance_loss(assigned: ArrayLike, gates: ArrayLike, weight: float = 1.0) -> float:
    """alpha E sum_i f_i p_i; f_i shares of assignments (they sum to 1), p_i mean gates, along the last dim.

    Source: Ch. 18, `ch18.aux_loss` as corrected (4-5:D-46; Fedus et al. 2021).
    """
    share(assigned=assigned, gates=gates)
    not_negative(weight=weight)
    return weight * np.shape(assigned)[-1] * np.sum(np.multiply(assigned, gates), -1)


def balance_gradient(assigned: ArrayLike, gates: ArrayLike, weight: float = 1.0, tokens: int = 1) -> np.ndarray:
    """(alpha E / T) g_j (f_j - sum_i f_i g_i) by one token's logits, f held fixed. Source: Ch. 18, `ch18.aux_loss` as
    corrected (4-5:D-49)."""
    share(assigned=assigned, gates=gates)
    positive(tokens=tokens)
    f, g = np.asarray(assigned), np.asarray(gates)
    return weight * f.shape[-1] / tokens * g * (f - (f * g).sum(-1, keepdims=True))


def gate_gradient(weights: ArrayLike, outputs: ArrayLike, upstream: ArrayLike) -> np.ndarray:
    """w_i (<u, E_i> - <u, y>) by the logits of the chosen experts, w their gates normalised to 1, y = sum w_i E_i; 0
    for all others.

    `weights` is [k], `outputs` [k, H], `upstream` u = dL/dy [H]. Source: Ch. 18, `ch18.router_gradient` as corrected
    (4-5:D-50).
    """
    finite(weights=weights, outputs=outputs, upstream=upstream)
    w, by_expert = np.asarray(weights), np.asarray(outputs) @ np.asarray(upstream)
    return w * (by_expert - w @ by_expert)


def entropy_nats(loads: ArrayLike) -> float:
    """-sum p log p of loads along the last dim; at most log E. Source: Ch. 18, `ch18.monitoring`."""
    not_negative(loads=loads)
    positive(total_load=np.sum(loads, -1))
    p = loads / np.sum(loads, -1, keepdims=True)
    return -(p * np.log(np.where(p > 0, p, 1))).sum(-1)


def gini(loads: ArrayLike) -> float:
    """sum_ij |l_i - l_j| / (2 n sum l) of loads along the last dim: 0 in balance. Source: Ch. 18, `ch18.monitoring`."""
    not_negative(loads=loads)
    positive(total_load=np.sum(loads, -1))
    values = np.asarray(loads, float)
    return np.abs(values[..., None] - values[..., None, :]).sum((-1, -2)) / (2 * values.shape[-1] * values.sum(-1))


def hidden_share(attention_s: float, all_to_all_s: float) -> float:
    """min(1, T_attention / T_all-to-all): of another micro-batch, since a layer's dispatch needs its own attention.

    Source: Ch. 18, `ch18.a2a_overlap` (4-5:D-55).
    """
    not_negative(attention_s=attention_s)
    positive(all_to_all_s=all_to_all_s)
    return np.minimum(1, attention_s / all_to_all_s)


def distinct_nodes(experts: int, top_k: int, nodes: int) -> float:
    """N (1 - C(E - E/N, k) / C(E, k)): nodes that a token of a uniform router visits, on average. Source: `A41`."""
    count(nodes=nodes)
    positive(experts=experts, top_k=top_k)
    if experts % nodes:
        raise ValueError(f"experts={experts}: expected a multiple of nodes={nodes}")
    return nodes * (1 - comb(experts - experts // nodes, top_k) / comb(experts, top_k))


def two_level_messages(ranks_a_node: int, nodes: int) -> int:
    """(G - 1) + (N - 1) messages a rank of an all-to-all inside nodes, then across, instead of G N - 1. Source:
    `A40`."""
    count(ranks_a_node=ranks_a_node, nodes=nodes)
    return ranks_a_node + nodes - 2
