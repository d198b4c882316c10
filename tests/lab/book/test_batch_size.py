"""Chapter 10 against descent with sampled gradients on quadratics."""

import numpy as np
import pytest

from lab.book.batch_size import (
    best_learning_rate,
    critical_batch_from,
    curved_noise_scale,
    efficiency,
    examples_needed,
    fitted_steps,
    gradient_variance,
    lamb_ratio,
    lars_ratio,
    noise_scale,
    observed_efficiency,
    steps_needed,
    updates_share,
    warmed_up_learning_rate,
    wasted_examples,
)
from lab.book.convergence import simple_noise_scale


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(10)


def test_the_mean_of_64_gradients_varies_a_64th(random):
    assert random.normal(0, 3, size=(20_000, 64)).mean(axis=1).var() == pytest.approx(
        gradient_variance(9, 64), rel=0.03
    )


H, SIGMA, G = np.diag([4.0, 1.0, 0.5]), np.diag([2.0, 8.0, 1.0]), np.array([1.0, 2.0, -1.0])
RATES = np.linspace(0.005, 1.2, 240)


def best_rate(batch, random):
    """The step of least loss on average over 200,000 noisy gradients of G's size; the loss changes by -r g'G + r^2 g'Hg
    / 2."""
    g_SD = G + random.normal(size=(200_000, 3)) * np.sqrt(np.diag(SIGMA) / batch)
    linear, square = (g_SD @ G).mean(), np.einsum("sd,de,se->s", g_SD, H, g_SD).mean()
    return RATES[(-RATES * linear + RATES**2 * square / 2).argmin()]


def test_g_squared_over_g_h_g_is_a_step_size(random):
    assert best_rate(1e12, random) == pytest.approx(G @ G / (G @ H @ G), abs=0.005)


@pytest.mark.parametrize("batch", [1, 2, 8, 64])
def test_the_best_step_shrinks_as_the_curved_noise_scale_says(batch, random):
    expected = best_learning_rate(G @ G / (G @ H @ G), curved_noise_scale(H, SIGMA, G), batch)
    assert best_rate(batch, random) == pytest.approx(expected, abs=0.006)


def test_with_curvature_alike_everywhere_the_noise_scale_is_noise_over_signal():
    assert curved_noise_scale(3 * np.eye(3), SIGMA, G) == pytest.approx(noise_scale(np.trace(SIGMA), G @ G)) == 11 / 6


def test_gradients_of_8_and_64_examples_tell_the_noise_scale(random):
    norms = [
        ((G + random.normal(size=(200_000, 3)) * np.sqrt(np.diag(SIGMA) / batch)) ** 2).sum(axis=1).mean()
        for batch in (8, 64)
    ]
    assert simple_noise_scale(*norms, 8, 64) == pytest.approx(noise_scale(np.trace(SIGMA), G @ G), rel=0.02)


DIMS, RATE, START, END = 100, 0.02, 8.0, 1.0


def steps_to_end(batch, random):
    """Updates from |w|^2 = START to END of 200 runs on |w|^2 / 2 with unit noise in every dim, each step the best
    fraction of RATE."""
    w_RD, steps = np.full((200, DIMS), np.sqrt(START / DIMS)), 0
    while (square := (w_RD**2).sum(axis=1).mean()) > END:
        g_RD = w_RD + random.normal(size=w_RD.shape) / np.sqrt(batch)
        w_RD, steps = w_RD - best_learning_rate(RATE, DIMS / square, batch) * g_RD, steps + 1
    return steps


def test_simulated_descent_needs_least_steps_times_one_plus_critical_over_batch(random):
    batches = np.array([8, 32, 128, 2048])
    steps = np.array([steps_to_end(batch, random) for batch in batches])
    least, critical = fitted_steps(batches, steps, relative=True)
    assert steps == pytest.approx(steps_needed(batches, least, critical), rel=0.03)
    # Without noise |w|^2 falls by (1 - RATE)^2 a step.
    assert least == pytest.approx(np.log(START / END) / -2 / np.log1p(-RATE), rel=0.03)
    # Between the noise scales at either end, 12.5 and 100.
    assert DIMS / START < critical < DIMS / END


