"""Chapter 30 with the formats themselves: what float16, bfloat16 and float8 keep of numbers, sums and products."""

import ml_dtypes
import numpy as np
import pytest

from lab.book.precision import (
    depth_error_bound,
    epsilon,
    exp_limit,
    largest,
    largest_without_infinities,
    least_growth,
    least_loss_scale,
    log_uniform_share_lost,
    matmul_error_ratio,
    power_of_two_above,
    smallest_normal,
    smallest_subnormal,
)

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(30)


@pytest.mark.parametrize(
    ("dtype", "exponent", "mantissa"),
    [(np.float16, 5, 10), (BF16, 8, 7), (E4M3, 4, 3), (E5M2, 5, 2), (np.float32, 8, 23)],
)
def test_limits_follow_from_the_bits(dtype, exponent, mantissa):
    about, top = ml_dtypes.finfo(dtype), largest_without_infinities if dtype is E4M3 else largest
    stated = (
        top(exponent, mantissa),
        epsilon(mantissa),
        smallest_normal(exponent),
        smallest_subnormal(exponent, mantissa),
    )
    assert stated == tuple(float(x) for x in (about.max, about.eps, about.smallest_normal, about.smallest_subnormal))


@pytest.mark.parametrize(("dtype", "values"), [(E4M3, 8), (E5M2, 4)])
def test_an_octave_of_float8_has_8_and_4_values(dtype, values):
    rounded = np.linspace(1, 2, 1000).astype(dtype).astype(float)
    assert len(np.unique(rounded[rounded < 2])) == values


@pytest.mark.parametrize(("dtype", "mantissa"), [(np.float16, 10), (BF16, 7)])
def test_an_update_of_half_a_gap_is_lost_and_a_larger_one_is_not(dtype, mantissa):
    weight, update = dtype(1.5), least_growth(1.5, mantissa)
    assert dtype(1.5 + 0.99 * update) == weight < dtype(1.5 + 1.01 * update)


def test_a_thousand_updates_of_1e_7_are_lost_in_16_bits_and_kept_in_32():
    for dtype, kept in ((np.float16, False), (BF16, False), (np.float32, True)):
        w = dtype(1)
        for _ in range(1000):
            w = dtype(w + dtype(1e-7))
        assert (w > 1) is np.bool_(kept)


@pytest.mark.parametrize(("gradient", "scale"), [(1e-5, 8), (1e-6, 64), (1e-7, 1024), (1e-8, 8192)])
def test_the_stated_power_of_two_is_the_least_that_keeps_a_gradient_normal(gradient, scale):
    assert power_of_two_above(least_loss_scale(gradient, 5)) == scale
    smallest = np.finfo(np.float16).smallest_normal
    assert np.float16(gradient * scale) >= smallest and gradient * scale / 2 < smallest


@pytest.mark.parametrize(("value", "kept"), [(1e-6, 1.0133e-6), (1e-7, 1.192e-7), (1e-8, 0.0)])
def test_float16_keeps_1e_6_and_1e_7_as_subnormals_and_1e_8_not_at_all(value, kept):
    assert float(np.float16(value)) == pytest.approx(kept, rel=1e-3)


def test_scaled_by_65536_a_gradient_of_1e_9_survives():
    assert float(np.float16(1e-9 * 65536)) / 65536 == pytest.approx(1.0004e-9, rel=1e-4)


def test_float16_loses_23_percent_of_log_uniform_values_not_44_and_bfloat16_none(random):
    values = 10 ** random.uniform(-8, 8, 10**6)
    for dtype, bits in ((np.float16, (5, 10)), (BF16, (8, 7))):
        with np.errstate(over="ignore"):
            cast = values.astype(dtype).astype(float)
        lost = np.mean((cast == 0) | np.isinf(cast))
        assert lost == pytest.approx(log_uniform_share_lost(1e-8, 1e8, *bits), abs=2e-3)


