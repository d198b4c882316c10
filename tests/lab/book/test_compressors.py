"""Chapter 28 on random gradients: what compressors lose, what error feedback keeps, what averaging compressed gradients
gives."""

import numpy as np
import pytest

from lab.book.compression import (
    bitmap_ratio,
    error_feedback_bound,
    low_rank_error,
    low_rank_ratio,
    qsgd_ratio,
    qsgd_variance,
    random_k_variance,
    rounding_variance,
    sparse_ratio,
    top_k_error,
    warm_up_sparsity,
)


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(28)


def qsgd(g_D: np.ndarray, levels: int, random: np.random.Generator) -> np.ndarray:
    u_D = levels * np.abs(g_D) / np.linalg.norm(g_D)
    return np.linalg.norm(g_D) * np.sign(g_D) * (np.floor(u_D) + (random.random(g_D.shape) < u_D % 1)) / levels


def top_k(g_D: np.ndarray, k: int) -> np.ndarray:
    kept_D = np.zeros_like(g_D)
    largest_K = np.argpartition(np.abs(g_D), -k)[-k:]
    kept_D[largest_K] = g_D[largest_K]
    return kept_D


def relative(error, g) -> float:
    return float(np.sum(np.square(error)) / np.sum(np.square(g)))


@pytest.mark.parametrize(("levels", "measured"), [(1, 24.3), (4, 5.33), (16, 0.647), (64, 0.0396)])
def test_qsgd_errs_less_than_its_bounds_on_1000_normal_elements(levels, measured, random):
    g_D = random.normal(size=1000)
    error = np.mean([relative(qsgd(g_D, levels, random) - g_D, g_D) for _ in range(200)])
    assert error == pytest.approx(measured, rel=0.1)
    assert error <= qsgd_variance(1000, levels) and error <= rounding_variance(1000, levels)


def test_qsgd_and_ternary_rounding_are_right_on_average(random):
    g_D = random.normal(size=50)
    top = np.abs(g_D).max()
    ternary = [top * np.sign(g_D) * (random.random(50) < np.abs(g_D) / top) for _ in range(20_000)]
    for rounded in (ternary, [qsgd(g_D, 4, random) for _ in range(20_000)]):
        assert np.mean(rounded, axis=0) == pytest.approx(g_D, abs=0.1)


def test_a_sign_and_one_of_256_levels_take_9_bits_and_top_1_percent_64_an_element_kept():
    levels = np.arange(256)
    assert len(np.unique(levels)) * 2 == 2 ** (qsgd_ratio(256) * 32)
    pairs = np.zeros(10, [("index", np.uint32), ("value", np.float32)])
    assert pairs.nbytes / np.zeros(1000, np.float32).nbytes == pytest.approx(sparse_ratio(0.01))


def test_top_1_percent_with_a_bitmap_is_24_times_smaller_not_100():
    mask, values = np.packbits(np.zeros(32_000, bool)), np.zeros(320, np.float32)
    compressed = (mask.nbytes + values.nbytes) / np.zeros(32_000, np.float32).nbytes
    assert compressed == pytest.approx(bitmap_ratio(0.01)) and 1 / compressed == pytest.approx(24.24, rel=1e-3)


def test_four_bit_levels_in_bytes_are_4_times_smaller_and_packed_8_times(random):
    levels_D = random.integers(0, 16, 1000).astype(np.uint8)
    packed = levels_D[::2] << 4 | levels_D[1::2]
    dense = np.zeros(1000, np.float32)
    assert (dense.nbytes / levels_D.nbytes, dense.nbytes / packed.nbytes) == (4, 8)


def test_top_k_errs_at_most_by_1_less_the_share_kept_and_random_k_by_its_variance(random):
    g_D, worst_D = random.normal(size=1000), np.ones(1000)
    assert relative(g_D - top_k(g_D, 100), g_D) < top_k_error(0.1)
    assert relative(worst_D - top_k(worst_D, 100), worst_D) == pytest.approx(top_k_error(0.1))
    random_k = [np.where(random.permutation(1000) < 100, 10 * g_D, 0) - g_D for _ in range(2000)]
    assert np.mean([relative(error, g_D) for error in random_k]) == pytest.approx(random_k_variance(0.1), rel=0.02)


def errors(kept: int, gradients) -> tuple[np.ndarray, np.ndarray]:
    """Norms of the error fed back after each step, and what is left when all that was sent is taken from all
    gradients."""
    error_D, sent_D, total_D, norms = 0.0, 0.0, 0.0, []
    for g_D in gradients:
        out_D = top_k(g_D + error_D, kept)
        error_D, sent_D, total_D = g_D + error_D - out_D, sent_D + out_D, total_D + g_D
        norms.append(np.linalg.norm(error_D))
    return np.array(norms), total_D - sent_D - error_D


def test_fed_back_errors_grow_to_4_gradients_within_the_bound_and_nothing_is_lost(random):
    norms, lost_D = errors(100, (random.normal(size=10_000) for _ in range(400)))
    assert np.abs(lost_D).max() < 1e-10
    assert norms[-100:].mean() == pytest.approx(404, rel=0.05)
    assert norms.max() ** 2 < error_feedback_bound(0.01) * 10_000


def test_fed_back_errors_hold_16_times_the_squares_of_gradients_not_less_than_they(random):
    norms, _ = errors(100, (random.normal(size=10_000) for _ in range(1000)))
    assert np.sum(norms**2) / (1000 * 10_000) == pytest.approx(16, rel=0.05)


