"""Part I: what bounds a device's rate: arithmetic, memory, network or storage (Ch. 2 and 3a).

Intensities are FLOP of one rank over bytes that this rank moves. Bandwidths are of one direction.
"""

import numpy as np

from lab.book.checks import at_least, count, positive, positive_or_infinite


def attainable_flops_per_s(
    flops_per_s: float,
    memory_bytes_per_s: float = np.inf,
    memory_intensity: float = np.inf,
    network_bytes_per_s: float = np.inf,
    network_intensity: float = np.inf,
    storage_bytes_per_s: float = np.inf,
    storage_intensity: float = np.inf,
) -> float:
    """min(F, BW I) over memory, network and storage, all overlapped; what is not given does not bound.

    Source: Ch. 2, `ch02.roofline`, `ch02.ext_roofline`; Ch. 3a, `ch03a.io_ceiling` (Williams, Waterman & Patterson
    2009).
    """
    positive(flops_per_s=flops_per_s)
    positive_or_infinite(memory_bytes_per_s=memory_bytes_per_s, memory_intensity=memory_intensity)
    positive_or_infinite(network_bytes_per_s=network_bytes_per_s, network_intensity=network_intensity)
    positive_or_infinite(storage_bytes_per_s=storage_bytes_per_s, storage_intensity=storage_intensity)
    moving = np.minimum(memory_bytes_per_s * memory_intensity, network_bytes_per_s * network_intensity)
    return np.minimum(np.minimum(flops_per_s, moving), storage_bytes_per_s * storage_intensity)


def ridge(flops_per_s: float, bytes_per_s: float) -> float:
    """F / beta FLOP a byte: below it a link bounds, above it arithmetic. Source: Ch. 2, `ch02.ridge` (D-01: beta of one
    direction)."""
    positive(flops_per_s=flops_per_s, bytes_per_s=bytes_per_s)
    return flops_per_s / bytes_per_s


def dp_intensity(tokens: float, ranks: int, bytes_per_element: int = 2) -> float:
    """3 n / s P / (P - 1) FLOP a byte, n tokens a rank: 6 Psi n over the wire bytes of one all_reduce, whatever Psi.

    `ranks` may be infinite. Source: Ch. 2, `ch02.I_dp`.
    """
    positive(tokens=tokens, bytes_per_element=bytes_per_element)
    count(ranks=ranks)
    at_least(2, infinite=True, ranks=ranks)
    return 3 * tokens / bytes_per_element / (1 - 1 / ranks)


def tp_intensity(embed: int, ranks: int, bytes_per_element: int = 2) -> float:
    """9 H / ((t - 1) s) FLOP a byte: 72 n H^2 / t of a layer, forward and backward, over its four all_reduces; scores
    left out.

    Source: Ch. 2, `ch02.I_tp` as corrected (D-12).
    """
    positive(embed=embed, bytes_per_element=bytes_per_element)
    count(ranks=ranks)
    at_least(2, ranks=ranks)
    return 9 * embed / ((ranks - 1) * bytes_per_element)


def pp_intensity(embed: int, layers: int, stages: int, bytes_per_element: int = 2) -> float:
    """36 H L / (p s) FLOP a byte: 72 n H^2 L / p of a stage over an activation and its gradient. Source: Ch. 2,
    `ch02.I_pp` as corrected (D-13)."""
    count(stages=stages)
    positive(embed=embed, layers=layers, bytes_per_element=bytes_per_element)
    return 36 * embed * layers / (stages * bytes_per_element)


def data_intensity(parameters: float, bytes_per_token: int, amplification: float = 1) -> float:
    """6 Psi / (b rho) FLOP a byte read: b bytes a token, rho read for each one used. Source: Ch. 3a,
    `ch03a.data_ridge`."""
    positive(parameters=parameters, bytes_per_token=bytes_per_token, amplification=amplification)
    return 6 * parameters / (bytes_per_token * amplification)


def data_ridge(devices: int, flops_per_s: float, mfu: float, bytes_per_s: float) -> float:
    """P F eta / BW FLOP a byte of a store that all devices share. Source: Ch. 3a, `ch03a.data_ridge` as corrected
    (D-18)."""
    count(devices=devices)
    positive(mfu=mfu)
    return devices * mfu * ridge(flops_per_s, bytes_per_s)
