"""Chapter 5 against preempted jobs drawn at random, and figures that take more than one formula."""

import numpy as np
import pytest

from lab.book.economics import (
    break_even_h,
    contended_bytes_per_s,
    device_h,
    first_order_break_even_per_h,
    first_order_spot_usd_per_h,
    spot_usd_per_h,
    training_usd,
    usd_per_token,
)
from lab.book.scale import extra_work, training_s, wasted_share


def paid_h(preemptions_per_h, interval_h, save_h, intervals, random):
    """Hours paid for so many saved intervals: an attempt that a preemption cuts is begun anew."""
    paid, attempt_h = 0.0, interval_h + save_h
    for _ in range(intervals):
        while (lasts := random.exponential(1 / preemptions_per_h)) < attempt_h:
            paid += lasts
        paid += attempt_h
    return paid


@pytest.mark.parametrize("preemptions_per_h", [0.05, 0.5, 1.5655])
def test_an_hour_of_kept_work_on_preempted_devices_costs_what_the_memoryless_formula_says(preemptions_per_h):
    paid = paid_h(preemptions_per_h, 1, 0.05, 20_000, np.random.default_rng(5))
    assert 1.5 * paid / 20_000 == pytest.approx(spot_usd_per_h(1.5, preemptions_per_h, 1, 0.05), rel=0.03)


def test_spot_at_1_50_dollars_is_worth_4_up_to_1_57_preemptions_an_hour():
    assert spot_usd_per_h(1.5, 1.5655, 1, 0.05) == pytest.approx(4, rel=1e-4)


def test_without_preemptions_only_saving_is_paid_for():
    assert spot_usd_per_h(1.5, 0, 1, 0.05) == pytest.approx(1.5 * 1.05)


def test_the_first_order_agrees_for_rare_preemptions_and_is_13_percent_high_at_one_an_hour():
    first, whole = (
        np.array([first_order_spot_usd_per_h(1.5 * 1.05, p, 0.5), spot_usd_per_h(1.5, p, 1, 0.05)]) for p in (0.01, 1.0)
    )
    assert first[0] == pytest.approx(first[1], rel=1e-3)
    assert whole[0] / whole[1] == pytest.approx(1.13, abs=0.01)


def test_mfu_of_50_percent_is_30_percent_cheaper_than_35_which_is_43_percent_dearer():
    assert (wasted_share(0.35, 0.5), extra_work(0.35, 0.5)) == pytest.approx((0.3, 0.42857), rel=1e-4)
    cheap, dear = (device_h(7e9, 2e12, 989e12, mfu) for mfu in (0.5, 0.35))
    assert (1 - cheap / dear, dear / cheap - 1) == pytest.approx((0.3, 0.42857), rel=1e-4)


def test_a_price_a_token_times_the_tokens_is_the_price_of_the_training():
    hours = training_s(70e9, 2e12, 512, 989e12, 0.45) / 3600
    assert 2e12 * usd_per_token(70e9, 989e12, 0.45, 4) == pytest.approx(training_usd(512, hours, 4))


def test_a_device_of_55000_dollars_pays_after_18_8_months_or_37_7_if_used_half():
    assert [break_even_h(55_000, 4, used) / 730 for used in (1, 0.5)] == pytest.approx([18.8, 37.7], abs=0.05)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: spot_usd_per_h(1.5, -0.1, 1, 0.05), "preemptions_per_h=-0.1"),
        (lambda: first_order_spot_usd_per_h(1.5, 3, 0.5), "kept=-0.5"),
        (lambda: break_even_h(55_000, 4, 0), "used_share=0"),
        (lambda: device_h(-7e9, 2e12, 989e12, 0.5), "parameters=-7000000000.0"),
        (lambda: contended_bytes_per_s(50e9, 0.5), "contention=0.5: expected 1 or above"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()


def test_spot_at_1_50_with_a_twentieth_of_overhead_is_worth_it_below_1_2125_preemptions_an_hour():
    at = first_order_break_even_per_h(4, 1.05 * 1.5, 0.5)
    assert at == pytest.approx(1.2125) and first_order_spot_usd_per_h(1.05 * 1.5, at, 0.5) == pytest.approx(4)
