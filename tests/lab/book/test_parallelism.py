import pytest

from lab.book.parallelism import (
    activation_bytes,
    dp_volume_bytes,
    gradient_bytes,
    tp_volume_bytes,
)


def test_seven_billion_bf16_parameters_over_8_ranks_send_24_5_gb():
    assert dp_volume_bytes(7 * 10**9, 2, 8) == 24_500_000_000


def test_f32_gradients_of_seven_billion_parameters_tend_to_56_gb():
    assert 55_999_000_000 < dp_volume_bytes(7 * 10**9, 4, 10**6) < 56_000_000_000


def test_activations_of_four_sequences_of_2048_at_width_4096_are_64_mib():
    assert activation_bytes(4 * 2048, 4096, 2) == 67_108_864


def test_eighty_forward_layers_of_two_blocks_over_8_ranks_send_18_79_gb():
    forward_and_backward = tp_volume_bytes(4 * 2048, 4096, 2, ranks=8, blocks=2 * 80)
    assert forward_and_backward == 2 * 18_790_481_920


def test_negative_parameters_are_refused_by_name():
    with pytest.raises(ValueError, match="parameters=-1"):
        gradient_bytes(-1, 2)


def test_zero_blocks_are_refused_by_name():
    with pytest.raises(ValueError, match="blocks=0"):
        tp_volume_bytes(8, 8, 2, ranks=2, blocks=0)
