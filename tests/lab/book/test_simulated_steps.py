"""Steps of data-parallel ranks, played through: who waits for whom, and what becomes of replicas under the ZeRO code
that the book prints."""

import numpy as np
import pytest

from lab.book.data_parallel import straggler_step_s

RANKS, SIZE, RATE = 4, 8, 0.1


def ring_ends_s(compute_s: list[float], sync_s: float) -> np.ndarray:
    """When each rank of a ring all_reduce ends: a round begins when its own and its left neighbour's round before are
    over."""
    rounds, end_P = 2 * (len(compute_s) - 1), np.array(compute_s)
    for _ in range(rounds):
        end_P = np.maximum(end_P, np.roll(end_P, 1)) + sync_s / rounds
    return end_P


@pytest.mark.parametrize("compute_s", [[0.1, 0.1, 0.15], [0.3, 0.1, 0.2, 0.25, 0.1]])
def test_every_rank_of_a_ring_ends_an_all_reduce_after_the_slowest_has_begun_it(compute_s):
    assert ring_ends_s(compute_s, 0.05) == pytest.approx(straggler_step_s(compute_s, 0.05))


@pytest.fixture
def gradients_PN() -> np.ndarray:
    return np.random.default_rng(20).normal(size=(RANKS, SIZE))


def after_a_step(gradients_PN: np.ndarray, divisor: int, is_gathered: bool) -> np.ndarray:
    """Weights [P, N] of each rank, all zero before: each rank updates its part with the scattered sum, and gathers the
    others or does not."""
    part_PN = np.repeat(np.eye(RANKS, dtype=bool), SIZE // RANKS, axis=1)
    updated_N = -RATE * gradients_PN.sum(0) / divisor
    return np.where(part_PN | is_gathered, updated_N, 0.0)


def test_gathered_parts_of_the_mean_are_the_step_of_one_device(gradients_PN):
    weights_PN = after_a_step(gradients_PN, divisor=RANKS, is_gathered=True)
    assert weights_PN == pytest.approx(np.tile(-RATE * gradients_PN.mean(0), (RANKS, 1)))


def test_without_a_gather_replicas_differ_after_one_step_in_all_parts_but_their_own(gradients_PN):
    weights_PN = after_a_step(gradients_PN, divisor=RANKS, is_gathered=False)
    assert all((weights_PN[0] != weights_PN[rank]).sum() == 2 * SIZE // RANKS for rank in range(1, RANKS))


def test_without_the_division_a_step_is_as_many_times_too_long_as_there_are_ranks(gradients_PN):
    mean, total = (after_a_step(gradients_PN, divisor, is_gathered=True) for divisor in (RANKS, 1))
    assert total == pytest.approx(RANKS * mean)
