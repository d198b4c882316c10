"""Chapter 22 decided by a link and a device that do one thing at a time."""

import pytest

from lab.book.offloading import (
    buffered_layer_s,
    compressed_s,
    efficiency,
    host_optimizer_s,
    least_codec_bytes_per_s,
    step_s,
)


def streamed_s(layers, compute_s, transfer_s, ahead):
    """Layer i may arrive once layer i - ahead - 1 is worked off and the link is free; without buffers ahead, once the
    one before is worked off."""
    arrived, done = [], []
    for i in range(layers):
        buffer_free = done[i - ahead - 1] if i > ahead else 0.0
        arrived.append(max(buffer_free, arrived[-1] if i else 0.0) + transfer_s)
        done.append(max(arrived[i], done[-1] if i else 0.0) + compute_s)
    return done[-1]


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
@pytest.mark.parametrize("compute_s, transfer_s", [(50, 80), (50, 62.5), (80, 50)])
def test_a_buffer_ahead_hides_all_it_can_and_more_hide_no_more(compute_s, transfer_s, ahead):
    a_layer = (streamed_s(200, compute_s, transfer_s, ahead) - streamed_s(100, compute_s, transfer_s, ahead)) / 100
    assert a_layer == pytest.approx(buffered_layer_s(compute_s, transfer_s, ahead))


def test_a_step_of_100_beside_80_ms_takes_105_ms_and_185_one_after_the_other():
    assert step_s(0.100, 0.080, 0.005) == pytest.approx(0.105) and efficiency(0.100, 0.080, 0.005) == pytest.approx(
        0.952, rel=1e-3
    )
    assert pytest.approx(0.541, rel=1e-3) == 0.100 / (0.100 + 0.080 + 0.005)


def test_a_codec_of_2_gb_per_s_makes_10_gb_four_times_slower_and_one_of_50_a_quarter_faster():
    plain = 10e9 / 7e9
    assert compressed_s(10e9, 2e9, 7e9, 1.5) == pytest.approx(5.952, rel=1e-3) and plain / 5.952 == pytest.approx(
        0.24, rel=1e-2
    )
    assert plain / compressed_s(10e9, 50e9, 7e9, 1.5) == pytest.approx(1.24, rel=1e-2)
    assert compressed_s(10e9, least_codec_bytes_per_s(7e9, 1.5), 7e9, 1.5) == pytest.approx(plain)


def test_adam_of_10_billion_parameters_takes_a_host_of_200_gb_per_s_1_4_s():
    assert host_optimizer_s(10e9, 200e9) == pytest.approx(1.4)


def test_compression_by_1_is_refused():
    with pytest.raises(ValueError, match="compression=1: expected more than 1"):
        least_codec_bytes_per_s(7e9, 1)
