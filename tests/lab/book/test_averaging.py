"""Chapter 29 simulated: stragglers, workers without a barrier, and averaging now and then."""

import numpy as np
import pytest

from lab.book.local_sgd import (
    best_local_steps,
    exponential_straggler,
    least_bound_local_steps,
    local_cost_s,
    mean_staleness,
    stable_learning_rate,
    synchronised_bytes,
)
from lab.experiments.ch29_asynchrony import CURVATURES, OPTIMA, averaged, diverges, scaffold, staleness, waits


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(29)


def test_the_slowest_of_1000_exponential_times_is_7_5_times_the_mean(random):
    assert random.exponential(size=(4000, 1000)).max(axis=1).mean() == pytest.approx(
        exponential_straggler(1000), rel=0.01
    )


def test_the_slowest_of_1000_uniform_times_is_twice_the_mean(random):
    assert random.uniform(0, 2, size=(1000, 1000)).max(axis=1).mean() == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize("ranks", [1, 2, 7, 1000])
def test_the_series_gives_harmonic_numbers(ranks):
    assert exponential_straggler(ranks) == pytest.approx(sum(1 / i for i in range(1, ranks + 1)), rel=1e-7)


@pytest.mark.parametrize("spread", ["none", "ten percent", "exponential"])
def test_gradients_of_16_workers_are_15_updates_old_whatever_their_times(spread, random):
    durations = {
        "none": lambda: 1.0,
        "ten percent": lambda: random.uniform(0.9, 1.1),
        "exponential": random.exponential,
    }
    assert staleness(16, durations[spread])[16:].mean() == pytest.approx(mean_staleness(16), rel=0.01)


def test_only_in_the_first_round_are_gradients_half_as_old_and_with_jitter_some_are_older():
    assert staleness(16, lambda: 1.0)[:16].mean() == 7.5
    assert staleness(16, np.random.default_rng(29).exponential).max() > 15


@pytest.mark.parametrize("late", [0, 1, 4, 15])
def test_descent_on_late_gradients_turns_unstable_at_the_stated_rate(late):
    limit = stable_learning_rate(late, curvature=1.0)
    assert (diverges(0.98 * limit, late), diverges(1.02 * limit, late)) == (False, True)


def test_the_printed_bound_is_least_at_63_local_steps_not_at_1000():
    h = np.arange(1, 2000)
    bound = 1 / np.sqrt(h * 1e6) + h / 1e6
    assert h[bound.argmin()] == 63 == round(float(least_bound_local_steps(1e6, 1)))


@pytest.mark.parametrize(("drift_s", "best"), [(1.0, 7.07), (2.0, 5), (0.5, 10)])
def test_a_sweep_finds_the_best_number_of_local_steps(drift_s, best):
    h = np.linspace(1, 50, 4901)
    assert h[local_cost_s(100, 50, drift_s, h).argmin()] == pytest.approx(best, abs=0.01)
    assert best_local_steps(50, drift_s) == pytest.approx(best, abs=0.01)


def test_totals_of_the_table_with_the_drift_are_least_at_7():
    totals = local_cost_s(100, 50, 1.0, np.array([1, 5, 7, 10, 20, 50])) - 100
    assert totals == pytest.approx([51, 15, 14.143, 15, 22.5, 51], rel=1e-4)


def test_averaging_after_every_step_is_synchronous_descent():
    w = 0.0
    for _ in range(20):
        w -= 0.05 * np.mean(CURVATURES * (w - OPTIMA))
    assert averaged(0.05, 1, 20) == pytest.approx(w)


def test_averaging_unlike_workers_seldom_settles_off_the_optimum_and_scaffold_on_it():
    assert averaged(0.05, 1, 1000) == pytest.approx(0.8)
    # 20 steps go the shares 1 - 0.95^20 and 1 - 0.8^20 of the way to 0 and to 1.
    assert averaged(0.05, 20, 1000) == pytest.approx(0.98847 / (0.64151 + 0.98847), rel=1e-4)
    assert scaffold(0.05, 20, 1000) == pytest.approx(0.8)


def test_a_worker_that_waits_for_its_lag_to_shrink_waits_for_every_update_by_others():
    assert [waits(4, updates) for updates in (1, 10, 1000)] == [1, 10, 1000]


def test_235146_parameters_are_synchronised_1520_times_in_1430_megabytes():
    shapes = [(784, 256), (256,), (256, 128), (128,), (128, 10), (10,)]
    assert sum(int(np.prod(shape)) for shape in shapes) == 235_146
    assert synchronised_bytes(235_146, 4, 1520) == pytest.approx(1430e6, rel=1e-3)
    assert synchronised_bytes(235_146, 4, 1680, 4 * 10) == pytest.approx(39.5e6, rel=1e-3)
