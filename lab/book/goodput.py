"""Where the time of a long training goes (Ch. 26): exact shares of one tier of checkpoints and of two, and the wait for
the slowest rank. Failures are independent and exponential, and may strike a restart as well."""

from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr

from lab.book.checks import count, finite, not_negative, positive
from lab.book.reliability import daly_interval_s, work_lost_s

_DEVIATIONS = np.linspace(-12, 12, 2401)
"""Beyond these no normal number of any sample is found."""


class TimeShares(NamedTuple):
    """Of all time: `lost` is work that is done again, with its saves, and what a failure leaves of it."""

    useful: float
    saving: float
    lost: float
    detecting: float
    restarting: float


def goodput(interval_s: float, save_s: float, mtbf_s: float, restart_s: float, write_s: float = 0) -> float:
    """I / (M e^((R + W) / M) (e^((I + delta) / M) - 1)): the share of time in useful work.

    Exact for saves that block delta seconds after every I of work and count W <= I seconds after that, and for restarts
    of R seconds (detection with it) that begin anew at a failure.

    Source: Ch. 26, `law.goodput`; with W = 0 Daly 2006, equation 20.
    """
    positive(interval_s=interval_s, mtbf_s=mtbf_s)
    not_negative(save_s=save_s, restart_s=restart_s, write_s=write_s)
    with np.errstate(over="ignore"):
        segment_s = np.exp((restart_s + write_s) / mtbf_s) * mtbf_s * np.expm1((interval_s + save_s) / mtbf_s)
    return interval_s / segment_s


def time_shares(
    interval_s: float, save_s: float, mtbf_s: float, detect_s: float, restart_s: float, write_s: float = 0
) -> TimeShares:
    """The same with the rest of the time, exactly: recovery of R seconds takes 1 - e^(-R / M) of it, whatever is saved.

    Source: Ch. 26, `law.goodput`.
    """
    not_negative(detect_s=detect_s, restart_s=restart_s)
    useful = goodput(interval_s, save_s, mtbf_s, detect_s + restart_s, write_s)
    saving = useful * save_s / interval_s
    detecting = -np.expm1(-detect_s / mtbf_s)
    restarting = np.exp(-detect_s / mtbf_s) - np.exp(-(detect_s + restart_s) / mtbf_s)
    return TimeShares(useful, saving, 1 - useful - saving - detecting - restarting, detecting, restarting)


def tiered_overhead(interval_s: float, save_s: float, mtbf_s: float, restart_s: float, write_s: float = 0) -> float:
    """delta / I + (I / 2 + W + R) / M: what one tier costs that mends the failures M apart, first order; those of
    several tiers add up, each with the failures that it alone mends.

    Source: Ch. 26, `law.tiers`.
    """
    positive(interval_s=interval_s, mtbf_s=mtbf_s)
    not_negative(save_s=save_s, restart_s=restart_s)
    return save_s / interval_s + (work_lost_s(interval_s, write_s) + restart_s) / mtbf_s


