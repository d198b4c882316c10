"""Chapter 31 simulated: buckets, prefetched gathers and partial products, each on one link."""

import itertools

import numpy as np
import pytest

from lab.book.overlap import (
    bucketed_backward_s,
    collective_matmul_s,
    formed_buckets,
    overlap_speedup,
    overlapped_s,
    prefetched_s,
)


def serial_ends(ready, durations) -> list[float]:
    """Ends of what waits both for its turn and for being ready."""
    ends = [0.0]
    for start, duration in zip(ready, durations, strict=True):
        ends.append(max(ends[-1], start) + duration)
    return ends[1:]


@pytest.mark.parametrize(("buckets", "sync_s"), list(itertools.product([1, 2, 4, 16], [0.5, 3.0, 20.0])))
def test_equal_buckets_end_when_the_closed_form_says(buckets, sync_s):
    ready = [50.0 * (i + 1) / buckets for i in range(buckets)]
    assert serial_ends(ready, [sync_s] * buckets)[-1] == pytest.approx(bucketed_backward_s(50.0, buckets, sync_s))


def test_two_of_ten_layers_a_bucket_hide_80_percent_of_30_ms():
    end = serial_ends([10.0, 20.0, 30.0, 40.0, 50.0], [6.0] * 5)[-1]
    assert (end, 80 / end) == (56.0, pytest.approx(1.43, rel=1e-3))


@pytest.mark.parametrize(
    ("gather_s", "compute_s", "depth"), list(itertools.product([2.0], [8.0, 2.0, 1.0, 0.5], [1, 2, 4]))
)
def test_a_prefetch_deeper_than_one_layer_does_not_help_on_one_link(gather_s, compute_s, depth):
    gathered, computed = [], []
    for layer in range(24):
        room = computed[layer - depth - 1] - compute_s if layer > depth else 0.0
        gathered.append(max(gathered[-1] if gathered else 0.0, room) + gather_s)
        computed.append(max(computed[-1] if computed else 0.0, gathered[-1]) + compute_s)
    assert computed[-1] == pytest.approx(prefetched_s(24, gather_s, compute_s))


@pytest.mark.parametrize(("matmul_s", "hop_s"), [(8.0, 0.5), (8.0, 1.0), (8.0, 3.0)])
def test_a_product_in_8_parts_waits_only_for_what_its_permutes_take_longer(matmul_s, hop_s):
    part = matmul_s / 8
    arrived = done = 0.0
    for _ in range(8):
        started = max(arrived, done)
        arrived, done = started + hop_s, started + part
    assert done == pytest.approx(collective_matmul_s(matmul_s, 8 * hop_s, 8, 0.0, 1.0))


def test_overlap_pays_most_where_both_take_equally_long():
    communication = np.linspace(0.1, 10, 100)
    assert communication[overlap_speedup(1.0, communication, 1.0).argmax()] == pytest.approx(1.0)


def test_full_overlap_takes_the_longer_of_both():
    assert overlapped_s(np.array([3.0, 1.0]), np.array([1.0, 3.0]), 1.0).tolist() == [3.0, 3.0]


def test_buckets_take_every_gradient_once_last_first_and_no_more_than_fits():
    sizes = [5, 7, 3, 4, 20, 6]
    buckets = formed_buckets(sizes, 12)
    assert [place for bucket in buckets for place in bucket] == [5, 4, 3, 2, 1, 0]
    assert buckets == ((5,), (4,), (3, 2), (1, 0))
