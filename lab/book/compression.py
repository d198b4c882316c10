"""Part VII: gradients in fewer bits (Ch. 28). A ratio is compressed size over that of 32-bit floats."""

from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from lab.book.checks import Exact, count, finite, not_negative, positive, ratio, share

FLOAT_BITS = 32


def quantized_ratio(bits: int) -> float:
    """b / 32 for b bits an element. Source: Ch. 28, `ch28.ratio`."""
    positive(bits=bits)
    return bits / FLOAT_BITS


def qsgd_ratio(levels: int) -> float:
    """(1 + log2 s) / 32: a sign and a level, without entropy coding. Source: Ch. 28, `ch28.ratio`."""
    positive(levels=levels)
    return (1 + np.log2(levels)) / FLOAT_BITS


def sparse_ratio(kept_share: float, index_bits: int = 32) -> float:
    """k (32 + index bits) / 32 for a share k of values, each beside its index. Source: Ch. 28, `ch28.ratio`
    (6-8:D-58)."""
    share(kept_share=kept_share)
    not_negative(index_bits=index_bits)
    return kept_share * (FLOAT_BITS + index_bits) / FLOAT_BITS


def bitmap_ratio(kept_share: float) -> float:
    """k + 1 / 32: the values kept and one bit for each element. Source: Ch. 28, `ch28.ratio`."""
    share(kept_share=kept_share)
    return kept_share + 1 / FLOAT_BITS


def low_rank_ratio(rows: int, columns: int, rank: int) -> Fraction:
    """r (m + n) / (m n). Source: Ch. 28, `ch28.powersgd`."""
    positive(rows=rows, columns=columns, rank=rank)
    return ratio(rank * (rows + columns), rows * columns)


def rank_of_ratio(rows: int, columns: int, compressed_ratio: float) -> float:
    """rho m n / (m + n): the inverse of `low_rank_ratio`, not rounded. Source: Ch. 28, `ch28.powersgd`."""
    positive(rows=rows, columns=columns, compressed_ratio=compressed_ratio)
    return compressed_ratio * rows * columns / (rows + columns)


def qsgd_variance(elements: int, levels: int) -> float:
    """min(d / s^2, sqrt(d) / s): upper bound of E|Q - g|^2 / |g|^2. Source: Ch. 28, `ch28.qsgd` (Alistarh et al. 2017,
    Lemma 3.1)."""
    positive(elements=elements, levels=levels)
    return np.minimum(elements / levels**2, np.sqrt(elements) / levels)


def rounding_variance(elements: int, levels: int) -> float:
    """d / (4 s^2): another upper bound of the same, from p (1 - p) <= 1/4. Source: Ch. 28, `ch28.qsgd`."""
    positive(elements=elements, levels=levels)
    return elements / (4 * levels**2)


def top_k_error(kept_share: float) -> float:
    """1 - k / d: upper bound of |g - C(g)|^2 / |g|^2. Source: Ch. 28, `ch28.topk`."""
    share(kept_share=kept_share)
    return 1 - kept_share


def random_k_variance(kept_share: float) -> float:
    """d / k - 1: E|C(g) - g|^2 / |g|^2 of k random elements scaled by d / k. Source: Ch. 28, `ch28.topk`."""
    share(kept_share=kept_share)
    positive(kept_share=kept_share)
    return 1 / kept_share - 1


def error_feedback_bound(kept_share: float) -> float:
    """4 (1 - delta) / delta^2: upper bound of E|e|^2 over the bound of |g|^2, for a compressor that loses at most 1 -
    delta.

    Source: Ch. 28, `ch28.error_feedback` as corrected (6-8:D-60; Karimireddy et al. 2019).
    """
    share(kept_share=kept_share)
    positive(kept_share=kept_share)
    return 4 * (1 - kept_share) / kept_share**2


def warm_up_sparsity(epoch: int) -> float:
    """1 - 4^-(e + 1): 75, 93.75, 98.44, 99.61, 99.90 % in epochs 0 to 4. Source: Ch. 28, `ch28.dgc` as corrected
    (6-8:D-59; Lin et al. 2018)."""
    not_negative(epoch=epoch)
    return 1 - 4.0 ** -(epoch + 1)


def low_rank_error(singular_values: ArrayLike, rank: int) -> float:
    """sqrt of the sum of squares beyond the first r singular values over that of all: |G - G_r|_F / |G|_F.

    Source: Ch. 28, `ch28.lowrank_error` (Eckart & Young 1936).
    """
    not_negative(singular_values=singular_values)
    positive(rank=rank)
    squares = np.sort(np.square(singular_values, dtype=float))[::-1]
    return float(np.sqrt(squares[rank:].sum() / squares.sum()))


def quantized_all_reduce_wire_bytes(payload_bytes: int, ranks: int, bits: int) -> Fraction:
    """2 (n - 1) / n V b / 32 bytes a rank for a payload of V bytes in 32 bits: exchange, sum locally, gather, both in b
    bits.

    Source: Ch. 28, `ch28.compressed_allreduce` as corrected (6-8:D-66).
    """
    finite(ranks=ranks)
    count(ranks=ranks)
    positive(payload_bytes=payload_bytes, bits=bits)
    return ratio(2 * (ranks - 1) * payload_bytes * bits, ranks * FLOAT_BITS)


def sparse_all_reduce_wire_bytes(kept: Exact, ranks: int) -> Exact:
    """8 k (n - 1) bytes a rank: a gather of k pairs of 32-bit index and value from each. Source: Ch. 28,
    `ch28.compressed_allreduce`."""
    count(ranks=ranks)
    positive(kept=kept)
    return 8 * kept * (ranks - 1)


def sparse_break_even_density(ranks: int) -> Fraction:
    """1 / n: below it `sparse_all_reduce_wire_bytes` is less than a dense ring's. Source: Ch. 28,
    `ch28.compressed_allreduce`."""
    count(ranks=ranks)
    return ratio(1, ranks)


def speedup(compute_s: float, communication_s: float, compressed_ratio: float, codec_share: float = 0.0) -> float:
    """(T_c + T_m) / ((1 + o) T_c + rho T_m), nothing hidden and a codec that costs a share o of the computation.

    Source: Ch. 28, `ch28.dense_cost`, `ch28.advisor`.
    """
    positive(compute_s=compute_s, communication_s=communication_s, compressed_ratio=compressed_ratio)
    not_negative(codec_share=codec_share)
    return (compute_s + communication_s) / ((1 + codec_share) * compute_s + compressed_ratio * communication_s)