def tiered_goodput(
    interval_s: float,
    per_store: int,
    near_save_s: float,
    store_save_s: float,
    near_mtbf_s: float,
    store_mtbf_s: float,
    near_restart_s: float,
    store_restart_s: float,
) -> float:
    """The share of time in useful work with two tiers, exactly: every I seconds a copy in a neighbour's memory, with
    every n-th also one in the store.

    Failures `near_mtbf_s` apart go back to the last copy, those `store_mtbf_s` apart to the last one in the store.
    Expected times E_k of the rest of a period from its k-th interval on, S_k of a restart from the neighbour there and
    E_0 + (e^(R / M) - 1) M of one from the store are a chain, solved backwards as a_k + b_k E_0.

    Source: Ch. 26, `law.tiers`.
    """
    finite(per_store=per_store)
    count(per_store=per_store)
    positive(interval_s=interval_s, near_mtbf_s=near_mtbf_s, store_mtbf_s=store_mtbf_s)
    not_negative(near_save_s=near_save_s, store_save_s=store_save_s)
    not_negative(near_restart_s=near_restart_s, store_restart_s=store_restart_s)
    rate = 1 / near_mtbf_s + 1 / store_mtbf_s
    to_near, to_store = 1 / near_mtbf_s / rate, 1 / store_mtbf_s / rate
    # A restart from the store takes `again` longer than what comes after it.
    again = np.expm1(rate * store_restart_s) / rate
    restarts = np.exp(-rate * near_restart_s)
    # S = s0 + s1 E + s2 E_0: until the restart from the neighbour ends without a failure.
    fails = 1 - restarts
    s0 = (fails / rate + fails * to_store * again) / (1 - fails * to_near)
    s1, s2 = restarts / (1 - fails * to_near), fails * to_store / (1 - fails * to_near)
    a, b = 0.0, 0.0
    for k in range(int(per_store)):
        length = interval_s + near_save_s + (store_save_s if k == 0 else 0)
        lives = np.exp(-rate * length)
        dies = 1 - lives
        # E = m + lives E_next + dies (to_near S + to_store (again + E_0)), and S has E in it.
        kept = 1 - dies * to_near * s1
        a, b = (
            (dies / rate + lives * a + dies * (to_near * s0 + to_store * again)) / kept,
            (lives * b + dies * (to_near * s2 + to_store)) / kept,
        )
    return per_store * interval_s * (1 - b) / a


def best_interval_s(save_s: float, mtbf_s: float, write_s: float = 0) -> float:
    """Daly's interval, or W where that is longer: a save cannot begin before the one before it is written.

    Source: Ch. 26, `ch26.young_daly`, `ch26.async`.
    """
    not_negative(write_s=write_s)
    return np.maximum(daly_interval_s(save_s, mtbf_s), write_s)


def saves_per_store(interval_s: float, store_save_s: float, store_mtbf_s: float, write_s: float = 0) -> float:
    """max(sqrt(2 delta M) of the store, W) / I, to the next whole number: copies in a neighbour's memory until one
    goes to the store.

    Source: Ch. 26, `law.tiers`.
    """
    positive(interval_s=interval_s, store_mtbf_s=store_mtbf_s)
    not_negative(store_save_s=store_save_s, write_s=write_s)
    store_s = np.maximum(np.sqrt(2 * store_save_s * store_mtbf_s), write_s)
    return np.maximum(1, np.ceil(store_s / interval_s))


def both_copies_lost_s(failure_mtbf_s: float, neighbour_mtbf_s: float, window_s: float) -> float:
    """M m / W: seconds between failures whose copy is lost as well, since the neighbour that has it, which alone fails
    every m seconds, fails within W seconds. First order.

    Source: Ch. 26, `law.tiers`.
    """
    positive(failure_mtbf_s=failure_mtbf_s, neighbour_mtbf_s=neighbour_mtbf_s, window_s=window_s)
    return failure_mtbf_s * neighbour_mtbf_s / window_s


def slowest_of(ranks: int) -> float:
    """Standard deviations by which the slowest of N ranks is expected to be above the mean, their times normal: the
    integral of Phi - Phi^N.

    Source: Ch. 26, `law.slowest`.
    """
    finite(ranks=ranks)
    count(ranks=ranks)
    logs = log_ndtr(_DEVIATIONS)
    return float(np.trapezoid(np.exp(logs) - np.exp(ranks * logs), _DEVIATIONS))


def straggling(ranks: int, variation: float) -> float:
    """1 / (1 + v E): the share of time in which ranks work that wait for the slowest of them in every step, v the
    standard deviation of a rank's time over its mean.

    Source: Ch. 26, `law.slowest`.
    """
    not_negative(variation=variation)
    return 1 / (1 + variation * slowest_of(ranks))
