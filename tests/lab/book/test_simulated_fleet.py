"""The second source's laws of fleets, optimisation and failure against simulations that know none of them."""

import numpy as np
import pytest

from lab.book.availability import (
    chance_of_any,
    false_alarms_a_day,
    recovery_s,
    unavailability,
)
from lab.book.convergence import simple_noise_scale, synchronous_bound
from lab.book.fleet import fleet_step_s, largest_overlap_s
from lab.book.orchestration import many_server_wait, one_server_wait


@pytest.fixture
def random():
    return np.random.default_rng(7)


def simulated_step(forward_s, backward_s, sync_s) -> float:
    """Ends when the last of the layers, each synchronised on one link once its backward is done."""
    clock, link = forward_s, 0.0
    for compute, sync in zip(backward_s, sync_s, strict=True):
        clock += compute
        link = max(link, clock) + sync
    return link


def test_of_1000_random_steps_none_hides_more_than_its_communication_or_its_backward(random):
    hidden, bound = [], []
    for layers in random.integers(1, 40, 1000):
        backward, sync = random.exponential(1, layers), random.exponential(random.choice([0.1, 1, 10]), layers)
        forward = backward.sum() / 2
        hidden.append(forward + backward.sum() + sync.sum() - simulated_step(forward, backward, sync))
        bound.append(largest_overlap_s(1.5 * backward.sum(), sync.sum()))
    assert (np.array(hidden) <= np.array(bound) + 1e-9).all()
    assert np.max(np.array(hidden) / bound) > 0.95


def test_the_sources_own_case_hides_more_than_one_rank_computes():
    """ml.10: 10.5 of 13.99 s behind 2.07 s."""
    with pytest.raises(ValueError, match="overlap_s=10.49"):
        fleet_step_s(1024 * 2.07, 1024, 13.99, 0.0, 0.75 * 13.99)


def test_100_ranks_that_each_straggle_once_in_100_steps_leave_37_percent_of_steps_clean(random):
    straggles = random.random((20_000, 100)) < 0.01
    assert straggles.any(1).mean() == pytest.approx(chance_of_any(0.01, 100), rel=0.02)


def waits(arrivals: np.ndarray, services: np.ndarray) -> np.ndarray:
    """Of a first-come queue with one place (Lindley 1952), as the height of a walk above its lowest point so far."""
    walk = np.concatenate([[0], np.cumsum(services[:-1] - arrivals[1:])])
    return walk - np.minimum.accumulate(walk)


@pytest.mark.parametrize(("sigma", "variation"), [(np.sqrt(np.log(2)), 1.0), (0.5, np.sqrt(np.expm1(0.25)))])
def test_jobs_of_any_spread_wait_as_long_as_pollaczek_and_khinchine_say(sigma, variation, random):
    services = random.lognormal(-(sigma**2) / 2, sigma, 2_000_000)
    found = waits(random.exponential(1 / 0.8, services.size), services).mean()
    assert found == pytest.approx(one_server_wait(0.8, variation), rel=0.06)


def test_with_64_places_jobs_hardly_wait_at_80_percent_load():
    assert many_server_wait(0.8, 64, 3) < 0.05 < 20 == pytest.approx(one_server_wait(0.8, 3))


def test_eight_places_wait_as_sakasegawa_says(random):
    free, clock, waited = np.zeros(8), 0.0, []
    for gap, service in zip(random.exponential(1 / (8 * 0.8), 200_000), random.exponential(1, 200_000), strict=True):
        clock += gap
        place = free.argmin()
        start = max(clock, free[place])
        waited.append(start - clock)
        free[place] = start + service
    assert np.mean(waited) == pytest.approx(many_server_wait(0.8, 8, 1), rel=0.1)


@pytest.mark.parametrize(("copies", "one", "shared_share"), [(3, 0.01, 0.1), (2, 0.2, 0.5)])
def test_copies_fail_together_as_often_as_their_shared_cause_says(copies, one, shared_share, random):
    shared, own = (
        random.random(2_000_000) < shared_share * one,
        random.random((2_000_000, copies)) < (1 - shared_share) * one,
    )
    # One cause and another may meet, which the closed form counts twice.
    found = (shared | own.all(1)).mean() + (shared & own.all(1)).mean()
    assert found == pytest.approx(unavailability(copies, one, shared_share), rel=0.03 if one > 0.1 else 0.06)


def test_a_shared_cause_of_a_tenth_makes_three_copies_worth_three_nines_not_six():
    assert unavailability(3, 0.01, 0.1) > 1000 * unavailability(3, 0.01, 0.0)


def test_healthy_heartbeats_are_three_deviations_late_once_in_741(random):
    late = (random.standard_normal(4_000_000) > 3).mean()
    assert late == pytest.approx(false_alarms_a_day(1, 86_400, 3), rel=0.05)


def test_half_an_interval_is_done_again_after_a_failure(random):
    times = np.cumsum(random.exponential(14_897, 200_000))
    assert (times % 914).mean() == pytest.approx(recovery_s(0, 0, 0, 914), rel=0.01)


def descended(learning_rate: float, steps: int, noise: float, random) -> float:
    """Mean of x^2 / 2 over the points of stochastic descent from 1; smoothness 1, optimum 0."""
    x, seen = 1.0, []
    for step_noise in random.normal(0, noise, steps):
        seen.append(x)
        x -= learning_rate * (x + step_noise)
    return float(np.mean(np.square(seen)) / 2)


@pytest.mark.parametrize("learning_rate", [1e-4, 1e-2, 0.1, 1.0])
def test_descent_stays_within_the_corrected_bound(learning_rate, random):
    excess = np.mean([descended(learning_rate, 1000, 0.3, random) for _ in range(20)])
    assert excess <= synchronous_bound(1.0, 1000, learning_rate, 1.0, 0.09, 1, 1)


def test_descent_at_a_small_rate_breaks_the_printed_bound_which_lacks_the_rate(random):
    printed = 1 / (2 * 1000) + 1e-4 * 0.09 / 2
    assert descended(1e-4, 1000, 0.3, random) > 400 * printed


def test_gradient_norms_of_two_batches_give_the_noise_scale(random):
    gradient, deviation = np.full(50, 0.2), 3.0

    def mean_norm2(batch: int) -> float:
        return float(np.mean(np.sum((gradient + random.normal(0, deviation / np.sqrt(batch), (20_000, 50))) ** 2, 1)))

    found = simple_noise_scale(mean_norm2(8), mean_norm2(64), 8, 64)
    assert found == pytest.approx(50 * deviation**2 / (gradient @ gradient), rel=0.1)


def test_rounding_with_its_error_fed_back_loses_nothing_of_the_sum():
    sent, error = [], 0.0
    for gradient in (0.4, 0.3, 0.2, 0.4, 0.3):
        sent.append(round(gradient + error))
        error += gradient - sent[-1]
    assert sent == [0, 1, 0, 0, 1]
    assert error == pytest.approx(1.6 - 2)
