"""Chapter 16's numbers; the experiments ch16_* hold its formulas against simulated schedules."""

from fractions import Fraction

import numpy as np
import pytest

from lab.book.composition import pipelined_step_s
from lab.book.pipeline import (
    hops,
    in_flight,
    messages_waited,
    stage_layers,
    stage_volume_bytes,
    throughput_per_s,
    uneven_idle_s,
    uneven_step_s,
    warm_up,
    zero_bubble_share,
)
from lab.programs.pipelines.orders import gpipe, interleaved, one_f_one_b
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


UNEVEN = {
    "a slow last stage": (8, 8, 8, 9),
    "short ends": (7, 8, 8, 7),
    "a slow first stage": (9, 8, 8, 8),
    "one slow stage amid": (8, 8, 9, 8),
    "all unlike": (7, 9, 8, 7),
}


@pytest.mark.parametrize("stages", UNEVEN.values(), ids=UNEVEN)
@pytest.mark.parametrize("chunks", [2, 4])
@pytest.mark.parametrize("micro_batches", [4, 16, 32])
def test_interleaved_stages_of_unequal_work_take_m_times_the_slowest_and_a_vth_of_the_others_at_most(
    stages, chunks, micro_batches
):
    forward, backward = ([[time / chunks] * chunks for time in times] for times in (stages, np.multiply(2, stages)))
    simulated = simulate(interleaved(4, micro_batches, chunks), Durations(forward, backward)).makespan
    bound = uneven_step_s(np.multiply(3, stages), micro_batches, chunks)
    assert 0.93 * bound < simulated <= bound * (1 + 1e-9)


@pytest.mark.parametrize(("stages", "chunks", "micro_batches"), [(2, 2, 4), (4, 2, 8), (4, 3, 4), (8, 2, 16)])
def test_a_head_on_the_last_chunk_lengthens_an_interleaved_step_as_the_formula_says(stages, chunks, micro_batches):
    forward = np.full((stages, chunks), 4.0)
    forward[-1, -1] += 2
    simulated = simulate(interleaved(stages, micro_batches, chunks), Durations(forward.tolist(), forward.tolist()))
    assert simulated.makespan == pytest.approx(uneven_step_s(2 * forward.sum(1), micro_batches, chunks))


@pytest.mark.parametrize(("layers", "stages"), [(126, 16), (126, 8), (62, 8), (15, 4)])
@pytest.mark.parametrize("groups", [1, 4])
def test_interleaved_chunks_alike_but_at_the_ends_take_the_formula_at_most(layers, stages, groups):
    forward = np.reshape(stage_layers(layers, 2 * stages), (2, stages)).T
    durations = Durations(forward.tolist(), (2 * forward).tolist())
    simulated = simulate(interleaved(stages, groups * stages, 2), durations).makespan
    bound = uneven_step_s(3 * forward.sum(1), groups * stages, 2)
    assert 0.92 * bound < simulated <= bound * (1 + 1e-9)


@pytest.mark.parametrize("stages", UNEVEN.values(), ids=UNEVEN)
def test_a_stage_of_a_mean_pipeline_idles_what_is_left_of_the_step(stages):
    found = simulate(gpipe(4, 6), Durations(stages, stages))
    idle = found.makespan - sum(found.busy) / 4
    assert uneven_idle_s(np.multiply(2, stages), 6) == pytest.approx(idle)
    assert uneven_idle_s([5.0], 6) == 0


def test_126_layers_on_16_stages_are_8_each_but_7_on_the_first_and_the_last():
    assert stage_layers(126, 16) == (7, *[8] * 14, 7)
    assert stage_layers(5, 4) == (1, 2, 1, 1)


@pytest.mark.parametrize(("layers", "stages"), [(96, 8), (5, 4), (7, 4), (2, 1), (3, 2), (61, 16)])
def test_stages_differ_by_a_layer_at_most_and_the_last_has_the_fewest(layers, stages):
    found = stage_layers(layers, stages)
    assert (len(found), sum(found), found[-1]) == (stages, layers, min(found))
    assert max(found) - min(found) <= 1


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ValueError, match="layers=3: expected 4 or above"):
        stage_layers(3, 4)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("times", [(1, 2), (1, 1), (3, 1)])
def test_1f1b_waits_for_messages_in_every_micro_batch_and_interleaved_for_those_of_its_ends(stages, times):
    message_s = Fraction(1, 20)

    def waited(schedule, chunks: int = 1) -> Fraction:
        forward, backward = (Fraction(time, chunks) for time in times)
        slow, fast = (
            simulate(schedule, Durations(forward, backward, transfer=each)).makespan for each in (message_s, 0)
        )
        return (slow - fast) / message_s

    for micro_batches in range(1, 3 * stages + 2):
        assert waited(one_f_one_b(stages, micro_batches)) == messages_waited(stages, micro_batches)
    for chunks in (2, 4):
        assert waited(interleaved(stages, 2 * stages, chunks), chunks) == messages_waited(stages, 2 * stages, chunks)
    assert waited(gpipe(stages, 5)) == 2 * (stages - 1)
