import pytest

from lab.book.collectives import all_gather_wire_bytes, all_reduce_wire_bytes, reduce_scatter_wire_bytes


def test_all_reduce_of_64_mib_over_8_ranks_sends_112_mib():
    assert all_reduce_wire_bytes(67_108_864, 8) == 117_440_512


def test_gather_and_scatter_of_64_mib_over_8_ranks_send_56_mib_each():
    assert all_gather_wire_bytes(67_108_864, 8) == reduce_scatter_wire_bytes(67_108_864, 8) == 58_720_256


def test_one_rank_sends_nothing():
    assert all_reduce_wire_bytes(4096, 1) == 0


def test_no_ranks_is_refused_by_name():
    with pytest.raises(ValueError, match="ranks=0"):
        all_reduce_wire_bytes(4096, 0)
