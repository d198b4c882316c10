"""Part VI: failures, how often to save and how long saving takes (Ch. 26). Failures are independent and exponential."""

import numpy as np
from numpy.typing import ArrayLike

from lab.book.checks import below, chosen, count, finite, not_negative, positive, share


def failures_per_h(counts: ArrayLike, mtbf_h: ArrayLike) -> float:
    """Sum of n_i / MTBF_i over kinds of component, failures an hour. Source: Ch. 26, `ch26.system_mtbf`."""
    positive(mtbf_h=mtbf_h)
    not_negative(counts=counts)
    return np.sum(np.asarray(counts) / np.asarray(mtbf_h), axis=0)


def system_mtbf_h(counts: ArrayLike, mtbf_h: ArrayLike) -> float:
    """Hours between failures of the whole: 1 / `failures_per_h`. Source: Ch. 26, `ch26.system_mtbf`."""
    return 1 / failures_per_h(counts, mtbf_h)


def restart_from_zero_s(work_s: float, mtbf_s: float) -> float:
    """M (e^(T / M) - 1): expected seconds to finish T seconds of work that start anew after each failure. Source: Ch.
    26, `ch26.no_checkpoint`."""
    positive(work_s=work_s, mtbf_s=mtbf_s)
    with np.errstate(over="ignore"):
        return mtbf_s * np.expm1(np.divide(work_s, mtbf_s))


def checkpoint_overhead(interval_s: float, save_s: float, mtbf_s: float) -> float:
    """delta / I + I / (2 M): share of time lost to saving and to work done again, first order. Source: Ch. 26,
    `ch26.young_daly`."""
    positive(interval_s=interval_s, save_s=save_s, mtbf_s=mtbf_s)
    return save_s / interval_s + interval_s / (2 * mtbf_s)


def young_interval_s(save_s: float, mtbf_s: float) -> float:
    """sqrt(2 delta M): the interval of least `checkpoint_overhead`. Source: Ch. 26, `ch26.young_daly` (Young 1974)."""
    positive(save_s=save_s, mtbf_s=mtbf_s)
    return np.sqrt(2 * save_s * mtbf_s)


def daly_interval_s(save_s: float, mtbf_s: float) -> float:
    """sqrt(2 delta M) (1 + x / 3 + x^2 / 9) - delta with x = sqrt(delta / (2 M)), and M where delta >= 2 M.

    Source: Ch. 26, `ch26.young_daly` (Daly 2006).
    """
    young_s = young_interval_s(save_s, mtbf_s)
    x = np.sqrt(save_s / (2 * mtbf_s))
    return chosen(x < 1, young_s * (1 + x / 3 + x * x / 9) - save_s, mtbf_s)


def longest_blocking_s(interval_s: float, overhead: float) -> float:
    """o I: seconds that a save may block every I seconds for an overhead o. Source: Ch. 26, `ch26.opener_budget`."""
    positive(interval_s=interval_s)
    share(overhead=overhead)
    return overhead * interval_s


def gathered_save_s(checkpoint_bytes: float, ranks: int, network_bytes_per_s: float, disk_bytes_per_s: float) -> float:
    """C (P - 1) / P / B_net + C / B_disk: one rank collects C bytes, of which each holds C / P, and writes them.

    Source: Ch. 26, `ch26.io_models` as corrected (6-8:D-37).
    """
    finite(ranks=ranks)
    count(ranks=ranks)
    positive(
        checkpoint_bytes=checkpoint_bytes, network_bytes_per_s=network_bytes_per_s, disk_bytes_per_s=disk_bytes_per_s
    )
    return checkpoint_bytes * (ranks - 1) / ranks / network_bytes_per_s + checkpoint_bytes / disk_bytes_per_s


def parallel_save_s(checkpoint_bytes: float, writers: int, targets: int, target_bytes_per_s: float) -> float:
    """C / (min(P, storage targets) B): every rank writes its share. Source: Ch. 26, `ch26.io_models`."""
    positive(checkpoint_bytes=checkpoint_bytes, writers=writers, targets=targets, target_bytes_per_s=target_bytes_per_s)
    return checkpoint_bytes / (np.minimum(writers, targets) * target_bytes_per_s)


