import pytest

from lab.book.parallelism import dp_volume_bytes
from lab.book.sharding import (
    hybrid_across_wire_bytes,
    state_reduction,
    zero3_overhead,
    zero3_volume_bytes,
    zero3_weight_bytes,
    zero_volume_bytes,
)


def test_seven_billion_bf16_parameters_over_8_ranks_send_36_75_gb_under_zero3():
    assert zero3_volume_bytes(7 * 10**9, 2, 8) == 36_750_000_000


def test_zero3_sends_half_again_what_data_parallelism_does():
    assert zero3_volume_bytes(1234, 4, 16) == dp_volume_bytes(1234, 4, 16) * 3 / 2


def test_thirteen_billion_parameters_of_16_bytes_over_32_ranks_keep_6_5_gb():
    assert zero3_weight_bytes(13 * 10**9, 16, 32) == 6_500_000_000


def test_no_ranks_are_refused_by_name():
    with pytest.raises(ValueError, match="ranks=0"):
        zero3_weight_bytes(8, 2, 0)


def test_stages_send_24_5_24_5_61_25_and_147_gb_for_four_micro_batches_of_a_7b_model():
    assert [float(zero_volume_bytes(7 * 10**9, 2, 8, stage, 4)) / 1e9 for stage in range(4)] == [24.5, 24.5, 61.25, 147]


def test_stage_3_sends_what_its_own_formula_says():
    assert zero_volume_bytes(7 * 10**9, 2, 8, 3) == zero3_volume_bytes(7 * 10**9, 2, 8)


def test_a_7b_step_of_2048_tokens_sends_0_421_s_beside_0_573_s_of_computation():
    assert zero3_overhead(7e9, 32, 2048, 2, 150e12, 1e-5, 100e9) == pytest.approx(0.421 / 0.5734, rel=1e-3)


def test_hsdp_of_8_by_8_sends_36_75_gb_inside_and_3_0625_across():
    assert zero_volume_bytes(7 * 10**9, 2, 8, 3) == 36.75e9
    assert hybrid_across_wire_bytes(14 * 10**9, 8, 8) == 3.0625e9


def test_state_shrinks_2_91_and_4_27_times_on_8():
    assert [float(state_reduction(8, stage)) for stage in (1, 2, 3)] == pytest.approx([32 / 11, 64 / 15, 8])
