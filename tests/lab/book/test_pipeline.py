"""Chapter 16's numbers; the experiments ch16_* hold its formulas against simulated schedules."""

import pytest

from lab.book.composition import pipelined_step_s
from lab.book.pipeline import (
    hops,
    in_flight,
    stage_volume_bytes,
    throughput_per_s,
    warm_up,
    zero_bubble_share,
)
from lab.programs.pipelines.orders import one_f_one_b
from lab.programs.pipelines.simulation import Durations, simulate


@pytest.mark.parametrize(("stages", "micro_batches"), [(8, 16), (8, 32), (16, 32), (35, 70)])
def test_1f1b_takes_m_plus_p_minus_1_turns_and_then_what_is_exposed(stages, micro_batches):
    makespan = simulate(one_f_one_b(stages, micro_batches), Durations(1, 2)).makespan
    assert makespan + 5 == pytest.approx(pipelined_step_s(micro_batches, stages, 3.0, exposed_s=5.0))


@pytest.mark.parametrize("micro_batches", [1, 2, 8])
def test_the_warm_up_is_what_1f1b_does_before_its_first_pair_or_before_all_backwards(micro_batches):
    for stage, order in enumerate(one_f_one_b(4, micro_batches).orders):
        ahead, letters = int(warm_up(4, micro_batches, stage)), "".join(task.work for task in order)
        assert letters.startswith("F" * ahead + ("FB" if ahead < micro_batches else "B"))


def test_the_printed_zb_h1_bubble_of_3_5_percent_is_13_9():
    assert zero_bubble_share(8, 32, 1, 1, 0.3) == pytest.approx(0.1392, rel=1e-3)


def test_64_micro_batches_on_8_stages_make_246_145_tokens_a_second():
    assert throughput_per_s(8, 64, 0.01, 0.02) * 4 * 2048 == pytest.approx(246_145, rel=1e-5)


def test_an_interior_rank_sends_28_5_times_less_than_data_parallelism_not_4_3():
    assert 245e9 / stage_volume_bytes(134_217_728, 32) == pytest.approx(28.5, rel=2e-3)


def test_interleaving_4_stages_by_2_sends_2_33_times_as_often():
    assert hops(4, 2) / hops(4) == pytest.approx(7 / 3)


def test_a_stage_beyond_the_last_is_named():
    with pytest.raises(ValueError, match="stage=4: expected less than 4"):
        in_flight(4, 8, 4)
