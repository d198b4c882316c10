"""Chapters 7 and 8 against minima found by search, and the figures that take more than one formula."""

from math import inf

import numpy as np
import pytest

from lab.book.compute_optimal import (
    break_even_tokens,
    compute_optimal_flops,
    compute_optimal_parameters,
    effective_parameters,
    effective_tokens,
    oversize,
    parameters_for_loss,
)
from lab.book.loss import (
    FITS,
    Fit,
    additive_loss,
    kaplan_loss,
    kaplan_parameter_loss,
    kaplan_token_loss,
    least_parameters,
    least_tokens,
    optimal_parameters,
    optimal_ratio,
    optimal_tokens,
    parameters_gain,
    tokens_for_loss,
    tokens_gain,
)


def searched(flops, fit):
    """Parameters of least loss among 400,001 sizes of 6 Psi D = C."""
    parameters = np.geomspace(1e5, 1e13, 400_001)
    return parameters[additive_loss(parameters, flops / 6 / parameters, fit).argmin()]


@pytest.mark.parametrize("fit", [*FITS, Fit(100.0, 0.5, 900.0, 0.25, 1.0)])
@pytest.mark.parametrize("flops", [1e21, 5.88e23, 1e24])
def test_no_other_size_has_less_loss_than_the_closed_form(flops, fit):
    assert searched(flops, fit) == pytest.approx(optimal_parameters(flops, fit), rel=1e-3)


def test_published_constants_put_98_tokens_on_a_parameter_at_1e24_and_the_refit_18():
    ratios = [1e24 / 6 / searched(1e24, fit) ** 2 for fit in FITS]
    assert ratios == pytest.approx([97.73, 18.14], rel=2e-3)


def test_at_the_optimum_a_percent_of_either_size_is_worth_the_same():
    psi, D = optimal_parameters(1e24), optimal_tokens(1e24)
    slopes = [
        additive_loss(psi * 1.001, D) - additive_loss(psi, D),
        additive_loss(psi, D * 1.001) - additive_loss(psi, D),
    ]
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-3)


def test_doubling_either_size_gains_2_percent_more_by_tokens_at_the_optimum():
    psi, D = optimal_parameters(1e24), optimal_tokens(1e24)
    assert tokens_gain(D, 2 * D) / parameters_gain(psi, 2 * psi) == pytest.approx(0.6300 / 0.6175, rel=1e-3)


def test_kaplans_joint_law_is_each_single_law_in_its_limit():
    assert kaplan_loss(1e9, 1e30) == pytest.approx(kaplan_parameter_loss(1e9))
    assert kaplan_loss(1e30, 1e10) == pytest.approx(kaplan_token_loss(1e10))


@pytest.mark.parametrize("fit", FITS)
def test_tokens_for_a_loss_reach_it_and_either_size_alone_does_in_its_limit(fit):
    assert additive_loss(7e9, tokens_for_loss(7e9, 2.05, fit), fit) == pytest.approx(2.05)
    assert (
        additive_loss(least_parameters(2.05, fit), inf, fit)
        == additive_loss(inf, least_tokens(2.05, fit), fit)
        == pytest.approx(2.05)
    )


def test_7b_on_2_trillion_tokens_equals_26_5b_on_20_a_parameter_and_19_4b_by_the_refit():
    found = [parameters_for_loss(additive_loss(7e9, 2e12, fit), fit=fit) for fit in FITS]
    assert found == pytest.approx([26.5e9, 19.4e9], rel=2e-3)


def test_7b_matches_chinchilla_at_2_83_times_its_compute_or_by_the_refit_never():
    chinchilla = [additive_loss(70e9, 1.4e12, fit) for fit in FITS]
    D, never = (tokens_for_loss(7e9, loss, fit) for loss, fit in zip(chinchilla, FITS, strict=True))
    assert (D / (20 * 7e9), 7e9 * D / (70e9 * 1.4e12), never) == pytest.approx((282.9, 2.829, inf), rel=1e-3)
    assert break_even_tokens(70e9, 1.4e12, 7e9, D) == pytest.approx(8.536e12, rel=1e-3)
    assert additive_loss(7e9, inf, "besiroglu") > chinchilla[1]


def test_gpt3_s_loss_takes_2_57_times_less_compute_at_20_tokens_a_parameter_and_chinchilla_used_1_87_times_more():
    compute = 6 * 175e9 * 300e9
    losses = {fit: additive_loss(175e9, 300e9, fit) for fit in FITS}
    less = [compute / compute_optimal_flops(parameters_for_loss(loss, fit=fit)) for fit, loss in losses.items()]
    assert [*less, 6 * 70e9 * 1.4e12 / compute] == pytest.approx([2.575, 1.644, 1.867], rel=1e-3)
    best = compute_optimal_parameters(compute)
    assert losses["hoffmann"] - additive_loss(best, 20 * best) == pytest.approx(0.0414, rel=2e-3)


def test_twice_the_parameters_on_the_same_data_lose_less_by_either_fit():
    assert [additive_loss(50e9, 500e9, fit) / additive_loss(25e9, 500e9, fit) for fit in FITS] == pytest.approx(
        [0.98772, 0.98778], rel=1e-4
    )


def test_the_fit_of_either_year_orders_7b_and_70b_of_equal_compute_differently():
    small, large = ([additive_loss(*sizes, fit) for fit in FITS] for sizes in [(7e9, 2e12), (70e9, 200e9)])
    assert (small[0] < large[0], small[1] < large[1]) == (True, False)
    assert small + large == pytest.approx([2.020, 2.065, 2.055, 2.052], abs=5e-4)


def test_the_printed_power_fit_spends_6_88_times_its_compute():
    parameters, tokens = 0.6225 * 1e21**0.4957, 1.8421 * 1e21**0.5043
    assert 6 * parameters * tokens / 1e21 == pytest.approx(6.88, rel=1e-3)
    assert oversize(parameters, 1e21) == pytest.approx(5.54, rel=1e-3)
    assert pytest.approx(4.56e22) == 6 * 19e9 * 400e9


def test_a_second_epoch_is_never_worse_than_none_and_never_worth_more_than_fresh_tokens():
    worth = effective_tokens(1.0, np.arange(1, 100))
    assert (np.diff(worth) > 0).all() and (worth <= np.arange(1, 100)).all()
    assert worth[-1] < 1 + 15.39


def test_a_million_budgets_are_one_call():
    ratios = optimal_ratio(np.geomspace(1e18, 1e26, 1_000_000))
    assert ratios.shape == (1_000_000,) and (np.diff(ratios) > 0).all()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: additive_loss(0, 1e9), "parameters=0"),
        (lambda: additive_loss(1e9, -1), "tokens=-1"),
        (lambda: additive_loss(1e9, 1e9, "chinchilla"), "fit='chinchilla': expected one of hoffmann, besiroglu"),
        (lambda: least_parameters(1.6), "loss=1.6: expected more than 1.69"),
        (lambda: parameters_for_loss(1.69), "loss=1.69: expected more than 1.69"),
        (lambda: effective_tokens(1e9, 0.5), "epochs=0.5: expected 1 or above"),
        (
            lambda: break_even_tokens(7e9, 1e12, 70e9, 1e12),
            "small_parameters=70000000000.0: expected less than 7000000000.0",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()


def test_a_trillion_parameters_with_70_billion_active_pass_for_264_6_billion():
    assert effective_parameters(1000e9, 70e9) == pytest.approx(264.6e9, rel=1e-3)
