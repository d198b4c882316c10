"""Shares of a training's time by formula, against trainings that fail event by event."""

import numpy as np
import pytest

from lab.book.goodput import (
    best_interval_s,
    both_copies_lost_s,
    goodput,
    saves_per_store,
    slowest_of,
    straggling,
    tiered_goodput,
    tiered_overhead,
    time_shares,
)
from lab.book.reliability import daly_interval_s, failures_per_h
from lab.resilience.simulation import Setting, simulated

RUNS = 4000


def standard_errors(found: np.ndarray, expected: float) -> float:
    """How many of them the mean of a sample lies off."""
    return float(abs(found.mean() - expected) * np.sqrt(found.size) / found.std())


@pytest.mark.parametrize(
    ("interval", "save", "mtbf", "detect", "restart", "write"),
    [
        (657, 30, 7200, 0, 0, 0),
        (657, 30, 7200, 100, 200, 60),
        (300, 60, 900, 50, 30, 300),
        (2000, 10, 20_000, 100, 600, 500),
        (1000, 5, 1000, 10, 0, 900),
    ],
)
def test_the_shares_of_time_are_those_of_simulated_trainings(interval, save, mtbf, detect, restart, write):
    setting = Setting(
        interval, store_save_s=save, write_s=write, store_mtbf_s=mtbf, detect_s=detect, store_restart_s=restart
    )
    found, shares = (
        simulated(setting, periods=50, runs=RUNS, seed=26),
        time_shares(interval, save, mtbf, detect, restart, write),
    )
    total = 50 * interval / shares.useful
    assert standard_errors(found.total, total) < 3
    assert standard_errors(found.lost, shares.lost * total) < 3
    for seconds, share in ((found.detecting, shares.detecting), (found.restarting, shares.restarting)):
        assert (share == 0 and seconds.max() < 1e-6) or standard_errors(seconds, share * total) < 3
    assert sum(shares) == pytest.approx(1) and found.saving.mean() == pytest.approx(shares.saving * total)


@pytest.mark.parametrize(
    ("interval", "per_store", "saves", "mtbfs", "restarts"),
    [
        (600, 3, (5, 30), (7200, 70_000), (100, 300)),
        (300, 10, (5, 60), (3000, 9000), (100, 600)),
        (100, 4, (10, 50), (500, 1500), (60, 200)),
        (900, 1, (20, 20), (4000, 4000), (0, 500)),
        (200, 20, (1, 100), (2000, 50_000), (250, 0)),
    ],
)
def test_two_tiers_give_the_goodput_of_simulated_trainings(interval, per_store, saves, mtbfs, restarts):
    setting = Setting(
        interval,
        per_store,
        *saves,
        near_mtbf_s=mtbfs[0],
        store_mtbf_s=mtbfs[1],
        near_restart_s=restarts[0],
        store_restart_s=restarts[1],
    )
    expected = tiered_goodput(interval, per_store, *saves, *mtbfs, *restarts)
    found = simulated(setting, periods=20, runs=RUNS, seed=4)
    assert standard_errors(found.total, 20 * per_store * interval / expected) < 3


def test_one_tier_alone_is_a_limit_of_two():
    assert tiered_goodput(600, 1, 30, 0, 7200, 1e14, 100, 9) == pytest.approx(goodput(600, 30, 7200, 100))
    assert tiered_goodput(600, 5, 0, 30, 1e14, 7200, 9, 100) == pytest.approx(goodput(3000, 30, 7200, 100))


def test_the_first_order_of_two_tiers_is_what_rare_failures_cost():
    exact = 1 / tiered_goodput(600, 3, 5, 30, 7.2e5, 7e6, 100, 300) - 1
    first = tiered_overhead(600, 5, 7.2e5, 100) + tiered_overhead(1800, 30, 7e6, 300)
    assert exact == pytest.approx(first, rel=0.01)


@pytest.mark.parametrize("save", [5.0, 60.0, 300.0])
def test_no_interval_beats_daly_s_by_a_thousandth(save):
    best = goodput(best_interval_s(save, 3600), save, 3600, 120)
    assert goodput(np.geomspace(10, 10_000, 500), save, 3600, 120).max() < 1.001 * best


def test_a_save_waits_until_the_one_before_is_written():
    assert best_interval_s(5, 3600, 40) == daly_interval_s(5, 3600) and best_interval_s(5, 3600, 400) == 400
    assert saves_per_store(200, 20, 360_000) == 19 and saves_per_store(200, 0, 360_000, 3900) == 20


def test_one_failure_in_a_hundred_finds_the_neighbour_gone_that_fails_within_a_hundredth_of_its_time():
    random = np.random.default_rng(1)
    failures = random.exponential(60, (400_000,)) < 0.6
    assert failures.mean() == pytest.approx(1 / both_copies_lost_s(1, 60, 0.6), rel=0.05)


@pytest.mark.parametrize("ranks", [2, 8, 300])
def test_a_step_waits_for_the_slowest_of_drawn_ranks(ranks):
    steps = np.random.default_rng(2).normal(1, 0.05, (20_000, ranks)).max(axis=1)
    assert standard_errors(steps, 1 + 0.05 * slowest_of(ranks)) < 3
    assert straggling(ranks, 0.05) == pytest.approx(1 / steps.mean(), rel=1e-3)


def test_llama_3_was_interrupted_419_times_in_54_days():
    # arXiv:2407.21783, section 3.3.4: unexpected interruptions of 16,384 GPUs.
    assert failures_per_h(16_384, 50_677) * 54 * 24 == pytest.approx(419, rel=1e-3)