def snapshot_s(shard_bytes: float, host_bytes_per_s: float) -> float:
    """C_shard / B_host: how long an asynchronous save blocks. Source: Ch. 26, `ch26.async`."""
    positive(shard_bytes=shard_bytes, host_bytes_per_s=host_bytes_per_s)
    return shard_bytes / host_bytes_per_s


def blocking_save_s(shard_bytes: float, host_bytes_per_s: float, storage_bytes_per_s: float) -> float:
    """C_shard / B_host + C_shard / B_storage: how long a synchronous save blocks. Source: Ch. 26, `ch26.async`."""
    positive(shard_bytes=shard_bytes, host_bytes_per_s=host_bytes_per_s, storage_bytes_per_s=storage_bytes_per_s)
    return snapshot_s(shard_bytes, host_bytes_per_s) + snapshot_s(shard_bytes, storage_bytes_per_s)


def work_lost_s(interval_s: float, write_s: float) -> float:
    """I / 2 + W: expected work lost in a failure where a snapshot counts only W <= I seconds after it was taken.

    Source: Ch. 26, `ch26.async` as corrected (6-8:D-41).
    """
    positive(interval_s=interval_s)
    not_negative(write_s=write_s)
    return interval_s / 2 + write_s


def shards_read(rank: int, ranks_before: int, ranks_now: int) -> tuple[int, ...]:
    """Old shards from which a rank takes its own along one dim: k neighbours to merge, one to split. Source: Ch. 26,
    `ch26.reshard`.

    Raises:
      ValueError: neither number of ranks divides the other.
    """
    not_negative(rank=rank)
    count(ranks_before=ranks_before, ranks_now=ranks_now)
    below(ranks_now, rank=rank)
    if ranks_before % ranks_now and ranks_now % ranks_before:
        raise ValueError(f"ranks_now={ranks_now}: expected a divisor or a multiple of ranks_before={ranks_before}")
    merged = max(1, ranks_before // ranks_now)
    first = rank * ranks_before // ranks_now
    return tuple(range(first, first + merged))


def scaled_learning_rate(learning_rate: float, batch_before: int, batch_now: int, exponent: float = 1.0) -> float:
    """lr (B' / B)^x: x = 1 for SGD below the critical batch, 1/2 as a rule for Adam. Source: Ch. 26, `ch26.elastic_lr`
    (6-8:D-44)."""
    finite(exponent=exponent)
    positive(learning_rate=learning_rate, batch_before=batch_before, batch_now=batch_now)
    return learning_rate * (batch_now / batch_before) ** exponent


def compressed_save_s(
    checkpoint_bytes: float, ratio: float, codec_bytes_per_s: float, write_bytes_per_s: float
) -> float:
    """S / B_codec + S / (r B_write): compress all, then write. Source: Ch. 26, `ch26.compression`."""
    positive(
        checkpoint_bytes=checkpoint_bytes,
        ratio=ratio,
        codec_bytes_per_s=codec_bytes_per_s,
        write_bytes_per_s=write_bytes_per_s,
    )
    return checkpoint_bytes / codec_bytes_per_s + checkpoint_bytes / (ratio * write_bytes_per_s)


def pipelined_save_s(
    checkpoint_bytes: float, ratio: float, codec_bytes_per_s: float, write_bytes_per_s: float
) -> float:
    """max of S / B_codec and S / (r B_write): compress while writing. Source: Ch. 26, `ch26.compression`."""
    positive(
        checkpoint_bytes=checkpoint_bytes,
        ratio=ratio,
        codec_bytes_per_s=codec_bytes_per_s,
        write_bytes_per_s=write_bytes_per_s,
    )
    return np.maximum(checkpoint_bytes / codec_bytes_per_s, checkpoint_bytes / (ratio * write_bytes_per_s))


def compression_break_even_bytes_per_s(ratio: float, codec_bytes_per_s: float) -> float:
    """B_codec (1 - 1 / r): below this write rate `compressed_save_s` beats plain writing; a pipelined one does below
    B_codec.

    Source: Ch. 26, `ch26.compression` as corrected (6-8:D-38).
    """
    positive(ratio=ratio, codec_bytes_per_s=codec_bytes_per_s)
    return codec_bytes_per_s * (1 - 1 / ratio)
