"""Chapters 1, 5 and 6: figures that take more than one formula."""

import numpy as np
import pytest

from lab.book.scale import (
    achieved_mfu,
    devices_in_time,
    inference_flops,
    tokens_per_s,
    training_s,
    wasted_share,
)


def test_deepseek_v3_s_hours_are_33_percent_of_an_h800():
    assert achieved_mfu(37e9, 14.8e12, 2.788e6 * 3600 / 2048, 2048, 989e12) == pytest.approx(0.331, rel=1e-3)


def test_150_thousand_tokens_a_second_of_7b_on_64_gpus_are_22_percent_of_what_45_percent_mfu_gives():
    assert achieved_mfu(7e9, 150e3, 1, 64, 989e12) == pytest.approx(0.09953, rel=1e-3)
    assert 150e3 / tokens_per_s(7e9, 64, 989e12, 0.45) == pytest.approx(0.2212, rel=1e-3)


def test_30b_in_30_days_takes_94_gpus_for_600_billion_tokens_and_313_for_2_trillion():
    needed = devices_in_time(30e9, np.array([600e9, 2e12]), 30 * 86_400, 989e12, 0.45)
    assert list(np.ceil(needed)) == [94, 313]
    mfu = [
        achieved_mfu(30e9, tokens, 30 * 86_400, gpus, 989e12)
        for tokens, gpus in [(600e9, 640), (2e12, 640), (2e12, 512)]
    ]
    assert mfu == pytest.approx([0.0658, 0.2194, 0.2742], rel=1e-3)


def test_70b_on_128_gpus_trains_135634_tokens_a_second_and_2_trillion_in_170_7_days():
    rate = tokens_per_s(70e9, 128, 989e12, 0.45)
    assert (rate, 2e12 / rate / 86_400) == pytest.approx((135_634, 170.7), rel=1e-3)


def test_a_run_has_the_mfu_that_it_was_timed_with():
    assert achieved_mfu(7e9, 2e12, training_s(7e9, 2e12, 64, 989e12, 0.37), 64, 989e12) == pytest.approx(0.37)


def test_serving_a_token_of_70b_takes_140_gigaflop():
    assert inference_flops(70e9, 1) == pytest.approx(140e9)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: training_s(7e9, 1e12, 0, 989e12), "devices=0"),
        (lambda: training_s(7e9, 1e12, 8, 989e12, 0), "mfu=0"),
        (lambda: training_s(7e9, 1e12, 8, 989e12, 45), "mfu=45"),
        (lambda: wasted_share(0.5, 1.5), "achievable_mfu=1.5"),
        (lambda: achieved_mfu(7e9, 1e12, 0, 8, 989e12), "seconds=0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()
