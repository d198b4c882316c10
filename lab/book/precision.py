"""Part VII: number formats, and what rounding loses (Ch. 30). Formats are given by bits of exponent and of mantissa."""

from fractions import Fraction
from math import erf, sqrt

import numpy as np

from lab.book.checks import not_negative, not_zero, positive, share


def epsilon(mantissa_bits: int) -> float:
    """2^-m: the gap above 1; rounding errs by half of it. Source: Ch. 30, `ch30.formats`."""
    positive(mantissa_bits=mantissa_bits)
    return 2.0**-mantissa_bits


def smallest_normal(exponent_bits: int) -> float:
    """2^(2 - 2^(e - 1)). Source: Ch. 30, `ch30.formats`."""
    positive(exponent_bits=exponent_bits)
    return 2.0 ** (2 - 2.0 ** (exponent_bits - 1))


def smallest_subnormal(exponent_bits: int, mantissa_bits: int) -> float:
    """`smallest_normal` times `epsilon`. Source: Ch. 30, `ch30.formats`."""
    return smallest_normal(exponent_bits) * epsilon(mantissa_bits)


def largest(exponent_bits: int, mantissa_bits: int) -> float:
    """2^(2^(e - 1) - 1) (2 - 2^-m), the top exponent kept for infinities, as IEEE 754 has it. Source: Ch. 30,
    `ch30.formats`."""
    positive(exponent_bits=exponent_bits)
    return 2.0 ** (2.0 ** (exponent_bits - 1) - 1) * (2 - epsilon(mantissa_bits))


def largest_without_infinities(exponent_bits: int, mantissa_bits: int) -> float:
    """2^(2^(e - 1)) (2 - 2 2^-m): only the topmost pattern is kept, as E4M3 does. Source: Ch. 30, `ch30.formats`."""
    positive(exponent_bits=exponent_bits)
    return 2.0 ** (2.0 ** (exponent_bits - 1)) * (2 - 2 * epsilon(mantissa_bits))


def values_per_octave(mantissa_bits: int) -> float:
    """2^m. Source: Ch. 30, `ch30.formats`."""
    return 1 / epsilon(mantissa_bits)


def least_growth(weight: float, mantissa_bits: int) -> float:
    """Half the gap above |w|: an update that is not larger is lost. Source: Ch. 30, `ch30.master_weights`."""
    not_zero(weight=weight)
    return 2.0 ** np.floor(np.log2(np.abs(weight))) * epsilon(mantissa_bits) / 2


def least_loss_scale(gradient: float, exponent_bits: int) -> float:
    """smallest normal / |g|: the scale that keeps a gradient normal. Source: Ch. 30, `ch30.loss_scaling`."""
    not_zero(gradient=gradient)
    return smallest_normal(exponent_bits) / np.abs(gradient)


def power_of_two_above(scale: float) -> float:
    """2^ceil(log2 s). Source: Ch. 30, `ch30.loss_scaling`."""
    positive(scale=scale)
    return 2.0 ** np.ceil(np.log2(scale))


def log_uniform_share_below(limit: float, low: float, high: float) -> float:
    """log(x / low) / log(high / low), within 0 to 1: the share of log-uniform values under a limit. Source: Ch. 30,
    `ch30.range_loss`."""
    positive(limit=limit, low=low, high=high)
    return np.clip(np.log(np.divide(limit, low)) / np.log(np.divide(high, low)), 0, 1)


def log_uniform_share_lost(low: float, high: float, exponent_bits: int, mantissa_bits: int) -> float:
    """What rounds to zero (half the smallest subnormal) and to infinity (half a gap over the largest). Source: Ch. 30,
    `ch30.range_loss` (6-8:D-78)."""
    top = largest(exponent_bits, mantissa_bits)
    overflow = top / (2 - epsilon(mantissa_bits)) * (2 - epsilon(mantissa_bits) / 2)
    underflow = smallest_subnormal(exponent_bits, mantissa_bits) / 2
    return log_uniform_share_below(underflow, low, high) + 1 - log_uniform_share_below(overflow, low, high)


