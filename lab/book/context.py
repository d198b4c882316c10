"""Part IV: attention over a sequence split into chunks: what it sends, holds and waits for (Ch. 17).

`tokens` is b S, all tokens of the P ranks together; `query_dim` A h and `kv_dim` K h. Megatron's sequence parallelism
stands in `tensor_parallel`.
"""

from fractions import Fraction

import numpy as np

from lab.book.checks import Number, below, count, finite, not_negative, positive, ratio


def scores_bytes(batch: int, heads: int, length: int, bytes_per_element: int) -> int:
    """b A S^2 e bytes of attention scores. Source: Ch. 17, `ch17.attn_matrix_memory`."""
    positive(batch=batch, heads=heads, length=length, bytes_per_element=bytes_per_element)
    return batch * heads * length**2 * bytes_per_element


def ring_wire_bytes(tokens: int, kv_dim: int, bytes_per_element: int, ranks: int) -> Fraction:
    """2 (P - 1) / P b S K h e a rank: keys and values once round, less the last hop. Source: Ch. 17,
    `ch17.ring_volume`; `A30`."""
    finite(ranks=ranks)
    return ratio(2 * (ranks - 1) * _whole_bytes(tokens, kv_dim, bytes_per_element, ranks), ranks)


def ring_training_wire_bytes(
    tokens: int, kv_dim: int, bytes_per_element: int, ranks: int, travelling_bytes_per_element: int | None = None
) -> Fraction:
    """(6 P - 4) / P b S K h e: the forward pass, keys and values again, and their gradients P hops home.

    Gradients may travel in another dtype, such as float32, for P - 1 of their hops; the last is in that of keys.
    Source: Ch. 17, `ch17.ring_volume` (Liu et al. 2023); a derivative of the loop keeps all blocks instead of sending
    them again.
    """
    finite(ranks=ranks)
    e, travelling = (
        bytes_per_element,
        bytes_per_element if travelling_bytes_per_element is None else travelling_bytes_per_element,
    )
    of_keys, of_gradients = (_whole_bytes(tokens, kv_dim, size, ranks) for size in (e, travelling))
    return ratio((4 * ranks - 2) * of_keys + (2 * ranks - 2) * of_gradients, ranks)


def ring_block_s(batch: int, length: int, query_dim: int, ranks: int, flops_per_s: float) -> float:
    """4 b (S / P)^2 A h / F: one block of scores and its product with values. Source: Ch. 17, `ch17.ring_overlap` as
    corrected (4-5:D-31)."""
    count(ranks=ranks)
    positive(batch=batch, length=length, query_dim=query_dim, flops_per_s=flops_per_s)
    return 4 * batch * (length / ranks) ** 2 * query_dim / flops_per_s


def least_chunk_tokens(bytes_per_element: int, flops_per_s: float, bytes_per_s: float, kv_share: float = 1) -> float:
    """F e K / (2 beta A): tokens of a chunk from which its block hides the next; twice as many under a causal mask.
    `kv_share` is K / A.

    Source: Ch. 17, `ch17.ring_overlap`.
    """
    positive(bytes_per_element=bytes_per_element, flops_per_s=flops_per_s, bytes_per_s=bytes_per_s, kv_share=kv_share)
    return flops_per_s * bytes_per_element / (2 * bytes_per_s) * kv_share


def ring_s(ranks: int, block_s: float, transfer_s: float) -> float:
    """t_c + (P - 1) max(t_c, t_x): the own block waits for nothing. Source: Ch. 17, `ch17.ring_overlap` as corrected
    (4-5:D-32)."""
    count(ranks=ranks)
    not_negative(block_s=block_s, transfer_s=transfer_s)
    return block_s + (ranks - 1) * np.maximum(block_s, transfer_s)


def serial_ring_s(ranks: int, block_s: float, transfer_s: float) -> float:
    """P t_c + (P - 1) t_x: sends posted after the computation hide nothing. Source: Ch. 17, `ch17.ring_overlap` as
    corrected (4-5:D-32, D-33)."""
    finite(ranks=ranks)
    count(ranks=ranks)
    not_negative(block_s=block_s, transfer_s=transfer_s)
    return ranks * block_s + (ranks - 1) * transfer_s


