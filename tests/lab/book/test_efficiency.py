"""Chapters 28 to 31a: worked numbers beyond those of the register, and what is refused."""

from fractions import Fraction

import numpy as np
import pytest

from lab.book import architecture, compression, local_sgd, overlap, precision
from lab.book.pipeline import idle_s, idle_share, zero_bubble_idle_s


def test_a_hundredth_of_4096_squared_has_rank_20_48():
    assert compression.rank_of_ratio(4096, 4096, 0.01) == pytest.approx(20.48)
    assert 1 / compression.low_rank_ratio(4096, 4096, np.array([20, 21])) == pytest.approx([102.4, 97.52], rel=1e-4)


def test_bounds_of_qsgd_with_16_and_64_levels_are_0_98_and_0_061():
    assert compression.rounding_variance(1000, np.array([16, 64])) == pytest.approx([0.97656, 0.061035], rel=1e-4)


def test_a_hundredth_at_random_has_variance_99():
    assert compression.random_k_variance(0.01) == pytest.approx(99)


@pytest.mark.parametrize("ranks", [4, 100])
def test_sparse_gradients_of_density_1_over_n_send_what_a_dense_ring_does(ranks):
    density, elements = compression.sparse_break_even_density(ranks), 1_000_000
    assert density == Fraction(1, ranks)
    sparse = compression.sparse_all_reduce_wire_bytes(elements * density, ranks)
    assert sparse == compression.quantized_all_reduce_wire_bytes(4 * elements, ranks, 32)


def test_ten_times_smaller_gradients_make_the_step_3_16_times_faster():
    assert compression.speedup(0.1, 0.315, 0.1) == pytest.approx(3.1559, rel=1e-4)
    assert compression.speedup(0.1, 0.315, 0.1, codec_share=0.05) == pytest.approx(0.415 / 0.1365)


@pytest.mark.parametrize(("steps", "speedup"), [(10, 1.4286), (100, 1.4925)])
def test_ten_and_a_hundred_local_steps_gain_1_43_and_1_49(steps, speedup):
    assert local_sgd.local_speedup(0.1, 0.05, steps) == pytest.approx(speedup, rel=1e-4)


@pytest.mark.parametrize(("late", "rate"), [(0, 2.0), (1, 1.0), (2, 0.618034)])
def test_descent_one_and_two_updates_late_is_stable_up_to_1_and_the_golden_section(late, rate):
    assert local_sgd.stable_learning_rate(late, 1.0) == pytest.approx(rate, rel=1e-6)


def test_octaves_of_e4m3_and_e5m2_have_8_and_4_values():
    assert precision.values_per_octave(np.array([3, 2])).tolist() == [8, 4]


def test_140_ms_for_80_and_120_hide_three_quarters_of_the_shorter():
    assert overlap.overlap_share(0.08, 0.12, 0.14) == pytest.approx(0.75)
    assert overlap.overlapped_s(0.1, 0.05, 0.8) == pytest.approx(0.11)


def test_four_bucket_sizes_of_a_gigabyte_take_180_to_81_ms_at_44_to_98_8_percent():
    sizes = np.array([1e6, 10e6, 25e6, 100e6])
    assert overlap.bucketed_sync_s(1e9, sizes, 100e-6, 12.5e9) == pytest.approx([0.18, 0.09, 0.084, 0.081])
    assert overlap.bucket_efficiency(sizes, 100e-6, 12.5e9) == pytest.approx([0.4444, 0.8889, 0.9524, 0.9877], rel=1e-3)
    assert overlap.buckets_needed(1e9, overlap.least_bucket_bytes(0.9, 100e-6, 12.5e9)) == 89


def test_side_by_side_gathers_of_2_ms_are_started_1_2_and_4_layers_ahead():
    assert overlap.prefetch_depth(2, np.array([8, 1, 0.5])).tolist() == [1, 2, 4]
    assert overlap.prefetch_bytes(70e9, 2, 24) == pytest.approx(5.833e9, rel=1e-4)


def test_a_window_of_4096_needs_one_neighbour_of_chunks_of_8192_and_two_of_2048():
    assert architecture.window_hops(4096, np.array([65536, 16384, 4096]), 8).tolist() == [1, 2, 7]
    assert architecture.receptive_field_tokens(32, 4096) == 131_072


def test_latents_are_64_and_56_9_times_smaller_than_128_heads_and_4_and_3_6_than_8():
    heads, groups = (architecture.kv_bytes_per_token(g, 128, 2) for g in (128, 8))
    assert (heads, groups) == (65_536, 4096)
    without, with_rope = (architecture.latent_bytes_per_token(512, rope, 2) for rope in (0, 64))
    assert (heads / without, heads / with_rope, groups / without, groups / with_rope) == pytest.approx(
        (64, 56.89, 4, 3.556), rel=1e-3
    )


@pytest.mark.parametrize(
    ("stages", "micro_batches", "shares"), [(16, 32, (0.319, 0.135, 0.127)), (8, 16, (0.304, 0.127, 0.111))]
)
def test_1f1b_zb1p_and_dualpipe_idle_32_14_and_13_percent_of_16_stages(stages, micro_batches, shares):
    # F 1, B 2 of which the weights' gradient is 1, both at once 3.
    idle = idle_s(stages, 1, 2), zero_bubble_idle_s(stages, 1, 1, 1), architecture.dualpipe_idle_s(stages, 3, 2, 1)
    assert [float(idle_share(x, 3 * micro_batches)) for x in idle] == pytest.approx(shares, abs=6e-4)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: compression.sparse_ratio(1.5), "kept_share=1.5"),
        (lambda: compression.random_k_variance(0), "kept_share=0"),
        (lambda: compression.quantized_all_reduce_wire_bytes(1, 0, 8), "ranks=0"),
        (lambda: compression.low_rank_error([1, -1], 1), "singular_values=-1"),
        (lambda: local_sgd.local_step_s(1, 1, 0), "local_steps=0"),
        (lambda: local_sgd.mean_staleness(-2), "workers=-2"),
        (lambda: precision.epsilon(0), "mantissa_bits=0"),
        (lambda: precision.least_loss_scale(0, 5), "gradient=0: expected a number other than 0"),
        (lambda: precision.least_growth(0, 10), "weight=0: expected a number other than 0"),
        (lambda: overlap.least_bucket_bytes(0.9, -1, 1), "alpha_s=-1"),
        (lambda: overlap.overlapped_s(1, 1, 2), "overlap=2"),
        (lambda: overlap.bucket_s(1, 0, 0, 1), "buckets=0"),
        (lambda: overlap.least_bucket_bytes(1.1, 1, 1), "efficiency=1.1"),
        (lambda: architecture.window_kv_bytes(0, 1, 1, 1, 1), "tokens=0"),
        (lambda: architecture.dualpipe_idle_s(0, 1, 1, 1), "stages=0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()
