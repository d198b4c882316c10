"""The second source's laws of a fleet: how loss, step time and useful work scale with compute and ranks (ml.01, ml.02,
ml.05 to ml.13)."""

import numpy as np

from lab.book.checks import Number, below, count, finite, not_negative, positive, ratio, share

BACKWARD_SHARE = 2 / 3
"""Of a step's compute: two of the three products of every layer, and all that an all-reduce of gradients can hide
behind."""


def reducible_loss_ratio(compute_ratio: float, exponent: float) -> float:
    """r^-g: reducible loss after r times the compute, over that before. Source: ml, `ml.01_scaling_law`."""
    positive(compute_ratio=compute_ratio, exponent=exponent)
    return np.power(np.asarray(compute_ratio, dtype=float), -np.asarray(exponent, dtype=float))


def compute_for_loss(loss_ratio: float, exponent: float) -> float:
    """q^(1/g): times the compute for q times less reducible loss. Source: ml, `ml.01_scaling_law` (2nd:M1)."""
    positive(loss_ratio=loss_ratio, exponent=exponent)
    return np.power(np.asarray(loss_ratio, dtype=float), 1 / np.asarray(exponent, dtype=float))


def largest_overlap_s(compute_s: float, waited_s: float, backward_share: float = BACKWARD_SHARE) -> float:
    """min(T_comm + T_sync, b T_c / N), of one rank: what can be hidden, b = 1 at the very most. Source: ml,
    `ml.02_fleet_law` (2nd:M2)."""
    not_negative(compute_s=compute_s, waited_s=waited_s)
    share(backward_share=backward_share)
    return np.minimum(waited_s, backward_share * compute_s)


def fleet_step_s(serial_compute_s: float, ranks: int, communication_s: float, sync_s: float, overlap_s: float) -> float:
    """T_c / N + T_comm + T_sync - T_ov, 0 <= T_ov <= T_comm + T_sync.

    Raises:
      ValueError: an overlap above what is to be hidden, or above one rank's compute, which the source's own bound
        forgets (2nd:M2).
    Source: ml, `ml.02_fleet_law`.
    """
    count(ranks=ranks)
    positive(serial_compute_s=serial_compute_s)
    not_negative(communication_s=communication_s, sync_s=sync_s, overlap_s=overlap_s)
    compute_s = serial_compute_s / ranks
    hidden = np.asarray(overlap_s)
    if np.any(hidden > largest_overlap_s(compute_s, communication_s + sync_s, 1)):
        raise ValueError(
            f"overlap_s={hidden.max()}: expected no more than communication and synchronisation together, and than the "
            "compute of one rank"
        )
    return compute_s + communication_s + sync_s - overlap_s


def fleet_efficiency(
    serial_compute_s: float, ranks: int, communication_s: float, sync_s: float, overlap_s: float
) -> float:
    """(T_c / N) / T_step. Source: ml, `ml.02_fleet_law`, `ml.06_c3`, `ml.10_eta_175b`."""
    count(ranks=ranks)
    return serial_compute_s / ranks / fleet_step_s(serial_compute_s, ranks, communication_s, sync_s, overlap_s)


def useful_flops_per_s(peak_flops_per_s: float, mfu: float, availability: float) -> float:
    """peak x MFU x availability; the MFU of whole steps has communication and bubbles in it already. Source: ml,
    `ml.07_effective_flops` (2nd:M10)."""
    positive(peak_flops_per_s=peak_flops_per_s)
    share(mfu=mfu, availability=availability)
    return peak_flops_per_s * mfu * availability


def fed_share(storage_bytes_per_s: float, ranks: int, bytes_per_s_a_rank: float) -> float:
    """min(1, B / (N r)): the share of a step's rate that storage can feed. Source: ml, `ml.08_fleet_principles`."""
    count(ranks=ranks)
    positive(storage_bytes_per_s=storage_bytes_per_s, bytes_per_s_a_rank=bytes_per_s_a_rank)
    return np.minimum(1, storage_bytes_per_s / (ranks * bytes_per_s_a_rank))


def amdahl_speedup(ranks: int, serial_share: float) -> float:
    """1 / (s + (1 - s) / N). Source: ml, `ml.12_amdahl` (Amdahl 1967)."""
    count(ranks=ranks)
    share(serial_share=serial_share)
    with np.errstate(divide="ignore"):
        return np.divide(1, serial_share + (1 - serial_share) / ranks)


def universal_speedup(ranks: int, contention: float, coherency: float) -> float:
    """N / (1 + a (N - 1) + b N (N - 1)); with b = 0 Amdahl's law, a its serial share. Source: ml,
    `ml.13_scaling_tax_curve` (Gunther 1993)."""
    finite(ranks=ranks)
    count(ranks=ranks)
    not_negative(contention=contention, coherency=coherency)
    return ranks / (1 + contention * (ranks - 1) + coherency * ranks * (ranks - 1))


def fastest_ranks(contention: float, coherency: float) -> float:
    """sqrt((1 - a) / b): ranks beyond which `universal_speedup` falls. Source: ml, `ml.13_scaling_tax_curve`."""
    share(contention=contention)
    positive(coherency=coherency)
    return np.sqrt((1 - contention) / coherency)


def exposed_speedup(ranks: int, exposed_share: float) -> float:
    """N / (1 + N r), r the exposed communication over the compute of one rank alone: at most 1 / r. Source: ml,
    `ml.13_scaling_tax_curve` (2nd:M19)."""
    finite(ranks=ranks)
    count(ranks=ranks)
    not_negative(exposed_share=exposed_share)
    return ranks / (1 + ranks * exposed_share)


def weak_speedup(ranks: int, compute_s: float, sync_s: float, micro_batches: int = 1) -> float:
    """N A T_c / (A T_c + T_sync): work done by N ranks that synchronise after A micro-batches. Source: ml,
    `ml.14_gpt2_scaling`."""
    finite(micro_batches=micro_batches)
    count(ranks=ranks)
    positive(compute_s=compute_s, micro_batches=micro_batches)
    not_negative(sync_s=sync_s)
    return ranks * micro_batches * compute_s / (micro_batches * compute_s + sync_s)


def communication_removed_speedup(communication_share: Number, left_share: Number = 0) -> Number:
    """(1 - left) / (1 - c): of a step that spends c on communication, when it spends `left` instead. Source: ml,
    `ml.06_c3`."""
    share(communication_share=communication_share, left_share=left_share)
    below(1, communication_share=communication_share)
    return ratio(1 - left_share, 1 - communication_share)
