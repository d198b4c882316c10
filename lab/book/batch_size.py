"""Part II: what a larger batch buys (Ch. 10). A batch is counted in examples, tokens or sequences, the same unit
throughout a call.

The two-batch estimate of the noise scale is `convergence.simple_noise_scale`, a rule for learning rates
`reliability.scaled_learning_rate`.
"""

import numpy as np
from numpy.typing import ArrayLike

from lab.book.checks import above, below, count, finite, not_negative, positive


def gradient_variance(example_variance: float, batch: int) -> float:
    """sigma^2 / B: of the mean of B independent gradients. Source: Ch. 10, `ch10.noise`."""
    positive(batch=batch)
    not_negative(example_variance=example_variance)
    return example_variance / batch


def noise_scale(covariance_trace: float, gradient_square: float) -> float:
    """tr(Sigma) / |G|^2: the batch at which noise equals signal, curvature the same in all directions.

    Source: Ch. 10, `ch10.bcrit`, `ch10.noise_scale_rule` as corrected (D-11; McCandlish et al. 2018, arXiv:1812.06162).
    """
    positive(gradient_square=gradient_square)
    not_negative(covariance_trace=covariance_trace)
    return covariance_trace / gradient_square


def curved_noise_scale(hessian: np.ndarray, covariance: np.ndarray, gradient: np.ndarray) -> float:
    """tr(H Sigma) / (G' H G) for [n, n], [n, n] and [n]: `noise_scale` is the case of H a multiple of I. Source: as
    there."""
    positive(curvature=gradient @ hessian @ gradient)
    return np.trace(hessian @ covariance) / (gradient @ hessian @ gradient)


def best_learning_rate(largest: float, noise_scale: float, batch: int) -> float:
    """eta_max / (1 + B_noise / B): of the step that lowers a quadratic most on average. Source: Ch. 10, `ch10.sqrt_lr`
    (McCandlish et al. 2018)."""
    positive(largest=largest, batch=batch)
    not_negative(noise_scale=noise_scale)
    return largest / (1 + noise_scale / batch)


def perfect_steps(steps: int, batch_before: int, batch: int) -> float:
    """S_0 B_0 / B: for batches far below the critical one alone. Source: Ch. 10, `ch10.perfect`."""
    positive(steps=steps, batch_before=batch_before, batch=batch)
    return steps * batch_before / batch


def steps_needed(batch: int, least_steps: float, critical_batch: float) -> float:
    """S_min (1 + B_c / B), at every B. Source: Ch. 10, `ch10.steps`."""
    positive(batch=batch, least_steps=least_steps, critical_batch=critical_batch)
    return least_steps * (1 + critical_batch / batch)


def examples_needed(batch: int, least_steps: float, critical_batch: float) -> float:
    """B S = S_min (B + B_c): the compute, twice its least at B_c. Source: Ch. 10, `ch10.waste`."""
    return batch * steps_needed(batch, least_steps, critical_batch)


def wasted_examples(batch: int, least_steps: int) -> int:
    """S_min B: examples above the least that any batch needs, S_min B_c. Source: Ch. 10, `ch10.waste` as corrected
    (D-39)."""
    positive(batch=batch, least_steps=least_steps)
    return least_steps * batch


def efficiency(batch_before: float, batch: int, critical_batch: float) -> float:
    """(B_0 + B_c) / (B + B_c): speedup in steps over growth of the batch. Source: Ch. 10, `ch10.efficiency` as
    corrected (D-41)."""
    positive(batch_before=batch_before, batch=batch, critical_batch=critical_batch)
    return (batch_before + critical_batch) / (batch + critical_batch)


def observed_efficiency(steps_before: float, steps: int, batch_before: int, batch: int) -> float:
    """(S_0 / S) / (B / B_0). Source: Ch. 10, `ch10.efficiency`."""
    positive(steps_before=steps_before, steps=steps, batch_before=batch_before, batch=batch)
    return steps_before / steps / (batch / batch_before)


def critical_batch_from(efficiency: float, batch_before: int, batch: int) -> float:
    """(E B - B_0) / (1 - E): the B_c at which `efficiency` is E; none where E B is below B_0. Source: Ch. 10,
    `ch10.efficiency`."""
    positive(efficiency=efficiency, batch_before=batch_before)
    below(1, efficiency=efficiency)
    above(batch_before / efficiency, batch=batch)
    return (efficiency * batch - batch_before) / (1 - efficiency)


def fitted_steps(batches: ArrayLike, steps: ArrayLike, relative: bool = False) -> tuple[float, float]:
    """(S_min, B_c) of `steps_needed` by least squares, of relative errors if asked. Source: Ch. 10, `ch10.ex1`
    (D-41)."""
    positive(batches=batches, steps=steps)
    B, S = np.asarray(batches, dtype=float), np.asarray(steps, dtype=float)
    weights = 1 / S if relative else np.ones_like(S)
    (least, slope), *_ = np.linalg.lstsq(np.stack([weights, weights / B], axis=1), weights * S)
    return least, slope / least


def warmed_up_learning_rate(step: int, peak: float, warmup_steps: int) -> float:
    """eta min(1, t / T_w). Source: Ch. 10, `ch10.warmup` (Goyal et al. 2017)."""
    not_negative(step=step)
    positive(peak=peak, warmup_steps=warmup_steps)
    return peak * np.minimum(1, step / warmup_steps)


def lars_ratio(weight_norm: float, gradient_norm: float, weight_decay: float = 0, trust: float = 1) -> float:
    """c |w| / (|g| + lambda |w|), norms of one layer's whole arrays; published with c = 0.001. Source: Ch. 10,
    `ch10.lars` (You et al. 2017)."""
    positive(weight_norm=weight_norm, gradient_norm=gradient_norm, trust=trust)
    not_negative(weight_decay=weight_decay)
    return trust * weight_norm / (gradient_norm + weight_decay * weight_norm)


def lamb_ratio(weights: ArrayLike, adam_update: ArrayLike, weight_decay: float = 0) -> float:
    """|w| / |r + lambda w| over the last dim, r = m / (sqrt(v) + eps) with the bias taken out. Source: Ch. 10,
    `ch10.lamb` (You et al. 2019)."""
    finite(weights=weights, adam_update=adam_update)
    not_negative(weight_decay=weight_decay)
    decayed = np.asarray(adam_update) + weight_decay * np.asarray(weights)
    return np.linalg.norm(weights, axis=-1) / np.linalg.norm(decayed, axis=-1)


def micro_steps(batch: int, micro_batch: int, ranks: int = 1) -> float:
    """B / (b P): micro-batches that a rank accumulates an update. Source: Ch. 10, `ch10.accum`."""
    count(ranks=ranks)
    positive(batch=batch, micro_batch=micro_batch)
    return batch / (micro_batch * ranks)


def updates_share(token_shares: ArrayLike, batch_ratios: ArrayLike) -> float:
    """sum s_i / r_i: updates where a share s_i of the tokens comes in batches r_i times the first, over those of the
    first throughout.

    Listed along the last dim. Source: Ch. 10, `ch10.ex6`.
    """
    not_negative(token_shares=token_shares)
    positive(batch_ratios=batch_ratios)
    return np.sum(np.divide(token_shares, batch_ratios), -1)
