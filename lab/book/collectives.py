"""Part III: what one rank sends in a bandwidth-optimal collective, and how long algorithms take (Ch. 4 and 11 to 13a).

Times are of the alpha-beta model, without arithmetic: `alpha_s` a message, `bytes_per_s` in one direction of one rank.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import overload

import numpy as np

from lab.book.checks import Exact, Number, at_least, count, finite, not_negative, positive, ratio, real, whole


@overload
def all_gather_wire_bytes(payload_bytes: Exact, ranks: int) -> Fraction: ...
@overload
def all_gather_wire_bytes(payload_bytes: Number, ranks: int) -> Fraction | float: ...
def all_gather_wire_bytes(payload_bytes: Number, ranks: int) -> Fraction | float:
    """(P - 1) / P n bytes, n the gathered buffer: all of it but one's own part. Source: Ch. 11, `ch11.volumes`."""
    count(ranks=ranks)
    positive(payload_bytes=payload_bytes)
    return payload_bytes - ratio(payload_bytes, ranks)


def reduce_scatter_wire_bytes(payload_bytes: Exact, ranks: int) -> Fraction:
    """(P - 1) / P n bytes, n the full input. Source: Ch. 11, `ch11.volumes`."""
    return all_gather_wire_bytes(payload_bytes, ranks)


def all_reduce_wire_bytes(payload_bytes: Exact, ranks: int) -> Fraction:
    """2 (P - 1) / P n bytes: a reduce-scatter, then an all-gather. Source: Ch. 4, `ch04.ring_allreduce`; Ch. 11,
    `ch11.volumes`."""
    return reduce_scatter_wire_bytes(payload_bytes, ranks) + all_gather_wire_bytes(payload_bytes, ranks)


def message_s(payload_bytes: Exact, alpha_s: float, bytes_per_s: float) -> float:
    """alpha + n / beta, beta the bandwidth of one direction. Source: Ch. 4, `ch04.alpha_beta`."""
    positive(payload_bytes=payload_bytes)
    _check_link(alpha_s, bytes_per_s)
    return alpha_s + real(payload_bytes) / bytes_per_s


