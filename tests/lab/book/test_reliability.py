"""Chapter 26: worked numbers beyond those of the register, and what is refused."""

import numpy as np
import pytest

from lab.book.reliability import (
    blocking_save_s,
    checkpoint_overhead,
    compressed_save_s,
    compression_break_even_bytes_per_s,
    daly_interval_s,
    failures_per_h,
    longest_blocking_s,
    parallel_save_s,
    pipelined_save_s,
    restart_from_zero_s,
    scaled_learning_rate,
    shards_read,
    snapshot_s,
    system_mtbf_h,
    young_interval_s,
)


@pytest.mark.parametrize(
    ("counts", "mtbf_h", "apart_h"),
    [
        ([10_000, 1250], [20_000, 10_000], 1.6),
        ([10_000], [4], 1.44 / 3600),
        ([4096, 512, 32], [25_000, 8_000, 100_000], 4.38289),
    ],
)
def test_failures_are_96_minutes_1_44_seconds_and_4_38_hours_apart(counts, mtbf_h, apart_h):
    assert system_mtbf_h(counts, mtbf_h) == pytest.approx(apart_h, rel=1e-5)


def test_gpus_make_72_percent_of_failures_and_hosts_28():
    rates = np.array([4096, 512, 32]) / np.array([25_000, 8_000, 100_000])
    assert rates / failures_per_h([4096, 512, 32], [25_000, 8_000, 100_000]) == pytest.approx(
        [0.718, 0.2805, 0.0014], rel=2e-3
    )


def test_overheads_of_five_intervals_are_least_at_657_s():
    intervals = np.array([200, 400, 657.267, 1000, 2000])
    assert checkpoint_overhead(intervals, 30, 7200) == pytest.approx(
        [0.16389, 0.10278, 0.091287, 0.099444, 0.15389], rel=1e-4
    )
    assert young_interval_s(30, 7200) / 0.5 == pytest.approx(1314.5, rel=1e-4)


@pytest.mark.parametrize(("mtbf_h", "minutes"), [(24, 116.7), (6, 56.7), (0.25, 9.14)])
def test_daly_s_published_optima_for_five_minutes(mtbf_h, minutes):
    assert daly_interval_s(300, mtbf_h * 3600) / 60 == pytest.approx(minutes, rel=1e-3)


def test_daly_s_interval_for_30_s_is_637_and_where_saving_takes_twice_the_mtbf_that_is_it():
    assert daly_interval_s(np.array([30, 2 * 7200, 10 * 7200]), 7200) == pytest.approx([637.42, 7200, 7200], rel=1e-4)


def test_a_terabyte_in_300_s_needs_saves_of_3_s_and_333_gigabytes_a_second_if_they_block():
    assert longest_blocking_s(300, 0.01) == 3
    assert pytest.approx(333e9, rel=2e-3) == 1e12 / 3 and pytest.approx(3.33e9, rel=2e-3) == 1e12 / 300
    assert snapshot_s(1e12 / 8192, 25e9) == pytest.approx(4.88e-3, rel=1e-3)


def test_4_05_terabytes_take_810_s_through_one_writer_and_2_s_at_2_terabytes_a_second():
    assert parallel_save_s(4.05e12, 1, 100, 5e9) == pytest.approx(810)
    assert parallel_save_s(4.05e12, 16_384, 400, 5e9) == pytest.approx(2.025)


def test_a_snapshot_of_50_gigabytes_blocks_1_56_of_26_56_s_and_moves_the_optimum_from_618_to_150_s():
    assert (snapshot_s(50e9, 32e9), blocking_save_s(50e9, 32e9, 2e9)) == (1.5625, 26.5625)
    assert young_interval_s(np.array([26.5625, 1.5625]), 7200) == pytest.approx([618.47, 150.0], rel=1e-4)
    assert snapshot_s(100e9, 100e9) == 1


@pytest.mark.parametrize(
    ("write", "plain", "serial", "pipelined"),
    [(10e9, 10, 29, 25), (1.5e9, 66.67, 51.67, 26.67), (3e9, 33.33, 38.33, 25)],
)
def test_compression_at_4_gigabytes_a_second_pays_below_4_pipelined_and_2_4_serially(write, plain, serial, pipelined):
    times = 100e9 / write, compressed_save_s(100e9, 2.5, 4e9, write), pipelined_save_s(100e9, 2.5, 4e9, write)
    assert times == pytest.approx((plain, serial, pipelined), rel=1e-3)
    assert (times[2] < times[0]) == (write < 4e9) and (times[1] < times[0]) == (
        write < compression_break_even_bytes_per_s(2.5, 4e9)
    )


def test_serial_compression_breaks_even_at_2_4_gigabytes_a_second():
    even = compression_break_even_bytes_per_s(2.5, 4e9)
    assert even == pytest.approx(2.4e9, rel=1e-9) and compressed_save_s(100e9, 2.5, 4e9, even) == pytest.approx(
        100e9 / even
    )


def test_48_of_64_ranks_keep_the_batch_with_43_sequences_each_at_a_rate_of_1_0078e_3():
    batches = 48 * np.array([32, 43, 42, 64])
    assert batches.tolist() == [1536, 2064, 2016, 3072]
    assert scaled_learning_rate(1e-3, 2048, batches) == pytest.approx(
        [7.5e-4, 1.00781e-3, 9.84375e-4, 1.5e-3], rel=1e-5
    )
    assert scaled_learning_rate(1e-3, 2048, 8192, exponent=0.5) == pytest.approx(2e-3)


def test_a_month_without_checkpoints_at_0_625_failures_an_hour_has_no_end():
    assert restart_from_zero_s(720 * 3600, 1.6 * 3600) > 1e190 and np.isinf(restart_from_zero_s(1e6, 1.0))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: failures_per_h([-1], [10]), "counts=-1"),
        (lambda: failures_per_h([1], [0]), "mtbf_h=0"),
        (lambda: young_interval_s(0, 1), "save_s=0"),
        (lambda: daly_interval_s(1, -1), "mtbf_s=-1"),
        (lambda: longest_blocking_s(300, 1.5), "overhead=1.5"),
        (lambda: parallel_save_s(1, 0, 1, 1), "writers=0"),
        (lambda: shards_read(4, 8, 4), "rank=4: expected less than 4"),
        (lambda: compression_break_even_bytes_per_s(0, 1), "ratio=0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()