def matmul_error_ratio(mantissa_bits: int, other_mantissa_bits: int) -> float:
    """2^(m' - m): errors of a product in one format over those in another. Source: Ch. 30, `ch30.matmul_error`
    (6-8:D-80)."""
    positive(mantissa_bits=mantissa_bits, other_mantissa_bits=other_mantissa_bits)
    return epsilon(mantissa_bits) / epsilon(other_mantissa_bits)


def normal_rounding_error(mantissa_bits: int, deviation: float = 1.0) -> float:
    """2^-m sqrt(E 4^floor(log2 |x|) / (12 E x^2)): what rounding loses of normal values, relative to their norm.

    An error is uniform over a gap, which is 2^-m of the power of two below. Their standard deviation, in units of the
    format, says where in an octave they lie; limits are left out. Source: Ch. 30, `ch30.fp8_recipe`.
    """
    positive(mantissa_bits=mantissa_bits, deviation=deviation)
    exponents = np.arange(-40, 5) + np.floor(np.log2(deviation))
    below = [erf(2.0**e / (deviation * sqrt(2))) for e in (*exponents, exponents[-1] + 1)]
    return epsilon(mantissa_bits) * sqrt(np.sum(4.0**exponents * np.diff(below)) / 12) / deviation


def product_rounding_error(error: float, other_error: float) -> float:
    """sqrt(e^2 + e'^2): of a product of matrices whose entries err independently by e and e', relative to its own
    size, however many terms it sums. Source: Ch. 30, `ch30.fp8_recipe`."""
    not_negative(error=error, other_error=other_error)
    return sqrt(error**2 + other_error**2)


def exp_limit(exponent_bits: int, mantissa_bits: int) -> float:
    """ln(largest): where exp leaves the format. Source: Ch. 30, `ch30.softmax`."""
    return np.log(largest(exponent_bits, mantissa_bits))


def depth_error_bound(layers: int, width: int, mantissa_bits: int, growth: float = 1.0) -> float:
    """L n u product of |W|, u = 2^-(m + 1): worst relative error of L products over n terms. Source: Ch. 30,
    `ch30.error_propagation`."""
    positive(layers=layers, width=width, growth=growth)
    return layers * width * epsilon(mantissa_bits) / 2 * growth


def split_speedup(compute_share: float, compute_speedup: float, memory_speedup: float) -> float:
    """1 / (f_c / s_c + (1 - f_c) / s_m). Source: Ch. 30, `ch30.speedup_split` (Amdahl 1967)."""
    share(compute_share=compute_share)
    positive(compute_speedup=compute_speedup, memory_speedup=memory_speedup)
    return 1 / (compute_share / compute_speedup + (1 - compute_share) / memory_speedup)


def quantization_scale(largest_value: float, largest_magnitude: float) -> float:
    """format's largest / amax. Source: Ch. 30, `ch30.fp8_recipe`."""
    positive(largest_value=largest_value, largest_magnitude=largest_magnitude)
    return largest_value / largest_magnitude


def scale_bytes(elements: int, block: int, bytes_per_scale: int) -> Fraction:
    """n / block e_s [B]: of the scales of numbers in a narrow format, each of a block. Source: Ch. 30,
    `ch30.fp8_recipe`."""
    positive(elements=elements, block=block, bytes_per_scale=bytes_per_scale)
    return Fraction(elements, block) * bytes_per_scale


def noise_margin(noise: float, batch: int, mantissa_bits: int) -> float:
    """(sigma / sqrt(B)) / u, u half the gap: how far gradient noise stands above rounding. Source: Ch. 30,
    `ch30.noise_argument`."""
    positive(batch=batch)
    not_negative(noise=noise)
    return noise / np.sqrt(batch) / (epsilon(mantissa_bits) / 2)
