"""Part III: what a timed collective says, and what a training step spends in collectives (Ch. 11 to 13).

Times are of the alpha-beta model: `alpha_s` a message, `bytes_per_s` in one direction of one rank.
"""

from fractions import Fraction

import numpy as np

from lab.book.checks import Exact, at_least, count, not_negative, positive, ratio
from lab.book.collectives import (
    all_gather_wire_bytes,
    all_reduce_wire_bytes,
    message_s,
    ring_all_gather_s,
    ring_all_reduce_s,
    rounds_up,
)


def bus_bytes_per_s(payload_bytes: Exact, ranks: int, seconds: float) -> float:
    """2 (P - 1) / P n / T of an all_reduce [B/s]: comparable with a link's rate. Source: Ch. 13, `ch13.algbw_busbw`."""
    positive(seconds=seconds)
    return all_reduce_wire_bytes(payload_bytes, ranks) / seconds


def gathered_bus_bytes_per_s(payload_bytes: Exact, ranks: int, seconds: float) -> float:
    """(P - 1) / P n / T of an all_gather, reduce_scatter or all_to_all [B/s]. Source: Ch. 13, `ch13.algbw_busbw`."""
    positive(seconds=seconds)
    return all_gather_wire_bytes(payload_bytes, ranks) / seconds


def broadcast_total_bytes(payload_bytes: int, ranks: int) -> int:
    """(P - 1) n bytes in the whole network: every rank but the root is sent the buffer once. Source: Ch. 11,
    `ch11.volumes` (D-50)."""
    count(ranks=ranks)
    positive(payload_bytes=payload_bytes)
    return (ranks - 1) * payload_bytes


def star_over_ring_load(ranks: int) -> Fraction:
    """P / 2: what a root gets in a reduce and sends in a broadcast, over what a rank of a ring does. Source: Ch. 11,
    `ch11.ex3`."""
    count(ranks=ranks)
    return ratio(ranks, 2)


def double_tree_all_reduce_s(payload_bytes: Exact, ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """2 ceil(log2 P) alpha + 2 n / beta, with so many slices that filling the trees costs no bandwidth. Source: Ch. 12,
    `ch12.double_tree`."""
    not_negative(alpha_s=alpha_s)
    return 2 * rounds_up(ranks) * alpha_s + 2 * message_s(payload_bytes, 0, bytes_per_s)


def bucketed_all_reduce_s(total_bytes: int, bucket_bytes: int, ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """ceil(total / bucket) ring all_reduces, one after the other, the last one as full as the others. Source: Ch. 12,
    `ch12.bucket`."""
    positive(total_bytes=total_bytes, bucket_bytes=bucket_bytes)
    return np.ceil(total_bytes / bucket_bytes) * ring_all_reduce_s(bucket_bytes, ranks, alpha_s, bytes_per_s)


def zero3_layer_s(payload_bytes: Exact, ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """3 ((P - 1) alpha + (P - 1) / P n / beta): gathered forward and backward, the gradient scattered. Source: Ch. 13,
    `ch13.zero3` (D-60)."""
    return 3 * ring_all_gather_s(payload_bytes, ranks, alpha_s, bytes_per_s)


def tensor_layer_s(payload_bytes: Exact, ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """4 all_reduces of b s d e bytes, by rings: two blocks, forward and backward. Source: Ch. 13, `ch13.tp`."""
    return 4 * ring_all_reduce_s(payload_bytes, ranks, alpha_s, bytes_per_s)


def stage_boundary_s(payload_bytes: Exact, alpha_s: float, bytes_per_s: float) -> float:
    """2 (alpha + n / beta) for a micro-batch: the activation forward, its gradient backward. Source: Ch. 13,
    `ch13.pp`."""
    return 2 * message_s(payload_bytes, alpha_s, bytes_per_s)


def ring_alpha_s(seconds: float, ranks: int) -> float:
    """T / (2 (P - 1)) of an all_reduce of next to nothing, if it is a ring. Source: Ch. 13, `ch13.measure` (D-62)."""
    positive(seconds=seconds)
    count(ranks=ranks)
    at_least(2, ranks=ranks)
    return seconds / (2 * (ranks - 1))
