"""Chapter 4 against sums of messages and a schedule walked through."""

import numpy as np
import pytest

from lab.book.alpha_beta import fusing_saves_s, loggp_s, overlapped_step_s, round_trip_s
from lab.book.collectives import message_s, ring_all_reduce_s
from lab.book.data_parallel import overlapped_backward_s


def test_a_thousand_all_reduces_of_64_ranks_in_one_save_252_ms():
    apart, fused = 1000 * ring_all_reduce_s(10**6, 64, 2e-6, 50e9), ring_all_reduce_s(10**9, 64, 2e-6, 50e9)
    assert apart - fused == pytest.approx(fusing_saves_s(1000, 2 * 63, 2e-6)) == pytest.approx(0.251748)


@pytest.mark.parametrize("sync_s", [0.5, 2.0, 3.0])
def test_buckets_hide_behind_the_backward_pass_alone_and_the_last_adds_its_own_time(sync_s):
    """A schedule of 100 buckets, walked through, against the bound."""
    bucket_s, free_s = sync_s / 100, 0.0
    for ready_s in np.cumsum(np.full(100, 2.0 / 100)):
        free_s = max(free_s, ready_s) + bucket_s
    assert free_s == pytest.approx(overlapped_backward_s(np.full(100, 0.02), np.full(100, bucket_s)))
    bound = overlapped_step_s(1.0, 2.0, sync_s)
    assert bound < 1.0 + free_s <= bound + max(bucket_s, 0.02) + 1e-9


def test_loggp_with_its_overheads_in_alpha_is_alpha_beta():
    assert loggp_s(1e6, 1e-6, 0.5e-6, 1 / 50e9) == pytest.approx(message_s(1e6, 2e-6, 50e9), rel=1e-5)


def test_a_ping_pong_is_two_messages():
    assert round_trip_s(1e6, 2e-6, 50e9) == pytest.approx(2 * message_s(1e6, 2e-6, 50e9))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: fusing_saves_s(0, 1, 2e-6), "messages=0"),
        (lambda: overlapped_step_s(1, 2, -1), "sync_s=-1"),
        (lambda: loggp_s(0, 1e-6, 1e-6, 1e-9), "payload_bytes=0"),
        (lambda: round_trip_s(1e6, 2e-6, 0), "bytes_per_s=0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()
