"""What the second source's formulas refuse, and where they meet."""

import numpy as np
import pytest

from lab.book.availability import chance_of_any, chance_of_failure, unavailability
from lab.book.codec import phased_gain, sparse_collective_gain
from lab.book.collectives import all_reduce_wire_bytes
from lab.book.convergence import sample_efficiency, simple_noise_scale
from lab.book.fabric import (
    axis_by_axis_wire_bytes,
    oversubscribed_loss,
    ring_cut_bytes,
    two_tier_hosts,
)
from lab.book.fleet import (
    amdahl_speedup,
    communication_removed_speedup,
    exposed_speedup,
    fastest_ranks,
    fleet_efficiency,
    fleet_step_s,
    universal_speedup,
)
from lab.book.orchestration import (
    many_server_wait,
    one_server_wait,
    preemptible_usd_an_h,
)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: fleet_step_s(1.0, 0, 1.0, 0.0, 0.0), "ranks=0"),
        (lambda: fleet_step_s(1.0, 8, 1.0, -1.0, 0.0), "sync_s=-1.0"),
        (lambda: fleet_step_s(8.0, 8, 0.5, 0.0, 0.75), "overlap_s=0.75"),
        (lambda: fleet_step_s(8.0, 8, 2.0, 0.0, 1.5), "overlap_s=1.5"),
        (lambda: amdahl_speedup(8, 1.5), "serial_share=1.5"),
        (lambda: communication_removed_speedup(1.0), "communication_share=1.0"),
        (lambda: chance_of_any(2, 8), "chance=2"),
        (lambda: unavailability(0, 0.1, 0.1), "copies=0"),
        (lambda: phased_gain(0.2, 0), "compression=0"),
        (lambda: sample_efficiency(-1, 16), "batch=-1"),
        (lambda: simple_noise_scale(1.0, 1.0, 8, 8), "small_batch=8"),
        (lambda: ring_cut_bytes(-1, 8), "payload_bytes=-1"),
        (lambda: oversubscribed_loss(0.3, 0.5), "oversubscription=0.5"),
        (lambda: two_tier_hosts(0), "ports=0"),
        (lambda: one_server_wait(1.0, 1), "load=1.0"),
        (lambda: many_server_wait(0.5, 0, 1), "servers=0"),
        (lambda: preemptible_usd_an_h(0.7, 1, 0), "productive_h=0"),
    ],
)
def test_a_refusal_names_the_argument(call, named):
    with pytest.raises(ValueError, match=named):
        call()


def test_the_scaling_tax_is_amdahls_law():
    ranks = 2 ** np.arange(14)
    np.testing.assert_allclose(universal_speedup(ranks, 0.05, 0), amdahl_speedup(ranks, 0.05))


def test_a_fleet_is_fastest_where_neither_neighbour_is_faster():
    best = round(float(fastest_ranks(0.05, 9.5e-7)))
    speedups = universal_speedup(np.arange(best - 1, best + 2), 0.05, 9.5e-7)
    assert speedups.argmax() == 1


def test_waiting_may_be_hidden_too_up_to_communication_and_synchronisation_together():
    assert fleet_step_s(100.0, 1, 1.0, 2.0, 2.5) == 100.5
    assert fleet_step_s(100.0, 1, 1.0, 2.0, 3.0) == 100.0
    with pytest.raises(ValueError, match="overlap_s=3.5: expected no more than communication and synchronisation"):
        fleet_step_s(100.0, 1, 1.0, 2.0, 3.5)


def test_exposed_communication_is_the_fleet_law_with_nothing_hidden():
    compute, exposed = 2122.28, 11.9
    assert exposed_speedup(1024, exposed / compute) / 1024 == pytest.approx(
        fleet_efficiency(compute, 1024, exposed, 0.0, 0.0)
    )


def test_one_place_waits_the_same_by_both_formulas():
    load = np.linspace(0, 0.99, 50)
    np.testing.assert_allclose(many_server_wait(load, 1, 2), one_server_wait(load, 2))


def test_many_small_chances_are_a_rate():
    assert chance_of_any(1e-6, 10**6) == pytest.approx(chance_of_failure(1, 1), rel=1e-6)


def test_a_torus_of_one_axis_is_a_ring_and_more_axes_send_more():
    assert axis_by_axis_wire_bytes(1, (64,)) == all_reduce_wire_bytes(1, 64) < axis_by_axis_wire_bytes(1, (8, 8))


def test_sparse_gradients_of_1_in_1000_gain_nothing_at_1000_ranks():
    assert sparse_collective_gain(10**6, 1000, 1000, 4, 4) == 1
