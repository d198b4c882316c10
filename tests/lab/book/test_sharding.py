import pytest

from lab.book.parallelism import dp_volume_bytes
from lab.book.sharding import zero3_volume_bytes, zero3_weight_bytes


def test_seven_billion_bf16_parameters_over_8_ranks_send_36_75_gb_under_zero3():
    assert zero3_volume_bytes(7 * 10**9, 2, 8) == 36_750_000_000


def test_zero3_sends_half_again_what_data_parallelism_does():
    assert zero3_volume_bytes(1234, 4, 16) == dp_volume_bytes(1234, 4, 16) * 3 / 2


def test_thirteen_billion_parameters_of_16_bytes_over_32_ranks_keep_6_5_gb():
    assert zero3_weight_bytes(13 * 10**9, 16, 32) == 6_500_000_000


def test_no_ranks_are_refused_by_name():
    with pytest.raises(ValueError, match="ranks=0"):
        zero3_weight_bytes(8, 2, 0)
