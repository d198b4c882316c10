"""Chapter 14 decided by numbers: gradients of shards, orders of summation, schedules of buckets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab.book.data_parallel import (
    hidden_share,
    order_error_bound,
    overlapped_backward_s,
    training_flops,
)

RNG = np.random.default_rng(0)
X, Y, W = (jnp.asarray(RNG.normal(size=size), jnp.float32) for size in ((24, 5), (24, 3), (5, 3)))


def mean_loss(w, x, y):
    return jnp.mean(jnp.sum((jnp.tanh(x @ w) - y) ** 2, -1))


def gradient(rows: slice):
    return np.asarray(jax.grad(mean_loss)(W, X[rows], Y[rows]), np.float64)


@pytest.mark.compiles
def test_shares_of_6_and_18_rows_are_weighted_and_their_plain_mean_is_off_by_a_quarter_of_the_difference():
    few, many, whole = gradient(slice(0, 6)), gradient(slice(6, 24)), gradient(slice(0, 24))
    np.testing.assert_allclose(few / 4 + 3 * many / 4, whole, rtol=1e-5)
    np.testing.assert_allclose((few + many) / 2 - whole, (few - many) / 4, rtol=1e-4, atol=1e-6)
    assert np.abs((few + many) / 2 - whole).max() > 0.01


@pytest.mark.compiles
def test_four_accumulated_micro_batches_are_the_batch():
    parts = [gradient(slice(6 * j, 6 * j + 6)) for j in range(4)]
    np.testing.assert_allclose(sum(parts) / 4, gradient(slice(0, 24)), rtol=1e-5)


def test_float32_addition_of_1e20_is_not_associative():
    a, b, c = np.float32([1e20, -1e20, 1])
    assert (a + b) + c == 1 and a + (b + c) == 0


@pytest.mark.parametrize("dtype, unit_roundoff", [(np.float16, 2**-11), (np.float32, 2**-24)])
def test_two_orders_of_64_summands_differ_within_the_bound_and_by_more_than_any_multiple_of_the_sum(
    dtype, unit_roundoff
):
    values = RNG.normal(size=(200, 64)).astype(dtype)
    values[:, 32:] = -values[:, :32]
    forward, paired = np.zeros(200, dtype), np.zeros(200, dtype)
    for i in range(64):
        forward += values[:, i]
        paired += values[:, i // 2 + 32 * (i % 2)]
    bound = order_error_bound(64, unit_roundoff, np.abs(values.astype(np.float64)).sum(1))
    assert (paired == 0).all() and (forward != 0).any()
    assert (np.abs(forward.astype(np.float64) - paired) <= bound).all()


def sent_one_after_the_other(backward_s, sync_s):
    """An event at a time: the link takes a bucket once it is ready and the link is free."""
    clock = link_free = 0.0
    for computed, sent in zip(backward_s, sync_s, strict=True):
        clock += computed
        link_free = max(link_free, clock) + sent
    return link_free


def test_the_closed_form_of_overlap_is_what_a_link_does_for_500_random_schedules():
    for _ in range(500):
        backward_s, sync_s = RNG.exponential(size=(2, RNG.integers(1, 9)))
        assert overlapped_backward_s(backward_s, sync_s) == pytest.approx(sent_one_after_the_other(backward_s, sync_s))


def test_100_layers_of_0_8_ms_hide_79_percent_of_1_ms_each():
    backward_s, sync_s = np.full(100, 0.8), np.full(100, 1.0)
    assert overlapped_backward_s(backward_s, sync_s) == pytest.approx(100.8)
    assert hidden_share(backward_s, sync_s) == pytest.approx(0.792)


def test_negative_tokens_are_named():
    with pytest.raises(ValueError, match="tokens=-1"):
        training_flops(1e9, -1)