def test_the_noise_scale_rises_8_times_while_the_square_of_the_gradient_falls_to_an_eighth(random):
    scales = []
    for square in (START, END):
        g_D = np.full(DIMS, np.sqrt(square / DIMS))
        norms = [
            ((g_D + random.normal(size=(20_000, DIMS)) / np.sqrt(batch)) ** 2).sum(axis=1).mean() for batch in (8, 64)
        ]
        scales.append(simple_noise_scale(*norms, 8, 64))
    assert scales == pytest.approx([DIMS / START, DIMS / END], rel=0.02)


def test_at_the_critical_batch_steps_and_examples_are_twice_their_least_and_efficiency_is_a_half():
    assert steps_needed(6144, 4000, 6144) == 8000
    assert examples_needed(6144, 4000, 6144) == 2 * 4000 * 6144
    assert efficiency(1e-9, 6144, 6144) == pytest.approx(0.5)


def test_examples_above_the_least_are_least_steps_times_batch():
    least = examples_needed(1e-9, 4000, 6144)
    assert examples_needed(8192, 4000, 6144) - least == pytest.approx(wasted_examples(8192, 4000))


def test_two_points_give_6144_and_predict_10000_steps_where_15000_are_given():
    least, critical = fitted_steps([256, 1024], [100_000, 28_000])
    assert (least, critical, least * critical) == pytest.approx((4000, 6144, 24_576_000))
    assert steps_needed(4096, least, critical) == pytest.approx(10_000)


def test_three_points_give_a_critical_batch_of_1700_2400_or_3200_as_they_are_weighed():
    batches, steps = [256, 1024, 4096], [100_000, 28_000, 15_000]
    found = (
        fitted_steps(batches[1:], steps[1:]),
        fitted_steps(batches, steps, relative=True),
        fitted_steps(batches, steps),
    )
    assert [critical for _, critical in found] == pytest.approx([1664, 2371, 3218], rel=1e-3)


def test_an_efficiency_of_0_5208_puts_8192_at_the_critical_batch():
    observed = observed_efficiency(8.333, 1, 512, 8192)
    critical = critical_batch_from(observed, 512, 8192)
    assert (observed, critical) == pytest.approx((0.5208, 7836), rel=1e-3)
    assert efficiency(512, 8192, critical) == pytest.approx(observed)


def test_a_lars_step_without_decay_moves_a_layer_by_the_learning_rate(random):
    w_D, g_D = random.normal(size=(2, 50))
    step_D = 0.01 * lars_ratio(np.linalg.norm(w_D), np.linalg.norm(g_D)) * g_D
    assert np.linalg.norm(step_D) / np.linalg.norm(w_D) == pytest.approx(0.01)


def test_a_lamb_step_moves_a_layer_by_the_learning_rate_with_decay_or_without(random):
    w_D, r_D = random.normal(size=(2, 50))
    steps = [0.01 * lamb_ratio(w_D, r_D, decay) * (r_D + decay * w_D) for decay in (0, 0.1)]
    assert [np.linalg.norm(step) / np.linalg.norm(w_D) for step in steps] == pytest.approx([0.01, 0.01])


def test_half_the_tokens_in_batches_4_times_as_large_save_three_eighths_of_the_updates():
    batches = 4000 * [1] + 1000 * [4]
    assert updates_share([0.5, 0.5], [1, 4]) == len(batches) / sum(batches) == 0.625


def test_warm_up_ends_at_the_peak():
    assert list(warmed_up_learning_rate(np.array([0, 500, 1000, 5000]), 0.4, 1000)) == [0, 0.2, 0.4, 0.4]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: steps_needed(0, 4000, 6144), "batch=0"),
        (lambda: noise_scale(1, 0), "gradient_square=0"),
        (lambda: critical_batch_from(1, 512, 8192), "efficiency=1: expected less than 1"),
        (lambda: critical_batch_from(0.01, 512, 8192), "batch=8192: expected more than 51200"),
        (lambda: lars_ratio(0, 1), "weight_norm=0"),
        (lambda: best_learning_rate(0.1, -1, 8), "noise_scale=-1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()
