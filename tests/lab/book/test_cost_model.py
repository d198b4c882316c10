"""Numbers of chapters 13 and 13a that take several formulas."""

import pytest

from lab.book.collectives import all_reduce_wire_bytes, ring_all_reduce_s
from lab.book.cost_model import (
    bus_bytes_per_s,
    gathered_bus_bytes_per_s,
    ring_alpha_s,
    stage_boundary_s,
)
from lab.book.topology import (
    flat_rings_all_reduce_s,
    fullest_edge_s,
    ring_across_bytes,
    ring_over_two_level_across,
    two_level_across_bytes,
    two_level_all_reduce_s,
    two_level_wire_ratio,
)

INSIDE, ACROSS = (1e-6, 300e9), (5e-6, 50e9)


def test_70b_at_8_by_8_by_8_communicates_for_221_ms_not_757():
    tensor = 320 * ring_all_reduce_s(64_000_000, 8, *INSIDE)
    data = ring_all_reduce_s(70_000_000_000 * 2 // 64, 8, *ACROSS)
    pipe = 8 * stage_boundary_s(64_000_000, *ACROSS)
    assert [tensor * 1e3, data * 1e3, pipe * 1e3] == pytest.approx([123.9, 76.6, 20.56], rel=1e-3)
    assert (tensor + data + pipe) * 1e3 == pytest.approx(221, rel=1e-3)


def test_13b_spends_21_times_as_long_in_tensor_as_in_data_parallelism():
    tensor = 160 * ring_all_reduce_s(61 * 4096 * 5120 * 2, 8, *INSIDE)
    data = ring_all_reduce_s(3_250_000_000, 8, *ACROSS)
    assert (tensor * 1e3, data * 1e3, tensor / data) == pytest.approx((2392, 113.8, 21.0), rel=2e-3)


@pytest.mark.parametrize(("ranks", "hosts", "ring", "levels"), [(2, 2, 3, 2), (8, 8, 15.75, 14)])
def test_a_ring_moves_15_75_buffers_between_8_hosts_of_8_and_levels_14(ranks, hosts, ring, levels):
    assert hosts * ring_across_bytes(1, ranks, hosts) == ring
    assert hosts * two_level_across_bytes(1, ranks, hosts) == levels
    assert ring_over_two_level_across(ranks, hosts) == pytest.approx(ring / levels)


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 3), (8, 16), (5, 7)])
def test_levels_send_what_one_ring_does_whatever_the_sizes(ranks, hosts):
    assert two_level_wire_ratio(ranks, hosts) == all_reduce_wire_bytes(1, ranks * hosts)


def test_rings_on_all_cards_beat_two_levels_on_them():
    case = (2_000_000_000, 8, 8, *INSIDE, *ACROSS)
    assert flat_rings_all_reduce_s(*case) * 1e3 == pytest.approx(12.11, rel=1e-3)
    assert (
        flat_rings_all_reduce_s(*case) < two_level_all_reduce_s(*case) < ring_all_reduce_s(2_000_000_000, 64, *ACROSS)
    )


def test_a_ring_of_8_at_its_link_s_rate_has_that_as_its_bus_bandwidth():
    seconds = ring_all_reduce_s(10**9, 8, 0, 50e9)
    assert bus_bytes_per_s(10**9, 8, seconds) == pytest.approx(50e9)
    assert gathered_bus_bytes_per_s(10**9, 8, seconds / 2) == pytest.approx(50e9)
    assert ring_alpha_s(ring_all_reduce_s(1, 8, 2e-6, 1e30), 8) == pytest.approx(2e-6)


def test_one_rank_has_no_ring_to_time():
    with pytest.raises(ValueError, match="ranks=1: expected 2 or above"):
        ring_alpha_s(1e-6, 1)


def test_an_edge_without_bandwidth_is_refused():
    with pytest.raises(ValueError, match="edge_bytes_per_s=0"):
        fullest_edge_s([1.0, 2.0], [1.0, 0.0])
