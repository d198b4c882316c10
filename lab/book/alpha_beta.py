"""Part I: many messages or one, and what may hide behind computation (Ch. 4). One message and each collective stand in
`collectives`."""

import numpy as np

from lab.book.checks import not_negative, positive


def fusing_saves_s(messages: int, rounds: int, alpha_s: float) -> float:
    """(k - 1) r alpha: k messages sent as one, r latencies each: 1 for a message, 2 (P - 1) for a ring all_reduce.

    Source: Ch. 4, `ch04.batching`, `ch04.bucketing`.
    """
    positive(messages=messages, rounds=rounds)
    not_negative(alpha_s=alpha_s)
    return (messages - 1) * rounds * alpha_s


def overlapped_step_s(forward_s: float, backward_s: float, sync_s: float) -> float:
    """T_f + max(T_b, T_sync): gradients can hide behind the backward pass alone. A lower bound; the last bucket adds
    its own time.

    Source: Ch. 4, `ch04.overlap` as corrected.
    """
    not_negative(forward_s=forward_s, backward_s=backward_s, sync_s=sync_s)
    return forward_s + np.maximum(backward_s, sync_s)


def loggp_s(payload_bytes: float, latency_s: float, overhead_s: float, gap_s_per_byte: float) -> float:
    """o + (k - 1) G + L + o: one message of k bytes. Source: Ch. 4, `ch04.loggp` (Alexandrov et al. 1995)."""
    positive(payload_bytes=payload_bytes)
    not_negative(latency_s=latency_s, overhead_s=overhead_s, gap_s_per_byte=gap_s_per_byte)
    return overhead_s + (payload_bytes - 1) * gap_s_per_byte + latency_s + overhead_s


def round_trip_s(payload_bytes: float, alpha_s: float, bytes_per_s: float) -> float:
    """2 alpha + 2 n / beta. Source: Ch. 4, `ch04.measure` (D-20: a ping-pong, not an all_reduce)."""
    positive(payload_bytes=payload_bytes, bytes_per_s=bytes_per_s)
    not_negative(alpha_s=alpha_s)
    return 2 * (alpha_s + payload_bytes / bytes_per_s)
