"""Part VII: stragglers, stale gradients, and synchronising less often (Ch. 29)."""

from fractions import Fraction

import numpy as np

from lab.book.checks import Exact, count, finite, not_negative, positive, ratio, share
from lab.book.collectives import all_reduce_wire_bytes

EULER = 0.5772156649015329


def exponential_straggler(ranks: int) -> float:
    """H_N = sum of 1 / i: expected time of the slowest of N over that of one, for exponential times. Source: Ch. 29,
    `ch29.straggler`."""
    count(ranks=ranks)
    # Euler and Maclaurin's series at N + 8, and the eight terms back: off by less than 1e-8.
    n = ranks + 8.0
    series = np.log(n) + EULER + 1 / (2 * n) - 1 / (12 * n**2) + 1 / (120 * n**4)
    return series - sum(1 / (n - i) for i in range(8))


def mean_staleness(workers: int) -> int:
    """N - 1 updates between reading weights and applying their gradient, whatever the times. Source: Ch. 29,
    `ch29.async_staleness` (6-8:D-69)."""
    positive(workers=workers)
    return workers - 1


def stale_learning_rate(learning_rate: float, staleness: float, damping: float = 0.5) -> float:
    """lr / (1 + c tau). Source: Ch. 29, `ch29.async_staleness`, `ch29.async_rate`."""
    positive(learning_rate=learning_rate)
    not_negative(staleness=staleness, damping=damping)
    return learning_rate / (1 + damping * staleness)


def stable_learning_rate(staleness: float, curvature: float) -> float:
    """(2 / lambda) sin(pi / (2 (2 tau + 1))): the largest at which descent on a quadratic, tau updates late, does not
    diverge.

    Source: Ch. 29, `ch29.async_rate`; the roots of z^(tau + 1) - z^tau + lr lambda stay inside the unit circle.
    """
    positive(curvature=curvature)
    not_negative(staleness=staleness)
    return 2 / curvature * np.sin(np.pi / (2 * (2 * staleness + 1)))


def local_step_s(compute_s: float, sync_s: float, local_steps: float) -> float:
    """T_c + T_m / h. Source: Ch. 29, `ch29.local_sgd`."""
    positive(compute_s=compute_s, local_steps=local_steps)
    not_negative(sync_s=sync_s)
    return compute_s + sync_s / local_steps


def local_speedup(compute_s: float, sync_s: float, local_steps: int) -> float:
    """(T_c + T_m) / (T_c + T_m / h). Source: Ch. 29, `ch29.local_sgd`."""
    return local_step_s(compute_s, sync_s, 1) / local_step_s(compute_s, sync_s, local_steps)


def least_bound_local_steps(steps: int, variance: float) -> float:
    """(sqrt(T) / (2 sigma^2))^(2/3): where 1 / sqrt(h T) + h sigma^2 / T is least. Source: Ch. 29, `ch29.local_sgd` as
    corrected (6-8:D-71)."""
    positive(steps=steps, variance=variance)
    return (np.sqrt(steps) / (2 * variance)) ** (2 / 3)


def local_cost_s(compute_s: float, sync_s: float, drift_s: float, local_steps: float) -> float:
    """T_c + T_m / h + gamma h, gamma the seconds that one more local step is worth in progress lost. Source: Ch. 29,
    `ch29.sync_interval`."""
    not_negative(drift_s=drift_s)
    return local_step_s(compute_s, sync_s, local_steps) + drift_s * local_steps


def best_local_steps(sync_s: float, drift_s: float) -> float:
    """sqrt(T_m / gamma): where `local_cost_s` is least. Source: Ch. 29, `ch29.sync_interval` as corrected
    (6-8:D-72)."""
    positive(sync_s=sync_s, drift_s=drift_s)
    return np.sqrt(sync_s / drift_s)


def synchronised_bytes(parameters: int, bytes_per_element: int, steps: int, local_steps: int = 1) -> float:
    """Psi e T / h: payload of all averagings of a run of T steps, one every h. Source: Ch. 29, `ch29.diloco`,
    `ch29.exercise_tables`."""
    positive(parameters=parameters, bytes_per_element=bytes_per_element, steps=steps, local_steps=local_steps)
    return parameters * bytes_per_element * (steps / local_steps)


def meeting_wire_bytes(parameters: Exact, replicas: int, bits: int = 32, block: int = 0) -> Fraction:
    """2 (R - 1) / R Psi (b / 8 + 4 / block) bytes that one of R replicas sends for one mean of Psi numbers of b bits,
    each block of which has a float32 scale (0: none): of 32 bits an all-reduce, of fewer an all-to-all and an
    all-gather.

    Source: Ch. 29, `ch29.diloco`; Douillard et al. 2025, arXiv:2501.18512, for four bits.
    """
    positive(parameters=parameters, bits=bits)
    not_negative(block=block)
    of_scale = ratio(4, block) if block else Fraction(0)
    return all_reduce_wire_bytes(parameters * (ratio(bits, 8) + of_scale), replicas)


def mean_bytes_of_step(meeting_bytes: Exact, local_steps: int) -> Fraction:
    """1 / h of a round's bytes. Source: Ch. 29, `ch29.local_sgd`, `ch29.diloco`."""
    not_negative(meeting_bytes=meeting_bytes)
    positive(local_steps=local_steps)
    return ratio(meeting_bytes, local_steps)


def fragment_bytes(meeting_bytes: Exact, fragments: int) -> Fraction:
    """1 / F of them, the most that leaves at once where F equal fragments meet in turn. Source: Douillard et al. 2025,
    arXiv:2501.18512."""
    not_negative(meeting_bytes=meeting_bytes)
    count(fragments=fragments)
    return ratio(meeting_bytes, fragments)


def outer_state_bytes(parameters: int) -> int:
    """8 Psi: the weights after the last meeting and the outer momentum, float32. Source: Ch. 29, `ch29.diloco`
    (Douillard et al. 2023, arXiv:2311.08105)."""
    positive(parameters=parameters)
    return 8 * parameters


def nesterov(
    weight: float, momentum: float, change: float, rate: float = 0.7, decay: float = 0.9
) -> tuple[float, float]:
    """(w - r (m u + d), u) with u = m u + d: DiLoCo's outer step. Source: Ch. 29, `ch29.diloco` as corrected
    (6-8:D-74)."""
    finite(weight=weight, momentum=momentum, change=change)
    share(decay=decay)
    positive(rate=rate)
    momentum = decay * momentum + change
    return weight - rate * (decay * momentum + change), momentum