def ring_bytes(tokens: int, query_dim: int, kv_dim: int, bytes_per_element: int, ranks: int) -> Fraction:
    """(2 A h + 4 K h) b S e / P: queries, outputs, and keys and values twice (one block in use, one arriving); scores
    come on top.

    Source: Ch. 17, `ch17.ring_memory` as corrected (4-5:D-34).
    """
    count(ranks=ranks)
    positive(tokens=tokens, query_dim=query_dim, kv_dim=kv_dim, bytes_per_element=bytes_per_element)
    return ratio(tokens * (2 * query_dim + 4 * kv_dim) * bytes_per_element, ranks)


def ulysses_wire_bytes(tokens: int, query_dim: int, kv_dim: int, bytes_per_element: int, ranks: int) -> Fraction:
    """(P - 1) / P (2 A h + 2 K h) b S e / P a rank: all-to-alls of queries, keys, values and outputs; as much again in
    the backward pass.

    Source: Ch. 17, `ch17.ulysses_volume`; `A32` (Jacobs et al. 2023).
    """
    finite(ranks=ranks)
    count(ranks=ranks)
    positive(tokens=tokens, query_dim=query_dim, kv_dim=kv_dim, bytes_per_element=bytes_per_element)
    return ratio((ranks - 1) * 2 * tokens * (query_dim + kv_dim) * bytes_per_element, ranks**2)


def kv_head_copies(kv_heads: int, ranks: int) -> int:
    """max(1, P / K) of each key-value head, so that Ulysses has one for every rank. Source: Ch. 17,
    `ch17.ulysses_volume`."""
    finite(ranks=ranks)
    count(kv_heads=kv_heads, ranks=ranks)
    return max(1, ranks // kv_heads)


def ring_to_ulysses(ranks: int, kv_share: float = 1) -> Number:
    """P g / (1 + g), g = K / A: P / 2 without grouped queries. Source: Ch. 17, `ch17.ring_vs_ulysses`."""
    count(ranks=ranks)
    positive(kv_share=kv_share)
    return ratio(ranks * kv_share, 1 + kv_share)


def skipped_share(ranks: int) -> Fraction:
    """(P - 1) / (2 P) of all blocks lies above the diagonal. Source: Ch. 17, `ch17.causal_skip`."""
    finite(ranks=ranks)
    count(ranks=ranks)
    return ratio(ranks - 1, 2 * ranks)


def causal_blocks(rank: int, ranks: int) -> float:
    """r + 1/2 blocks of work for rank r of contiguous chunks, the diagonal one half. Source: Ch. 17,
    `ch17.causal_skip`."""
    count(ranks=ranks)
    not_negative(rank=rank)
    below(ranks, rank=rank)
    return rank + 0.5


def zigzag_gain(ranks: int) -> Fraction:
    """(P - 1/2) / (P / 2): the last rank's blocks over everybody's, chunks r and 2 P - 1 - r together.

    Source: Ch. 17, `ch17.causal_skip` as corrected (4-5:D-38).
    """
    count(ranks=ranks)
    return 2 - ratio(1, ranks)


def hybrid_all_to_all_wire_bytes(
    tokens: int, query_dim: int, kv_dim: int, bytes_per_element: int, ulysses: int, ring: int
) -> Fraction:
    """(U - 1) / U (A h + 2 K h) b S e / (U R): queries, keys and values of the inner all-to-all; outputs come on top.

    Source: Ch. 17, `ch17.hybrid_usp`; `A33` (Fang & Zhao 2024).
    """
    finite(ulysses=ulysses)
    positive(
        tokens=tokens,
        query_dim=query_dim,
        kv_dim=kv_dim,
        bytes_per_element=bytes_per_element,
        ulysses=ulysses,
        ring=ring,
    )
    return ratio((ulysses - 1) * tokens * (query_dim + 2 * kv_dim) * bytes_per_element, ulysses**2 * ring)


def hybrid_hop_bytes(tokens: int, kv_dim: int, bytes_per_element: int, ulysses: int, ring: int) -> Fraction:
    """2 b (S / R) (K h / U) e: keys and values of one hop of the outer ring, heads already split.

    Source: Ch. 17, `ch17.hybrid_usp` as corrected (4-5:D-40).
    """
    positive(tokens=tokens, kv_dim=kv_dim, bytes_per_element=bytes_per_element, ulysses=ulysses, ring=ring)
    return ratio(2 * tokens * kv_dim * bytes_per_element, ulysses * ring)


def _whole_bytes(tokens: int, kv_dim: int, bytes_per_element: int, ranks: int) -> int:
    count(ranks=ranks)
    positive(tokens=tokens, kv_dim=kv_dim, bytes_per_element=bytes_per_element)
    return tokens * kv_dim * bytes_per_element