def ring_all_gather_s(payload_bytes: Exact, ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """(P - 1) alpha + (P - 1) / P n / beta; a ring reduce_scatter and a pairwise all_to_all cost the same.

    Source: Ch. 4, `ch04.all_gather`, `ch04.reduce_scatter`, `ch04.all_to_all`.
    """
    finite(ranks=ranks)
    _check_link(alpha_s, bytes_per_s)
    return (ranks - 1) * alpha_s + real(all_gather_wire_bytes(payload_bytes, ranks)) / bytes_per_s


def ring_all_reduce_s(payload_bytes: Exact, ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """2 (P - 1) alpha + 2 (P - 1) / P n / beta. Source: Ch. 4, `ch04.ring_allreduce`."""
    return 2 * ring_all_gather_s(payload_bytes, ranks, alpha_s, bytes_per_s)


def split_ring_all_reduce_s(payload_bytes: Exact, ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """2 (P - 1) alpha + (P - 1) / P n / beta: half of the buffer goes round each way. Source: Ch. 12, `ch12.bidir_ring`
    (D-49)."""
    finite(ranks=ranks)
    _check_link(alpha_s, bytes_per_s)
    return 2 * (ranks - 1) * alpha_s + real(all_reduce_wire_bytes(payload_bytes, ranks)) / 2 / bytes_per_s


def bidirectional_ring_all_reduce_s(payload_bytes: Exact, ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """2 floor(P / 2) alpha + (P - 1) / P n / beta: every block goes both ways. Source: Ch. 12, `ch12.bidir_ring`
    (D-49)."""
    finite(ranks=ranks)
    _check_link(alpha_s, bytes_per_s)
    return 2 * (ranks // 2) * alpha_s + real(all_reduce_wire_bytes(payload_bytes, ranks)) / 2 / bytes_per_s


def binomial_broadcast_s(payload_bytes: Exact, ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """ceil(log2 P) (alpha + n / beta); a reduce costs the same. Source: Ch. 11, `ch11.cost_table`."""
    return rounds_up(ranks) * message_s(payload_bytes, alpha_s, bytes_per_s)


def tree_all_reduce_s(payload_bytes: Exact, ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """2 ceil(log2 P) (alpha + n / beta): reduce, then broadcast. Source: Ch. 12, `ch12.tree`."""
    return 2 * binomial_broadcast_s(payload_bytes, ranks, alpha_s, bytes_per_s)


def doubling_all_reduce_s(payload_bytes: Exact, ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """(floor(log2 P) + fold) (alpha + n / beta), fold 2 unless P is a power of two.

    Source: Ch. 12, `ch12.tree_latency_optimal` as corrected (D-48), `ch12.non_pow2`.
    """
    return (rounds_down(ranks) + _fold(ranks)) * message_s(payload_bytes, alpha_s, bytes_per_s)


def halving_doubling_all_reduce_s(payload_bytes: Exact, ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """2 floor(log2 P) alpha + 2 (Q - 1) / Q n / beta for the Q = 2^floor(log2 P) ranks that stay, and fold (alpha + n /
    beta).

    Source: Ch. 12, `ch12.rhd`, `ch12.non_pow2`.
    """
    _check_link(alpha_s, bytes_per_s)
    halves = (
        2 * rounds_down(ranks) * alpha_s
        + real(all_reduce_wire_bytes(payload_bytes, 2 ** rounds_down(ranks))) / bytes_per_s
    )
    return halves + _fold(ranks) * message_s(payload_bytes, alpha_s, bytes_per_s)


def binomial_scatter_s(payload_bytes: Exact, ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """ceil(log2 P) alpha + (P - 1) / P n / beta; a gather, and a circulant all_gather or reduce_scatter, cost the same.

    Source: Ch. 11, `ch11.cost_table`.
    """
    _check_link(alpha_s, bytes_per_s)
    return rounds_up(ranks) * alpha_s + real(all_gather_wire_bytes(payload_bytes, ranks)) / bytes_per_s


def blocks_broadcast_s(payload_bytes: Exact, ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """A binomial scatter, then a ring all_gather. Source: Ch. 11, `ch11.cost_table` as corrected (D-51)."""
    link = alpha_s, bytes_per_s
    return binomial_scatter_s(payload_bytes, ranks, *link) + ring_all_gather_s(payload_bytes, ranks, *link)


def chain_broadcast_s(payload_bytes: Exact, ranks: int, alpha_s: float, bytes_per_s: float, slices: int) -> float:
    """(P - 2 + k) (alpha + n / (k beta)). Source: Ch. 11, `ch11.cost_table` as corrected (D-51)."""
    count(ranks=ranks)
    at_least(2, ranks=ranks)
    positive(slices=slices)
    return (ranks - 2 + slices) * message_s(ratio(payload_bytes, slices), alpha_s, bytes_per_s)


def best_slices(payload_bytes: Exact, ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """sqrt((P - 2) n / (alpha beta)), at which a chain broadcast is fastest. Source: table 'Algorithms described'."""
    count(ranks=ranks)
    at_least(2, ranks=ranks)
    positive(payload_bytes=payload_bytes, alpha_s=alpha_s, bytes_per_s=bytes_per_s)
    return np.sqrt((ranks - 2) * payload_bytes / (alpha_s * bytes_per_s))


def bruck_all_to_all_s(payload_bytes: Exact, ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """log2 P (alpha + n / (2 beta)) for P a power of two. Source: Ch. 11, `ch11.cost_table` as corrected (D-51)."""
    return rounds_up(ranks) * message_s(ratio(payload_bytes, 2), alpha_s, bytes_per_s)


def levels_all_reduce_s(payload_bytes: Exact, levels: Sequence[tuple[int, float, float]]) -> float:
    """Sum over levels (p, alpha, beta), innermost first, of 2 (p - 1) alpha + 2 (p - 1) / p n_l / beta, n_l = n over
    the sizes inside.

    Source: Ch. 12, `ch12.hier2d`; Ch. 13a, `ch13a.levels`.
    """
    inside = [prod(size for size, _, _ in levels[:i]) for i in range(len(levels))]
    return sum(ring_all_reduce_s(ratio(payload_bytes, n), *level) for n, level in zip(inside, levels, strict=True))


def torus_all_reduce_s(payload_bytes: Exact, side: int, axes: int, alpha_s: float, bytes_per_s: float) -> float:
    """2 k (p - 1) alpha + 2 (P - 1) / P n / (k beta) for k axes of p ranks, P = p^k, each with links of its own."""
    finite(side=side, axes=axes)
    count(side=side, axes=axes)
    _check_link(alpha_s, bytes_per_s)
    wire_bytes = all_reduce_wire_bytes(payload_bytes, side**axes)
    return 2 * axes * (side - 1) * alpha_s + real(wire_bytes) / axes / bytes_per_s


def ring_tree_crossover_bytes(ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """n* = alpha beta (P - 1 - log2 P) / (log2 P - (P - 1) / P): below it the tree is faster. Source: Ch. 12,
    `ch12.crossover`."""
    finite(ranks=ranks)
    count(ranks=ranks)
    at_least(2, ranks=ranks)
    _check_link(alpha_s, bytes_per_s)
    return alpha_s * bytes_per_s * (ranks - 1 - np.log2(ranks)) / (np.log2(ranks) - (ranks - 1) / ranks)


def ring_balance_bytes(ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """P alpha beta: where the two terms of a ring are equal. Source: Ch. 4, `ch04.crossover` as corrected (D-03)."""
    finite(ranks=ranks)
    count(ranks=ranks)
    _check_link(alpha_s, bytes_per_s)
    return ranks * alpha_s * bytes_per_s


def rounds_up(ranks: int) -> int:
    """ceil(log2 P)."""
    return rounds_down(ranks) + (2.0 ** rounds_down(ranks) < ranks)


def rounds_down(ranks: int) -> int:
    """floor(log2 P)."""
    positive(ranks=ranks)
    whole(ranks=ranks)
    # Bits and a float's exponent are exact, where a logarithm rounds.
    return np.frexp(ranks)[1] - 1 if np.ndim(ranks) else int(ranks).bit_length() - 1


def _check_link(alpha_s: float, bytes_per_s: float) -> None:
    not_negative(alpha_s=alpha_s)
    positive(bytes_per_s=bytes_per_s)


def _fold(ranks: int) -> int:
    """Rounds in which the ranks beyond a power of two hand theirs over, and get the result back."""
    return 2 * (rounds_up(ranks) - rounds_down(ranks))