def test_gradients_shrinking_as_1_over_root_t_leave_errors_up_to_135_not_2(random):
    norms, _ = errors(100, (random.normal(size=10_000) / np.sqrt(t) for t in range(1, 1001)))
    assert norms.max() == pytest.approx(135, rel=0.05) and norms.mean() == pytest.approx(27, rel=0.1)
    assert norms[-1] == pytest.approx(13.1, rel=0.05)


def test_top_k_leaves_the_largest_element_of_equal_ones_as_large_as_it_was():
    equal_D = np.ones(100)
    assert np.abs(equal_D - top_k(equal_D, 10)).max() == 1 > 1 - 10 / 100


def test_with_feedback_top_1_percent_still_loses_nine_tenths_of_each_vector(random):
    fed_D = np.zeros(10_000)
    for _ in range(400):
        fed_D = fed_D + random.normal(size=10_000)
        left_D = fed_D - top_k(fed_D, 100)
        loss, fed_D = relative(left_D, fed_D), left_D
    assert loss > 0.9


def test_clipped_at_2_5_deviations_the_ten_largest_of_10000_are_all_equal(random):
    g_D = random.normal(size=10_000)
    largest_K = np.argsort(np.abs(g_D))[-10:]
    clipped_D = np.clip(g_D, -2.5 * g_D.std(), 2.5 * g_D.std())
    assert len(set(np.abs(g_D[largest_K]))) == 10 and len(set(np.abs(clipped_D[largest_K]))) == 1


def test_sparsity_warms_up_through_five_published_steps():
    assert [round(100 * warm_up_sparsity(e), 2) for e in range(5)] == [75, 93.75, 98.44, 99.61, 99.9]


def power_sgd(gradients_NRC: np.ndarray, start_CK: np.ndarray) -> np.ndarray:
    """The rank-k mean that two all_reduces give: of G Q, and of its transpose applied to the orthonormal basis."""
    basis_RK, _ = np.linalg.qr(np.mean([g_RC @ start_CK for g_RC in gradients_NRC], axis=0))
    return basis_RK @ np.mean([g_RC.T @ basis_RK for g_RC in gradients_NRC], axis=0).T


def test_averaging_both_factors_compresses_the_mean_and_bases_made_locally_do_not(random):
    gradients_NRC, start_CK = random.normal(size=(4, 24, 16)), random.normal(size=(16, 3))
    mean_RC = gradients_NRC.mean(axis=0)
    assert power_sgd(gradients_NRC, start_CK) == pytest.approx(power_sgd(mean_RC[None], start_CK))
    local = np.mean([power_sgd(g_RC[None], start_CK) for g_RC in gradients_NRC], axis=0)
    assert not np.allclose(local, power_sgd(mean_RC[None], start_CK))
    assert np.linalg.matrix_rank(local) == 4 * 3


def test_two_factors_of_rank_4_are_512_times_smaller_than_4096_squared():
    factors = np.zeros((4096, 4), np.float32).nbytes * 2
    assert factors / (4096 * 4096 * 4) == low_rank_ratio(4096, 4096, 4)


@pytest.mark.slow
@pytest.mark.parametrize("decay", [0.5, 0.7, 1.0])
def test_a_matrix_truncated_by_its_svd_errs_as_its_spectrum_says(decay, random):
    spectrum_N = np.arange(1, 129.0) ** -decay
    u_NN, v_NN = (np.linalg.qr(random.normal(size=(128, 128)))[0] for _ in range(2))
    matrix_NN = u_NN * spectrum_N @ v_NN
    left, values, right = np.linalg.svd(matrix_NN)
    truncated_NN = left[:, :20] * values[:20] @ right[:20]
    assert np.linalg.norm(matrix_NN - truncated_NN) / np.linalg.norm(matrix_NN) == pytest.approx(
        low_rank_error(spectrum_N, 20)
    )


@pytest.mark.parametrize(("decay", "error"), [(0.5, 0.772), (0.7, 0.467), (1.0, 0.172)])
def test_rank_20_of_4096_loses_4_to_5_times_what_is_printed(decay, error):
    assert low_rank_error(np.arange(1, 4097.0) ** -decay, 20) == pytest.approx(error, abs=5e-4)


@pytest.mark.parametrize(("decay", "rank"), [(0.5, 3748), (0.7, 1985), (1.0, 60)])
def test_ten_percent_of_error_need_ranks_of_60_to_3748(decay, rank):
    spectrum = np.arange(1, 4097.0) ** -decay
    assert low_rank_error(spectrum, rank) <= 0.1 < low_rank_error(spectrum, rank - 1)


def test_dividing_a_sparse_sum_by_its_contributors_is_not_the_mean(random):
    sent_ND = np.stack([top_k(g_D, 2) for g_D in random.normal(size=(4, 20))])
    contributors_D = np.maximum(1, np.count_nonzero(sent_ND, axis=0))
    once = contributors_D == 1
    assert (sent_ND.sum(axis=0) / contributors_D)[once] == pytest.approx(4 * sent_ND.mean(axis=0)[once])


def test_a_second_moment_fed_with_signs_forgets_which_coordinates_are_small(random):
    scales_D = np.array([1.0, 0.01])
    gradients_TD = random.normal(size=(1000, 2)) * scales_D
    signs_TD = np.linalg.norm(gradients_TD, axis=1, keepdims=True) / np.sqrt(2) * np.sign(gradients_TD)
    true, compressed = np.mean(gradients_TD**2, axis=0), np.mean(signs_TD**2, axis=0)
    assert true[0] / true[1] > 5_000 and compressed[0] == pytest.approx(compressed[1])