def test_of_uniform_values_up_to_1e8_float16_overflows_on_99_94_percent(random):
    with np.errstate(over="ignore"):
        assert np.mean(np.isinf(random.uniform(1e-8, 1e8, 10**6).astype(np.float16))) == pytest.approx(0.9993, abs=2e-4)


def product_errors(n: int, dtype, random: np.random.Generator) -> tuple[float, float, float]:
    """Largest, relative mean and root mean square error of an n x n product of rounded factors, summed in float32 and
    rounded."""
    a_NN, b_NN = random.normal(size=(2, n, n))
    exact_NN = a_NN @ b_NN
    rounded_NN = (
        (a_NN.astype(dtype).astype(np.float32) @ b_NN.astype(dtype).astype(np.float32)).astype(dtype).astype(float)
    )
    error_NN = np.abs(rounded_NN - exact_NN)
    return error_NN.max(), error_NN.mean() / np.abs(exact_NN).mean(), np.sqrt(np.mean(error_NN**2))


def test_a_product_in_bfloat16_errs_8_times_more_than_in_float16(random):
    half, brain = (product_errors(500, dtype, random) for dtype in (np.float16, BF16))
    assert brain[1] / half[1] == pytest.approx(matmul_error_ratio(7, 10), rel=0.05)
    assert (half[1], brain[1]) == (pytest.approx(3.5e-4, rel=0.05), pytest.approx(2.84e-3, rel=0.05))
    assert (half[0], brain[0]) == (pytest.approx(0.048, rel=0.25), pytest.approx(0.437, rel=0.25))


def test_root_mean_square_errors_of_products_grow_as_the_root_of_their_size_and_the_largest_faster(random):
    small, large = (np.array(product_errors(n, BF16, random)) for n in (64, 1024))
    assert large[2] / small[2] == pytest.approx(4, rel=0.05) and large[0] / small[0] > 4.5


def test_exp_leaves_float16_between_11_08_and_11_1():
    with np.errstate(over="ignore"):
        assert np.isfinite(np.exp(np.float16(11.0859))) and np.isinf(np.exp(np.float16(11.09375)))
    assert 11.0859 < exp_limit(5, 10) < 11.09375


def test_subtracting_the_maximum_keeps_a_softmax_finite():
    logits = np.float16([12, 10])
    weights = np.exp(logits - logits.max())
    assert weights / weights.sum() == pytest.approx([0.8808, 0.1192], abs=1e-3)


def test_a_stack_of_8_rounded_products_errs_less_than_the_bound(random):
    width, layers = 64, 8
    weights_LNN = random.normal(size=(layers, width, width)) / np.sqrt(width)
    exact_N = half_N = random.normal(size=width).astype(np.float16).astype(float)
    for w_NN in weights_LNN.astype(np.float16).astype(float):
        exact_N, half_N = w_NN @ exact_N, (w_NN @ half_N).astype(np.float16).astype(float)
    growth = np.prod([np.linalg.norm(w_NN, 2) for w_NN in weights_LNN])
    error = np.linalg.norm(half_N - exact_N) / np.linalg.norm(exact_N)
    assert 0 < error < depth_error_bound(layers, width, 10, growth)


def test_scaled_to_its_largest_a_normal_tensor_in_e4m3_errs_by_2_6_percent(random):
    values = random.normal(size=10**6)
    scale = 448 / np.abs(values).max()
    rounded = (values * scale).astype(E4M3).astype(float) / scale
    assert np.linalg.norm(rounded - values) / np.linalg.norm(values) == pytest.approx(0.026, abs=1e-3)


def test_noise_of_a_batch_hides_rounding_but_not_its_bias(random):
    gradients_B = random.normal(1e-3, 1, 1024)
    rounding = np.abs(gradients_B.astype(BF16).astype(float).mean() - gradients_B.mean())
    assert rounding < gradients_B.std() / np.sqrt(1024) / 100
    total = BF16(0)
    for _ in range(1000):
        total = BF16(total + BF16(0.01))
    assert float(total) < 0.5 * 10
