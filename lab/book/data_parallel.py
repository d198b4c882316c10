"""Part IV: how long a data-parallel step takes, and what hides, delays or thins its one reduction (Ch. 14).

What the reduction sends stands in `parallelism`, how long it takes in `collectives`. Tokens are those of one rank.
"""

import numpy as np
from numpy.typing import ArrayLike

from lab.book.checks import Real, at_least, count, finite, not_negative, positive, share, whole


def training_flops(parameters: float, tokens: float) -> float:
    """6 Psi n FLOP of a forward and a backward pass over n tokens, attention's products of activations left out.

    Source: Ch. 14, `ch14.compute_time` (4-5:D-01).
    """
    positive(parameters=parameters, tokens=tokens)
    return 6 * parameters * tokens


def compute_s(parameters: float, tokens: float, flops_per_s: float) -> float:
    """6 Psi n / F. Source: Ch. 14, `ch14.compute_time` as corrected (4-5:D-01: per token, not per sample)."""
    positive(flops_per_s=flops_per_s)
    return training_flops(parameters, tokens) / flops_per_s


def compute_to_sync(tokens: float, ranks: int, bytes_per_element: int, flops_per_s: float, bytes_per_s: float) -> float:
    """R = 3 n beta / (F e) P / (P - 1), time of a step's computation over that of its ring all-reduce; `ranks` may be
    infinite.

    Source: Ch. 14, `ch14.R_ratio` (4-5:D-01, D-02: n in tokens, beta in one direction).
    """
    count(ranks=ranks)
    at_least(2, infinite=True, ranks=ranks)
    positive(tokens=tokens, bytes_per_element=bytes_per_element, flops_per_s=flops_per_s, bytes_per_s=bytes_per_s)
    return 3 * tokens * bytes_per_s / (flops_per_s * bytes_per_element) / (1 - 1 / ranks)


def tokens_to_hide_sync(
    ranks: int, bytes_per_element: int, flops_per_s: float, bytes_per_s: float, ratio: float = 1
) -> float:
    """R F e / (3 beta) (P - 1) / P tokens a rank, at which `compute_to_sync` is R. Source: Ch. 14, `ch14.R_ratio`."""
    count(ranks=ranks)
    positive(bytes_per_element=bytes_per_element, flops_per_s=flops_per_s, bytes_per_s=bytes_per_s, ratio=ratio)
    return ratio * flops_per_s * bytes_per_element / (3 * bytes_per_s) * (1 - 1 / ranks)


def overlapped_strong_efficiency(one_rank_s: float, sync_s: float, ranks: int) -> float:
    """min(1, T_1 / (P T_comm)), T_1 the global batch on one rank. Source: Ch. 14, `ch14.strong_efficiency_overlap` as
    corrected (4-5:D-03)."""
    count(ranks=ranks)
    positive(one_rank_s=one_rank_s, sync_s=sync_s)
    return np.minimum(1, one_rank_s / (ranks * sync_s))


def strong_efficiency(one_rank_s: float, sync_s: float, ranks: int) -> float:
    """1 / (1 + P T_r / T_1), nothing overlapped. Source: Ch. 14, `ch14.weak_strong_no_overlap`."""
    count(ranks=ranks)
    positive(one_rank_s=one_rank_s)
    return weak_efficiency(one_rank_s / ranks, sync_s)


def weak_efficiency(rank_s: float, sync_s: float) -> float:
    """T_c / (T_c + T_r), nothing overlapped. Source: Ch. 14, `ch14.weak_strong_no_overlap`."""
    positive(rank_s=rank_s)
    not_negative(sync_s=sync_s)
    return rank_s / (rank_s + sync_s)


def overlapped_backward_s(backward_s: ArrayLike, sync_s: ArrayLike) -> float:
    """max over k of sum_{j <= k} b_j + sum_{j >= k} c_j: buckets in the order in which they get ready, each sent when
    it is ready and the link is free.

    `backward_s` and `sync_s` list a time for each bucket along their last dim. Source: Ch. 14,
    `ch14.overlap_fraction_general` as corrected (4-5:D-04).
    """
    not_negative(backward_s=backward_s, sync_s=sync_s)
    b, c = np.asarray(backward_s), np.asarray(sync_s)
    return (np.cumsum(b, -1) + np.cumsum(c[..., ::-1], -1)[..., ::-1]).max(-1)


def hidden_share(backward_s: ArrayLike, sync_s: ArrayLike) -> float:
    """1 - (T - sum b) / sum c, T = `overlapped_backward_s`. Source: Ch. 14, `ch14.overlap_fraction_general`."""
    T = overlapped_backward_s(backward_s, sync_s)
    return 1 - (T - np.sum(backward_s, -1)) / np.sum(sync_s, -1)


def order_error_bound(ranks: int, unit_roundoff: float, absolute_sum: Real) -> Real:
    """2 (P - 1) u sum |g_i|: how far two orders of one sum may lie apart, each within half of it of the truth.

    u is half of epsilon: 2^-24, 2^-11 and 2^-8 for float32, float16 and bfloat16. Relative to |sum g_i| there is no
    bound. Source: Ch. 14, `ch14.fp_order_bound` as corrected (4-5:D-06; Higham 2002, Ch. 4).
    """
    finite(ranks=ranks)
    count(ranks=ranks)
    positive(unit_roundoff=unit_roundoff)
    not_negative(absolute_sum=absolute_sum)
    return 2 * (ranks - 1) * unit_roundoff * absolute_sum


def accumulation_speedup(micro_batches: int, compute_s: float, sync_s: float) -> float:
    """A (T_c + T_r) / (A T_c + T_r): one reduction instead of A, nothing overlapped. Source: Ch. 14,
    `ch14.accum_speedup`."""
    finite(micro_batches=micro_batches)
    positive(micro_batches=micro_batches, compute_s=compute_s)
    not_negative(sync_s=sync_s)
    return micro_batches * (compute_s + sync_s) / (micro_batches * compute_s + sync_s)


def top_k_gain(kept_share: float, ranks: int, value_bytes: int, index_bytes: int = 4) -> float:
    """2 e / (P k (i + e)): a dense all-reduce's wire bytes over those of an all-gather of everybody's share k, as index
    and value.

    Source: Ch. 14, `ch14.topk_compression` as corrected (4-5:D-08).
    """
    share(kept_share=kept_share)
    count(ranks=ranks)
    positive(kept_share=kept_share, value_bytes=value_bytes, index_bytes=index_bytes)
    return 2 * value_bytes / (ranks * kept_share * (index_bytes + value_bytes))


def straggler_step_s(compute_s: ArrayLike, sync_s: float) -> float:
    """max_i T_i + T_AR over the ranks along the last dim. Source: Ch. 14, `ch14.sync_step_time`."""
    not_negative(compute_s=compute_s, sync_s=sync_s)
    return np.max(compute_s, -1) + sync_s


def staleness_damping(delay: int, rate: float) -> float:
    """exp(-lambda tau). Source: Ch. 14, `ch14.async_staleness`."""
    not_negative(delay=delay, rate=rate)
    return np.exp(-rate * delay)


def mean_staleness_damping(delays: int, rate: float) -> float:
    """(1 - exp(-lambda n)) / (n (1 - exp(-lambda))): the mean of `staleness_damping` over delays 0 to n - 1.

    Source: Ch. 14, `ch14.async_staleness`.
    """
    positive(delays=delays, rate=rate)
    whole(delays=delays)
    return np.expm1(-rate * delays) / (delays * np.expm1(-rate))
