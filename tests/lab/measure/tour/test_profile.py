"""What a profile's events come to; the profiling itself needs GPUs."""

import jax
import jax.numpy as jnp
import pytest

from lab.measure.tour.profile import Event, profiled, spent


def test_kernels_count_once_where_two_streams_overlap_and_waiting_is_what_they_leave():
    """Two steps of 10 s: kernels from 0 to 4, 3 to 6 and 9 to 20, a sum beside and between them from 5 to 8."""
    events = [
        Event("fusion", 0, 4),
        Event("fusion", 9, 20),
        Event("gemm", 3, 6),
        Event("ncclDevKernel_AllReduce", 5, 8),
    ]
    assert spent(events, 2) == pytest.approx((17 / 2, 3 / 2, 3 / 2, 2 / 2))


def test_a_short_kernel_within_a_long_one_adds_nothing():
    assert spent([Event("long", 0, 10), Event("short", 2, 3), Event("next", 4, 5)], 1) == pytest.approx((10, 0, 0, 0))


@pytest.mark.compiles
def test_without_a_gpu_there_is_nothing_to_see():
    assert profiled(lambda: jax.block_until_ready(jnp.ones(3) + 1), 1) is None
