"""Part VII: communication behind computation (Ch. 31)."""

from collections.abc import Sequence

import numpy as np

from lab.book.checks import count, finite, not_negative, positive, share


def overlapped_s(compute_s: float, communication_s: float, overlap: float) -> float:
    """T_c + T_m - a min(T_c, T_m), a the share of the shorter that runs behind the longer. Source: Ch. 31,
    `ch31.overlap_model`."""
    not_negative(compute_s=compute_s, communication_s=communication_s)
    share(overlap=overlap)
    return compute_s + communication_s - overlap * np.minimum(compute_s, communication_s)


def overlap_speedup(compute_s: float, communication_s: float, overlap: float) -> float:
    """(T_c + T_m) / `overlapped_s`. Source: Ch. 31, `ch31.overlap_model`."""
    positive(compute_s=compute_s)
    return (compute_s + communication_s) / overlapped_s(compute_s, communication_s, overlap)


def overlap_share(compute_s: float, communication_s: float, step_s: float) -> float:
    """(T_c + T_m - T) / min(T_c, T_m): the a of `overlapped_s`. Source: Ch. 31, `ch31.overlap_model` (6-8:D-86)."""
    positive(compute_s=compute_s, communication_s=communication_s, step_s=step_s)
    return (compute_s + communication_s - step_s) / np.minimum(compute_s, communication_s)


def bucket_s(gradient_bytes: float, buckets: int, alpha_s: float, bytes_per_s: float) -> float:
    """alpha + G / (N_b beta). Source: Ch. 31, `ch31.bucket_pipeline`."""
    positive(gradient_bytes=gradient_bytes, buckets=buckets, bytes_per_s=bytes_per_s)
    not_negative(alpha_s=alpha_s)
    return alpha_s + gradient_bytes / (buckets * bytes_per_s)


def bucketed_backward_s(backward_s: float, buckets: int, bucket_sync_s: float) -> float:
    """max of T_b + c and T_b / N_b + N_b c: equal buckets on one link, each sent once it is ready and the link is free.

    Source: Ch. 31, `ch31.bucket_pipeline`.
    """
    positive(backward_s=backward_s, buckets=buckets)
    not_negative(bucket_sync_s=bucket_sync_s)
    return np.maximum(backward_s + bucket_sync_s, backward_s / buckets + buckets * bucket_sync_s)


def buckets_needed(gradient_bytes: float, bucket_bytes: float) -> float:
    """ceil(G / B_b). Source: Ch. 31, `ch31.bucket_size`."""
    positive(gradient_bytes=gradient_bytes, bucket_bytes=bucket_bytes)
    return np.ceil(np.divide(gradient_bytes, bucket_bytes))


def bucketed_sync_s(gradient_bytes: float, bucket_bytes: float, alpha_s: float, bytes_per_s: float) -> float:
    """G alpha / B_b + G / beta. Source: Ch. 31, `ch31.bucket_size`."""
    positive(gradient_bytes=gradient_bytes, bucket_bytes=bucket_bytes, bytes_per_s=bytes_per_s)
    not_negative(alpha_s=alpha_s)
    return gradient_bytes * alpha_s / bucket_bytes + gradient_bytes / bytes_per_s


def bucket_efficiency(bucket_bytes: float, alpha_s: float, bytes_per_s: float) -> float:
    """B_b / (B_b + alpha beta): the share of time in which bytes move. Source: Ch. 31, `ch31.bucket_size`."""
    positive(bucket_bytes=bucket_bytes, bytes_per_s=bytes_per_s)
    not_negative(alpha_s=alpha_s)
    return bucket_bytes / (bucket_bytes + alpha_s * bytes_per_s)


def least_bucket_bytes(efficiency: float, alpha_s: float, bytes_per_s: float) -> float:
    """eta / (1 - eta) alpha beta: the inverse of `bucket_efficiency`. Source: Ch. 31, `ch31.bucket_size`."""
    share(efficiency=efficiency)
    not_negative(alpha_s=alpha_s)
    positive(bytes_per_s=bytes_per_s)
    return np.divide(efficiency, 1 - efficiency) * alpha_s * bytes_per_s


def formed_buckets(sizes_bytes: Sequence[int], cap_bytes: int) -> tuple[tuple[int, ...], ...]:
    """Places of the gradients in each bucket: last layer first, filled until the next would exceed the cap. Source: Ch.
    31, `ch31.bucketing_algo`."""
    finite(sizes_bytes=sizes_bytes)
    positive(cap_bytes=cap_bytes)
    buckets: list[list[int]] = []
    for place in reversed(range(len(sizes_bytes))):
        if not buckets or sum(sizes_bytes[i] for i in buckets[-1]) + sizes_bytes[place] > cap_bytes:
            buckets.append([])
        buckets[-1].append(place)
    return tuple(map(tuple, buckets))


def prefetched_s(layers: int, gather_s: float, compute_s: float) -> float:
    """T_g + (L - 1) max(T_c, T_g) + T_c: gathers follow each other on one link, one layer or more ahead. Source: Ch.
    31, `ch31.prefetch`."""
    positive(layers=layers, gather_s=gather_s, compute_s=compute_s)
    return gather_s + (layers - 1) * np.maximum(compute_s, gather_s) + compute_s


def prefetch_depth(gather_s: float, compute_s: float) -> float:
    """ceil(T_g / T_c) layers ahead where gathers run side by side; on one link 1 is enough, and more does not help
    (`prefetched_s`).

    Source: Ch. 31, `ch31.prefetch` (6-8:D-88).
    """
    positive(gather_s=gather_s, compute_s=compute_s)
    return np.ceil(np.divide(gather_s, compute_s))


def prefetch_bytes(parameters: float, bytes_per_element: int, layers: int, depth: int = 1) -> float:
    """k Psi w / L: weights that wait, whole, for their layer. Source: Ch. 31, `ch31.prefetch`."""
    positive(parameters=parameters, bytes_per_element=bytes_per_element, layers=layers)
    not_negative(depth=depth)
    return depth * parameters * bytes_per_element / layers


def collective_matmul_s(
    matmul_s: float, gathered_bytes: float, ranks: int, alpha_s: float, bytes_per_s: float
) -> float:
    """T_mm / n + (n - 1) max(T_mm / n, alpha + V / (n beta)): a product in n parts, each behind the next permute of a
    shard.

    Source: `ch31.collective_matmul`, not in the book (Wang et al. 2023); the last part has nothing to wait for.
    """
    finite(ranks=ranks)
    count(ranks=ranks)
    positive(matmul_s=matmul_s, gathered_bytes=gathered_bytes)
    return matmul_s / ranks + (ranks - 1) * np.maximum(
        matmul_s / ranks, bucket_s(gathered_bytes, ranks, alpha_s, bytes_per_s)
    )
