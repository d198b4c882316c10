"""Chapter 27: counts against enumeration, fits against what they were made of, and the rules of a first guess."""

import numpy as np
import pytest

from lab.book.advisor import first_guess
from lab.book.composition import (
    saved_activation_bytes,
    split_state_bytes,
    stage_compute_s,
)
from lab.book.configuration import (
    broken_rules,
    bubble_micro_batches,
    calibrated_scales,
    communication_share,
    equal_bubble_micro_batches,
    expected_improvement,
    layout_count,
    layouts,
    modelled_step_s,
    relative_error,
    search_h,
)
from lab.book.parallelism import dp_volume_bytes, tp_volume_bytes
from lab.book.pipeline import bubble_share

GPT3 = {"layers": 96, "heads": 96, "kv_heads": 96, "length": 2048, "batch": 1024}
LLAMA3 = {"layers": 126, "heads": 128, "kv_heads": 8, "vocab": 128256, "length": 8192, "batch": 2048}


def divisor_tuples(devices: int, most: int, axes: int) -> int:
    """Ordered factorisations of a number into factors of at most `most`."""
    if axes == 0:
        return devices == 1
    return sum(divisor_tuples(devices // d, most, axes - 1) for d in range(1, most + 1) if devices % d == 0)


@pytest.mark.parametrize(("devices", "count"), [(10_000, 80), (16_384, 185), (8_192, 255), (4_096, 320)])
def test_five_degrees_up_to_16_have_80_to_320_layouts(devices, count):
    assert divisor_tuples(devices, 16, 5) == count
    if devices == 10_000:
        assert layout_count(devices, [range(1, 17)] * 5) == count


def test_1024_devices_have_24_layouts_and_4032_configurations():
    found = layouts(1024, [[2**i for i in range(11)], [1, 2, 4, 8, 16, 32], [1, 2, 4, 8]])
    assert len(found) == 24 and len(set(found)) == 24 and 24 * 4 * 6 * 7 == 4032


def test_layouts_of_examples_have_t_c_of_32_and_more_that_the_search_forbids():
    menus = [[8], [16], [8], [4], [4]]
    assert layouts(16384, menus) == [(8, 16, 8, 4, 4)] and 8 * 4 > 8


def test_gpt3_s_prime_vocabulary_and_llama_s_126_layers_break_one_rule_each():
    assert broken_rules(**GPT3, vocab=50257, data=64, pipe=8, tensor=2, micro_batch=2, chunks=2) == ("tensor | vocab",)
    assert broken_rules(**GPT3, vocab=51200, data=64, pipe=8, tensor=2, micro_batch=2, chunks=2) == ()
    assert broken_rules(**LLAMA3, data=128, pipe=16, tensor=8) == ("pipe chunks | layers",)
    assert 16 * 8 - 2 == 126


def test_four_context_ranks_cut_a_sequence_into_eight():
    assert broken_rules(**GPT3 | {"length": 24}, vocab=1, context=4) == ()
    assert broken_rules(**GPT3 | {"length": 12}, vocab=1, context=4) == ("2 context | length",)


def test_ranks_along_the_expert_axis_hold_sequences_of_their_own():
    assert broken_rules(**GPT3, vocab=51200, data=64, expert=32, experts=64) == ("data expert micro_batch | batch",)


def test_a_gpt3_step_on_64_by_8_by_2_takes_6_46_s_of_which_tensor_parallelism_is_129_ms():
    tokens = 2 * 2048
    compute = 8 * stage_compute_s(175e9, tokens, 8, 2, 989e12, 0.5)
    tensor = float(tp_volume_bytes(tokens, 12288, 2, ranks=2, blocks=2 * 12 * 8)) / 300e9
    data = float(dp_volume_bytes(175 * 10**9 // 16, 2, 64)) / 100e9
    assert (compute, tensor, data) == pytest.approx((4.349, 0.1288, 0.4307), rel=1e-3)
    step = modelled_step_s(compute, tensor, 0.01611, data, float(bubble_share(8, 8, 2)))
    assert step == pytest.approx(6.4595, rel=1e-3) and data < 0.8 * compute


def test_the_printed_terms_without_messages_add_up_to_6_259_s():
    assert modelled_step_s(4.34863, 0, 0, 0.4307, 7 / 23) + 0.00805 == pytest.approx(6.259, rel=1e-3)


def test_data_parallelism_beyond_80_percent_of_computation_shows():
    assert modelled_step_s(1.0, 0, 0, np.array([0.5, 0.8, 1.0]), 0.0).tolist() == pytest.approx([1.0, 1.0, 1.2])


def test_one_layer_of_30_and_13_billion_keeps_998_and_1426_megabytes():
    kept = [saved_activation_bytes(b * 4096, embed, 1, 4) / 1e6 for b, embed in ((4, 7168), (8, 5120))]
    assert kept == pytest.approx([998.2, 1426.1], rel=1e-4)


def test_divided_twice_by_d_zero3_seems_to_take_a_sixth_of_what_it_does():
    per_device = 30e9 / 16
    printed = per_device / 16 * 2 + per_device / 16 * 12 / 16 + per_device / 16 * 2 / 16
    assert pytest.approx(printed / 1e9, rel=2e-3) == (0.234 + 0.088 + 0.0146)
    assert split_state_bytes(30_000_000_000, 4, 4, 16, 3) / printed == pytest.approx(5.57, rel=1e-2)


def test_a_fifth_of_all_time_is_a_quarter_of_computation():
    assert communication_share(0.25, 1.0) == 0.2 != communication_share(0.2, 1.0)


def test_times_made_with_1_3_and_0_7_give_back_these_scales():
    random = np.random.default_rng(27)
    compute, communication, rest = random.uniform(1, 5, (3, 20))
    assert calibrated_scales(compute, communication, rest, 1.3 * compute + 0.7 * communication + rest) == pytest.approx(
        (1.3, 0.7)
    )


def test_errors_are_relative_to_what_was_measured():
    assert relative_error(np.array([1.1, 0.9]), 1.0) == pytest.approx([0.1, -0.1])


@pytest.mark.parametrize(("mean", "deviation"), [(1.0, 1.0), (2.0, 0.5), (0.5, 0.2)])
def test_expected_improvement_is_the_mean_of_sampled_ones(mean, deviation):
    samples = np.random.default_rng(27).normal(mean, deviation, 10**6)
    assert expected_improvement(1.0, mean, deviation) == pytest.approx(np.maximum(0, 1.0 - samples).mean(), rel=0.02)


def test_50_guided_evaluations_take_5_hours_and_1280_dollars_where_1000_take_100_and_25600():
    hours = np.array([search_h(n, 0.1) for n in (1000, 50)])
    assert hours.tolist() == [100, 5] and (hours * 64 * 4).tolist() == [25_600, 1280]


def test_eight_stages_need_38_micro_batches_for_the_bubble_of_16_on_four():
    assert np.ceil(equal_bubble_micro_batches(16, 4, 8)) == 38
    assert bubble_share(8, 38) < bubble_share(4, 16) < bubble_share(8, 37)
    assert [bubble_share(p, bubble_micro_batches(p, 0.1)) for p in (4, 8, 16)] == pytest.approx([0.1] * 3)


@pytest.mark.parametrize(
    ("model", "devices", "length", "batch", "guess"),
    [
        ((13e9, 40, 5120, 40), 64, 4096, 1024, (2, 4, 8, 1, 16, 32)),
        ((175e9, 96, 12288, 96), 1024, 2048, 1024, (16, 8, 8, 1, 16, 4)),
        ((70e9, 80, 8192, 64), 128, 8192, 128, (2, 8, 8, 1, 8, 8)),
        ((7e9, 32, 4096, 32), 8, 4096, 256, (2, 1, 4, 1, 8, 16)),
    ],
)
def test_the_printed_rules_give_t8_p4_d2_for_13_billion_not_t4_p4_d4(model, devices, length, batch, guess):
    found = first_guess(*model, devices, length, batch, 80e9)
    assert (found.data, found.pipe, found.tensor, found.stage, found.micro_batch, found.micro_batches) == guess


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: layouts(0, [[1]]), "devices=0"),
        (lambda: modelled_step_s(1, 0, 0, 0, 1.5), "bubble=1.5"),
        (lambda: broken_rules(**LLAMA3, pipe=0), "pipe=0"),
        (lambda: equal_bubble_micro_batches(16, 1, 8), "pipe=1: expected 2 or above"),
        (lambda: expected_improvement(1, 1, 0), "deviation_s=0"),
        (lambda: first_guess(0, 1, 1, 1, 1, 1, 1, 1), "parameters=0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()
