from fractions import Fraction

import pytest

from lab.book.collectives import (
    all_gather_wire_bytes,
    all_reduce_wire_bytes,
    best_slices,
    bidirectional_ring_all_reduce_s,
    binomial_broadcast_s,
    binomial_scatter_s,
    blocks_broadcast_s,
    bruck_all_to_all_s,
    chain_broadcast_s,
    doubling_all_reduce_s,
    halving_doubling_all_reduce_s,
    levels_all_reduce_s,
    message_s,
    reduce_scatter_wire_bytes,
    ring_all_gather_s,
    ring_all_reduce_s,
    ring_balance_bytes,
    ring_tree_crossover_bytes,
    split_ring_all_reduce_s,
    torus_all_reduce_s,
    tree_all_reduce_s,
)


def test_all_reduce_of_64_mib_over_8_ranks_sends_112_mib():
    assert all_reduce_wire_bytes(67_108_864, 8) == 117_440_512


def test_gather_and_scatter_of_64_mib_over_8_ranks_send_56_mib_each():
    assert all_gather_wire_bytes(67_108_864, 8) == reduce_scatter_wire_bytes(67_108_864, 8) == 58_720_256


def test_one_rank_sends_nothing():
    assert all_reduce_wire_bytes(4096, 1) == 0


def test_no_ranks_is_refused_by_name():
    with pytest.raises(ValueError, match="ranks=0"):
        all_reduce_wire_bytes(4096, 0)


US = 1e-6


def test_a_ring_of_256_takes_399_46_ms_for_10_gb():
    assert ring_all_reduce_s(10**10, 256, 2 * US, 50e9) == pytest.approx(399.46e-3, rel=1e-5)


def test_one_fused_all_reduce_of_1_gb_beats_1000_small_ones_7_353_times():
    fused, apart = ring_all_reduce_s(10**9, 64, 2 * US, 50e9), 1000 * ring_all_reduce_s(10**6, 64, 2 * US, 50e9)
    assert (fused, apart, apart / fused) == pytest.approx((39.63e-3, 291.375e-3, 7.353), rel=1e-4)


def test_an_all_gather_of_half_an_all_reduce():
    """Ch. 13, exercise 1: 16 ranks, 100 MB, 10 us, 100 GB/s."""
    assert ring_all_gather_s(10**8, 16, 10 * US, 100e9) == pytest.approx(1.0875e-3)
    assert ring_all_reduce_s(10**8, 16, 10 * US, 100e9) == pytest.approx(2.175e-3)


@pytest.mark.parametrize(
    ("payload", "ring_us", "tree_us", "halving_us"),
    [
        (10**5, 127.97, 24.0, 13.97),
        (10**6, 145.7, 132.0, 31.7),
        (10**7, 322.9, 1212, 208.9),
        (10**8, 2094.8, 12012, 1980.8),
    ],
)
def test_halving_doubling_beats_ring_and_tree_of_64_at_every_size(payload, ring_us, tree_us, halving_us):
    """Ch. 11, exercise 6."""
    times = [
        f(payload, 64, US, 100e9) / US for f in (ring_all_reduce_s, tree_all_reduce_s, halving_doubling_all_reduce_s)
    ]
    assert times == pytest.approx([ring_us, tree_us, halving_us], rel=2e-3)


@pytest.mark.parametrize(
    ("ranks", "alpha_s", "rate", "crossover"),
    [(64, US, 100e9, 1.1364e6), (256, 5 * US, 200e9, 35.27e6), (8, 5 * US, 50e9, 470_588)],
)
def test_ring_and_tree_are_equal_at_the_crossover(ranks, alpha_s, rate, crossover):
    found = ring_tree_crossover_bytes(ranks, alpha_s, rate)
    assert found == pytest.approx(crossover, rel=1e-3)
    assert ring_all_reduce_s(Fraction(found), ranks, alpha_s, rate) == pytest.approx(
        tree_all_reduce_s(found, ranks, alpha_s, rate)
    )


def test_the_terms_of_a_ring_of_64_are_equal_at_6_4_mb():
    assert ring_balance_bytes(64, 2 * US, 50e9) == pytest.approx(6.4e6)


