"""Part I: feeding devices from storage (Ch. 3a). Rates of tokens stand in `scale`, intensities in `roofline`."""

import numpy as np

from lab.book.checks import not_negative, positive


def required_bytes_per_s(tokens_per_s: float, bytes_per_token: int, amplification: float = 1) -> float:
    """tok/s b rho: for the whole job, not for a node. Source: Ch. 3a, `ch03a.breq` (D-04, D-17)."""
    positive(tokens_per_s=tokens_per_s, bytes_per_token=bytes_per_token, amplification=amplification)
    return tokens_per_s * bytes_per_token * amplification


def read_amplification(bytes_read: int, bytes_used: int) -> float:
    """Bytes read over bytes used, 1 at best. Source: Ch. 3a, `ch03a.rho_table`."""
    positive(bytes_read=bytes_read, bytes_used=bytes_used)
    return bytes_read / bytes_used


def batches_in_flight(batches_per_s: float, seconds: float) -> float:
    """lambda W: the mean number under way, each for W seconds. Source: Ch. 3a, `ch03a.little` (Little 1961)."""
    positive(batches_per_s=batches_per_s, seconds=seconds)
    return batches_per_s * seconds


def decoded_bytes_per_s(storage_bytes_per_s: float, compression: float, decode_bytes_per_s: float) -> float:
    """min(BW c, decode), all in bytes after decoding. Source: Ch. 3a, `ch03a.compression`."""
    positive(storage_bytes_per_s=storage_bytes_per_s, compression=compression, decode_bytes_per_s=decode_bytes_per_s)
    return np.minimum(storage_bytes_per_s * compression, decode_bytes_per_s)


def stall_share(load_s: float, compute_s: float) -> float:
    """T_load / (T_load + T_c) when each batch is loaded only after the one before is done. Source: Ch. 3a,
    `ch03a.stall_fraction`."""
    not_negative(load_s=load_s)
    positive(compute_s=compute_s)
    return load_s / (load_s + compute_s)


def prefetched_stall_share(load_s: float, compute_s: float) -> float:
    """max(0, 1 - T_c / T_load): the same with the next batch loaded meanwhile. Source: Ch. 3a,
    `ch03a.stall_fraction`."""
    positive(load_s=load_s, compute_s=compute_s)
    return np.maximum(0, 1 - compute_s / load_s)


def fill_s(cache_bytes: float, bytes_per_s: float) -> float:
    """V / BW. Source: Ch. 3a, `ch03a.cache_fill`."""
    positive(cache_bytes=cache_bytes, bytes_per_s=bytes_per_s)
    return cache_bytes / bytes_per_s


def drain_s(cache_bytes: float, read_bytes_per_s: float, refill_bytes_per_s: float) -> float:
    """V / (read - refill): how long a full cache hides a slower store from data that is read once; for ever where it is
    refilled as fast.

    Source: Ch. 3a, `ch03a.cache_fill` as corrected (D-19).
    """
    positive(cache_bytes=cache_bytes, read_bytes_per_s=read_bytes_per_s)
    not_negative(refill_bytes_per_s=refill_bytes_per_s)
    with np.errstate(divide="ignore"):
        return np.divide(cache_bytes, np.maximum(0, read_bytes_per_s - refill_bytes_per_s))
