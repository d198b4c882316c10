"""Chapter 3a against simulated loaders and caches."""

from math import inf

import numpy as np
import pytest

from lab.book.data_pipeline import (
    batches_in_flight,
    decoded_bytes_per_s,
    drain_s,
    fill_s,
    prefetched_stall_share,
    read_amplification,
    required_bytes_per_s,
    stall_share,
)
from lab.book.roofline import attainable_flops_per_s, data_intensity, data_ridge
from lab.book.scale import tokens_per_s


def stalled(load_s, compute_s, prefetching, steps=10_000):
    """Share of the time that a device waits for batches loaded one after another, one of them ahead if prefetching."""
    computed = loaded = waited = 0.0
    for _ in range(steps):
        loaded = (loaded if prefetching else computed) + load_s
        waited += max(0.0, loaded - computed)
        # The place for the next batch is free once this one is taken.
        computed = max(computed, loaded) + compute_s
        loaded = max(loaded, computed - compute_s)
    return waited / computed


@pytest.mark.parametrize("load_s", [0.1, 0.3, 0.6])
def test_a_device_waits_for_the_load_or_with_prefetching_for_what_computation_does_not_cover(load_s):
    assert stalled(load_s, 0.3, prefetching=False) == pytest.approx(stall_share(load_s, 0.3), rel=1e-3)
    assert stalled(load_s, 0.3, prefetching=True) == pytest.approx(prefetched_stall_share(load_s, 0.3), abs=1e-3)


def test_loading_of_0_3_s_beside_0_3_s_of_computation_stalls_for_half_of_the_time_or_not_at_all():
    assert (stall_share(0.25 + 0.05, 0.3), prefetched_stall_share(0.25 + 0.05, 0.3)) == (0.5, 0)


@pytest.mark.parametrize("spread", ["regular", "random"])
def test_two_batches_a_second_of_2_s_each_are_4_at_a_time(spread):
    random = np.random.default_rng(3)
    gaps, stays = (
        (random.exponential(size=40_000) for _ in range(2))
        if spread == "random"
        else (np.ones(40_000), np.ones(40_000))
    )
    start = np.cumsum(gaps * 0.5)
    end = start + stays * 2
    watched = random.uniform(100, start[-1] - 100, 20_000)
    under_way = np.searchsorted(start, watched) - np.searchsorted(np.sort(end), watched)
    assert under_way.mean() == pytest.approx(batches_in_flight(2, 2), rel=0.02)


def read_once_s(cache_bytes, read_bytes_per_s, refill_bytes_per_s, tick_s=1.0):
    """Until a cache, full at first, is empty."""
    held, now = cache_bytes, 0.0
    while held > 0:
        held, now = held + (refill_bytes_per_s - read_bytes_per_s) * tick_s, now + tick_s
    return now


def test_a_terabyte_refilled_at_a_third_of_the_rate_lasts_28_minutes_and_takes_56_to_fill():
    assert read_once_s(1e12, 900e6, 300e6) == pytest.approx(drain_s(1e12, 900e6, 300e6), abs=1)
    assert (drain_s(1e12, 900e6, 300e6), fill_s(1e12, 300e6)) == pytest.approx((1666.7, 3333.3), abs=0.1)


def test_a_store_as_fast_as_the_reader_never_drains_the_cache():
    assert drain_s(1e12, 300e6, 300e6) == inf


def test_a_13b_job_on_128_gpus_needs_1_424_gb_per_s_ten_times_what_is_printed():
    assert required_bytes_per_s(tokens_per_s(13e9, 128, 989e12, 0.45), 1500, 1.3) == pytest.approx(1.424e9, rel=1e-3)


def test_a_70b_job_on_256_gpus_needs_23_megabytes_per_s_on_each_of_32_nodes():
    whole = required_bytes_per_s(tokens_per_s(70e9, 256, 989e12, 0.4), 2048, 1.5)
    assert (whole, whole / 32) == pytest.approx((0.7407e9, 23.2e6), rel=3e-3)
    assert required_bytes_per_s(tokens_per_s(70e9, 256, 989e12, 0.4), 4, 1.2) == pytest.approx(1.2e6, rel=0.05)


def test_a_store_of_1_gb_per_s_feeds_256_gpus_at_40_percent_and_not_at_their_peak():
    intensity = data_intensity(70e9, 2048, 1.2)
    assert data_ridge(256, 989e12, 0.4, 1e9) < intensity < data_ridge(256, 989e12, 1, 1e9)
    fed = attainable_flops_per_s(256 * 989e12, storage_bytes_per_s=1e9, storage_intensity=intensity)
    assert fed / (256 * 989e12) == pytest.approx(0.675, rel=1e-3)


def test_a_shuffle_that_reads_whole_blocks_of_4_records_for_one_amplifies_by_4():
    assert read_amplification(4 * 1024, 1024) == 4


def test_decoding_bounds_a_fast_store_of_compressed_data():
    assert (decoded_bytes_per_s(2e9, 3, 0.6e9), decoded_bytes_per_s(0.1e9, 3, 0.6e9)) == pytest.approx((0.6e9, 0.3e9))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: required_bytes_per_s(1e5, 0), "bytes_per_token=0"),
        (lambda: drain_s(1e12, 1e9, -1), "refill_bytes_per_s=-1"),
        (lambda: stall_share(0.3, 0), "compute_s=0"),
        (lambda: tokens_per_s(13e9, 0, 989e12), "devices=0"),
        (lambda: tokens_per_s(13e9, 128, 989e12, 45), "mfu=45"),
        (lambda: attainable_flops_per_s(989e12, 0, 100), "memory_bytes_per_s=0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()
