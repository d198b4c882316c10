"""The second source's laws of failure: chances, heartbeats, recovery, shared causes (ml.22, ml.36 to ml.42)."""

import numpy as np
from scipy.special import ndtr

from lab.book.checks import count, finite, not_negative, positive, real, share

SECONDS_A_DAY = 86_400
BITS_A_MEGABIT = 2**20


def chance_of_any(chance: float, count: int) -> float:
    """1 - (1 - p)^n, independent of each other. Source: ml, `ml.22_stragglers`, `ml.47_pfc`."""
    share(chance=chance)
    not_negative(count=count)
    return -np.expm1(count * np.log1p(-real(chance)))


def chance_of_failure(hours: float, mtbf_h: float) -> float:
    """1 - e^(-t / mu). Source: ml, `ml.36_mtbf`."""
    positive(mtbf_h=mtbf_h)
    not_negative(hours=hours)
    return -np.expm1(-real(hours) / mtbf_h)


def failures_a_day(count: int, mttf_h: float) -> float:
    """24 n / MTTF. Source: ml, `ml.37_annual_reliability` (2nd:M51)."""
    positive(mttf_h=mttf_h)
    not_negative(count=count)
    return 24 * count / mttf_h


def straggler_rank_steps(ranks: int, slow_ranks: int, slowdown: float) -> float:
    """(N - k) x: steps of ranks lost a step to k ranks that are slower by a share x. Source: ml, `ml.22_stragglers`."""
    finite(ranks=ranks)
    count(ranks=ranks)
    not_negative(slow_ranks=slow_ranks, slowdown=slowdown)
    return (ranks - slow_ranks) * slowdown


def soft_error_interval_s(memory_bytes: int, errors_per_1e9_megabit_h: float) -> float:
    """3600 / (FIT per megabit x megabits / 1e9): between bit flips that error correction mends. Source: ml,
    `ml.38_ecc`."""
    positive(memory_bytes=memory_bytes, errors_per_1e9_megabit_h=errors_per_1e9_megabit_h)
    return 3600e9 / (errors_per_1e9_megabit_h * memory_bytes * 8 / BITS_A_MEGABIT)


def recovery_s(detect_s: float, restart_s: float, load_s: float, interval_s: float) -> float:
    """detect + restart + load + tau / 2 after a failure; only the last depends on how often one saves. Source: ml,
    `ml.40_recovery`."""
    not_negative(detect_s=detect_s, restart_s=restart_s, load_s=load_s, interval_s=interval_s)
    return detect_s + restart_s + load_s + interval_s / 2


def false_alarms_a_day(nodes: int, heartbeat_s: float, deviations: float) -> float:
    """nodes 86400 / H Q(k): healthy heartbeats that are more than k standard deviations late. Source: ml,
    `ml.41_heartbeat`."""
    not_negative(deviations=deviations)
    count(nodes=nodes)
    positive(heartbeat_s=heartbeat_s)
    return nodes * SECONDS_A_DAY / heartbeat_s * ndtr(-np.asarray(deviations, dtype=float))


def unavailability(copies: int, one: float, shared_share: float) -> float:
    """((1 - b) u)^k + b u: all k copies down, b the share of a copy's outages whose cause takes all of them. Source:
    ml, `ml.42_availability`."""
    positive(copies=copies)
    share(one=one, shared_share=shared_share)
    return ((1 - shared_share) * one) ** copies + shared_share * one
