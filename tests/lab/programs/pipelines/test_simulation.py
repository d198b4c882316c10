"""Times of schedules, held against what can be added up by hand."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.programs.pipelines.orders import (
    dual_pipe,
    gpipe,
    interleaved,
    one_f_one_b,
    zb_h1,
    zb_h2,
)
from lab.programs.pipelines.schedule import Work
from lab.programs.pipelines.simulation import Durations, simulate
from tests.lab.programs.pipelines import every_schedule

WHOLE = st.integers(1, 5)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(every_schedule.every, WHOLE, WHOLE, WHOLE, st.integers(0, 3))
def test_a_stage_is_busy_with_one_piece_at_a_time_and_with_all_of_its_work(
    schedule, forward, backward, weight, transfer
):
    timeline = simulate(schedule, Durations(forward, backward, weight, transfer=transfer))
    for row in timeline.rows:
        assert all(one.end <= after.start for one, after in itertools.pairwise(row))
    each = schedule.micro_batches * schedule.visits * (forward + backward + weight)
    assert set(timeline.busy) == {each}
    assert timeline.makespan >= each and timeline.idle_share == pytest.approx(1 - each / timeline.makespan)


def test_4_stages_and_8_micro_batches_take_33_units_or_28_and_a_half_in_two_chunks():
    assert {simulate(make(4, 8), Durations(1, 2)).makespan for make in (gpipe, one_f_one_b)} == {33}
    assert simulate(interleaved(4, 8, 2), Durations(Fraction(1, 2), 1)).makespan == Fraction(57, 2)


def test_zero_bubble_on_8_stages_takes_89_7_then_85_5_then_83_4():
    times = Durations(1, 1, Fraction(3, 10))
    assert [float(simulate(make(8, 32), times).makespan) for make in (one_f_one_b, zb_h1, zb_h2)] == [89.7, 85.5, 83.4]


def test_with_equal_times_no_stage_of_zb_h2_idles_between_its_first_and_last_work():
    timeline = simulate(zb_h2(8, 32), Durations(1, 1, 1))
    assert set(timeline.stage_spans) == {96} and timeline.makespan == 96 + 7


def test_a_message_takes_its_time_between_stages_only():
    """2 stages, 1 micro-batch: F, hop, F, B, hop, B."""
    assert simulate(one_f_one_b(2, 1), Durations(1, 2, transfer=5)).makespan == 2 * (1 + 2 + 5)
    assert simulate(interleaved(1, 1, 3), Durations(1, 2, transfer=5)).makespan == 9


def test_stages_and_chunks_have_their_own_times():
    assert simulate(one_f_one_b(3, 1), Durations([1, 10, 100], [2, 20, 200])).makespan == 333
    assert simulate(interleaved(2, 2, 2), Durations([[1, 10], [100, 1000]], 0)).busy == (22, 2200)
    with pytest.raises(ValueError, match="broadcast"):
        simulate(one_f_one_b(3, 1), Durations([1, 2], 1))


def test_what_overlaps_takes_its_time_together():
    apart, together = (simulate(dual_pipe(4, 8), Durations(1, 1, 1, both)) for both in (None, 2))
    overlapped = [[span for span in row if span.task.beside] for row in together.rows]
    assert {span.end - span.start for row in overlapped for span in row} == {2}
    assert apart.busy[0] - together.busy[0] == len(overlapped[0])


def test_a_whole_backward_takes_both_gradients_and_a_split_one_its_own():
    for make, longest in ((one_f_one_b, 7), (zb_h1, 3)):
        row = simulate(make(2, 2), Durations(1, 3, 4)).rows[0]
        assert {span.end - span.start for span in row if span.task.work is Work.BACKWARD} == {longest}