def test_doubling_needs_half_the_rounds_of_a_tree_at_8_ranks():
    assert tree_all_reduce_s(4096, 8, US, 50e9) == 2 * doubling_all_reduce_s(4096, 8, US, 50e9)


@pytest.mark.parametrize(("ranks", "rounds"), [(2, 1), (3, 3), (4, 2), (5, 4), (6, 4), (8, 3), (9, 5)])
def test_folding_adds_two_rounds_unless_the_ranks_are_a_power_of_two(ranks, rounds):
    assert doubling_all_reduce_s(10**6, ranks, US, 1e12) == pytest.approx(rounds * 2 * US)


@pytest.mark.parametrize(("ranks", "steps"), [(4, 4), (5, 4), (8, 8), (9, 8)])
def test_blocks_both_ways_take_p_steps_for_even_and_p_minus_1_for_odd_p(ranks, steps):
    split, both = (f(8 * ranks, ranks, 1.0, 1e30) for f in (split_ring_all_reduce_s, bidirectional_ring_all_reduce_s))
    assert (split, both) == pytest.approx((2 * (ranks - 1), steps))


def test_a_chain_broadcasts_1_gb_to_64_ranks_in_25_3_ms_and_a_binomial_tree_in_120():
    link = (64, 5 * US, 50e9)
    slices = round(best_slices(10**9, *link))
    times = (
        binomial_broadcast_s(10**9, *link),
        blocks_broadcast_s(10**9, *link),
        chain_broadcast_s(10**9, *link, slices),
    )
    assert [t * 1e3 for t in times] == pytest.approx([120.0, 39.7, 25.3], abs=0.05)


def test_a_chain_of_two_ranks_is_one_hop_so_that_slices_save_nothing():
    assert chain_broadcast_s(800, 2, 1.0, 100.0, 4) == 4 * (1 + 2)
    assert best_slices(800, 2, 1.0, 100.0) == 0
    for function, slices in (chain_broadcast_s, (4,)), (best_slices, ()):
        with pytest.raises(ValueError, match="ranks=1"):
            function(800, 1, 1.0, 100.0, *slices)


def test_binomial_scatter_of_8_takes_3_rounds_and_bruck_as_many():
    assert binomial_scatter_s(8, 8, 1.0, 1e30) == bruck_all_to_all_s(8, 8, 1.0, 1e30) == 3
    assert bruck_all_to_all_s(16, 8, 0.0, 1.0) == 3 * 8


@pytest.mark.parametrize(
    ("payload", "inside", "across", "hierarchical_ms", "flat_ms"),
    [
        (10**9, (8, US, 600e9), (8, 5 * US, 100e9), 5.188, 20.32),
        (2 * 10**9, (8, US, 300e9), (8, 5 * US, 50e9), 20.50, 79.38),
        (10**8, (4, 10 * US, 100e9), (4, 10 * US, 100e9), 1.995, 2.175),
        (10**10, (8, US, 600e9), (8, 5 * US, 50e9), 73.00, 394.38),
    ],
)
def test_two_levels_against_one_ring_over_the_slow_link(payload, inside, across, hierarchical_ms, flat_ms):
    flat = ring_all_reduce_s(payload, inside[0] * across[0], *across[1:])
    assert [levels_all_reduce_s(payload, [inside, across]) * 1e3, flat * 1e3] == pytest.approx(
        [hierarchical_ms, flat_ms], rel=1e-3
    )


def test_three_levels_send_what_one_ring_does():
    """`ch12.volume_identity`: without latencies and on equal links levels change nothing."""
    levels = [(2, 0.0, 1e9), (3, 0.0, 1e9), (4, 0.0, 1e9)]
    assert levels_all_reduce_s(24_000, levels) == pytest.approx(ring_all_reduce_s(24_000, 24, 0.0, 1e9))


def test_a_torus_of_4_by_4_halves_the_bytes_on_each_link():
    assert torus_all_reduce_s(1600, 4, 2, 0.0, 1.0) == ring_all_reduce_s(1600, 16, 0.0, 1.0) / 2
    assert torus_all_reduce_s(1600, 4, 2, 1.0, 1e30) == pytest.approx(12)


def test_a_message_of_nothing_is_refused_by_name():
    with pytest.raises(ValueError, match="payload_bytes=0"):
        message_s(0, US, 1e9)
