"""Chapter 26 simulated: exponential failures, saves that take time, and what a restart brings back."""

import numpy as np
import pytest

from lab.book.reliability import (
    checkpoint_overhead,
    daly_interval_s,
    failures_per_h,
    restart_from_zero_s,
    shards_read,
    work_lost_s,
    young_interval_s,
)


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(26)


def elapsed_s(work_s: float, mtbf_s: float, runs: int, random: np.random.Generator) -> np.ndarray:
    """How long each run takes to survive `work_s` seconds without a failure, starting anew after each."""
    elapsed, unfinished = np.zeros(runs), np.arange(runs)
    while unfinished.size:
        lives = random.exponential(mtbf_s, unfinished.size)
        elapsed[unfinished] += np.minimum(lives, work_s)
        unfinished = unfinished[lives < work_s]
    return elapsed


@pytest.mark.parametrize("work", [0.5, 1.0, 2.0])
def test_work_as_long_as_the_mtbf_takes_1_718_times_as_long(work, random):
    assert elapsed_s(work, 1.0, 200_000, random).mean() == pytest.approx(restart_from_zero_s(work, 1.0), rel=0.02)


def test_the_first_failure_of_two_kinds_comes_at_the_sum_of_their_rates(random):
    first = np.minimum(
        random.exponential(20_000, (20_000, 100)).min(axis=1), random.exponential(10_000, (20_000, 13)).min(axis=1)
    )
    assert 1 / first.mean() == pytest.approx(failures_per_h([100, 13], [20_000, 10_000]), rel=0.02)


def waste(interval_s: float, save_s: float, mtbf_s: float, random: np.random.Generator) -> float:
    """Share of time beyond useful work when every interval of work is followed by a save."""
    return elapsed_s(interval_s + save_s, mtbf_s, 400_000, random).mean() / interval_s - 1


def test_saving_every_657_s_wastes_less_than_every_200_or_2000_s(random):
    wasted = {interval: waste(interval, 30, 7200, random) for interval in (200, 657, 2000)}
    assert wasted[657] < 0.11 < 0.16 < min(wasted[200], wasted[2000])
    # First order in I / M: off by less than its square.
    assert wasted[657] == pytest.approx(checkpoint_overhead(657, 30, 7200), rel=0.1)


def test_with_slow_saves_daly_s_interval_wastes_less_than_young_s(random):
    save_s, mtbf_s = 300, 900
    young, daly = (
        waste(float(interval(save_s, mtbf_s)), save_s, mtbf_s, random)
        for interval in (young_interval_s, daly_interval_s)
    )
    assert daly < 0.97 * young


@pytest.mark.parametrize("write_s", [0, 200, 600])
def test_a_failure_costs_half_an_interval_and_the_writing_of_the_snapshot(write_s, random):
    interval = 600
    failed_at = random.uniform(10 * interval, 1000 * interval, 400_000)
    durable = np.floor((failed_at - write_s) / interval) * interval
    assert (failed_at - durable).mean() == pytest.approx(work_lost_s(interval, write_s), rel=0.01)


@pytest.mark.parametrize(("before", "now"), [(8, 4), (4, 8), (8, 8), (2, 8), (6, 2)])
def test_shards_merged_or_split_are_those_of_the_whole(before, now):
    whole = np.arange(24)
    old = np.split(whole, before)
    for rank, wanted in enumerate(np.split(whole, now)):
        read = np.concatenate([old[source] for source in shards_read(rank, before, now)])
        assert set(wanted) <= set(read) and read.size == max(wanted.size, 24 // before)


def test_8_shards_do_not_become_3():
    with pytest.raises(ValueError, match="ranks_now=3"):
        shards_read(0, 8, 3)


def test_deltas_to_one_base_add_up_to_too_much_and_the_last_alone_is_right():
    base, states = np.zeros(3), [np.array([1.0, 0, 0]), np.array([1.0, 2, 0])]
    deltas = [state - base for state in states]
    assert (base + deltas[-1] == states[-1]).all()
    assert (base + sum(deltas)).tolist() == [2, 2, 0]


def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit_only_with_moments_and_random_state(random):
    def trained(steps, weights, moment, generator):
        for _ in range(steps):
            moment = 0.9 * moment + 0.1 * (weights + generator.normal(size=3))
            weights = weights - 0.1 * moment
        return weights, moment

    def generator_at(state=None):
        generator = np.random.default_rng(1)
        if state:
            generator.bit_generator.state = state
        return generator

    running = generator_at()
    half = trained(5, np.ones(3), np.zeros(3), running)
    saved = running.bit_generator.state
    whole, _ = trained(5, *half, running)
    assert (trained(5, *half, generator_at(saved))[0] == whole).all()
    assert (trained(5, *half, generator_at())[0] != whole).all()
    assert (trained(5, half[0], np.zeros(3), generator_at(saved))[0] != whole).all()
