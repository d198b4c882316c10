"""The schedules of the literature: what they hold, and which sizes they refuse."""

import pytest
from hypothesis import given, settings

from lab.meshes.errors import UsageError
from lab.programs.pipelines.orders import (
    dual_pipe,
    eager_1f1b,
    gpipe,
    interleaved,
    one_f_one_b,
    zb_h1,
    zb_h2,
)
from lab.programs.pipelines.schedule import Work, in_flight, needs, ticks, ticks_in_lockstep
from tests.lab.programs.pipelines import every_schedule


@settings(max_examples=40, deadline=None)
@given(every_schedule.STAGES, every_schedule.MICRO_BATCHES)
def test_gpipe_holds_m_and_1f1b_p_minus_s_and_zb_h1_p_and_zb_h2_2_p_minus_1(P, m):
    assert in_flight(gpipe(P, m)) == (m,) * P
    assert in_flight(one_f_one_b(P, m)) == tuple(min(P - s, m) for s in range(P))
    assert in_flight(zb_h1(P, m)) == (min(P, m),) * P
    assert in_flight(zb_h2(P, m)) == (min(2 * P - 1, m),) * P


@settings(max_examples=40, deadline=None)
@given(every_schedule.in_chunks)
def test_interleaved_1f1b_holds_its_warm_up_and_one_chunk_more(schedule):
    P, m, v = schedule.stages, schedule.micro_batches, schedule.chunks
    assert in_flight(schedule) == tuple(min(2 * (P - s - 1) + (v - 1) * P + 1, m * v) for s in range(P))


@settings(max_examples=20, deadline=None)
@given(every_schedule.two_way)
def test_dual_pipe_holds_p_plus_1_and_gives_each_direction_half(schedule):
    assert in_flight(schedule) == (schedule.stages + 1,) * schedule.stages
    half = schedule.micro_batches // 2
    for order in schedule.orders:
        forwards = [part for task in order for part in task.parts if part.work is Work.FORWARD]
        assert [sorted(part.micro_batch for part in forwards if part.chunk == way) for way in (0, 1)] == [
            [*range(half)],
            [*range(half, 2 * half)],
        ]


def test_dual_pipe_on_4_stages_overlaps_all_pairs_but_the_first_in_the_middle():
    end, middle = (" ".join(map(str, order)) for order in dual_pipe(4, 8).orders[:2])
    assert end == "F0 F1 F2 F4.1 B4.1 W4.1 F5.1 F3+B5.1 F6.1+B0 B6.1 F7.1+B1 B7.1 B2 W2 B3 W3"
    assert middle == "F0 F4.1 F1 F5.1 F2 B4.1 F6.1+B0 F3+B5.1 F7.1+B1 B6.1 B2 B7.1 B3 W7.1 W3"


def test_4_stages_and_8_micro_batches_take_22_ticks_or_38_in_two_chunks_or_27_with_weights_apart():
    assert [len(ticks(make(4, 8))) for make in (gpipe, one_f_one_b, zb_h1, zb_h2)] == [22, 22, 27, 27]
    assert len(ticks(interleaved(4, 8, 2))) == 38


def test_in_lockstep_gpipe_and_eager_1f1b_take_no_longer_and_1f1b_32_ticks():
    makes = (gpipe, eager_1f1b, one_f_one_b)
    assert [(len(ticks(make(4, 8))), len(ticks_in_lockstep(make(4, 8)))) for make in makes] == [
        (22, 22),
        (22, 22),
        (22, 32),
    ]
    assert in_flight(eager_1f1b(4, 8)) == (7, 5, 3, 1)


@given(every_schedule.plain)
@settings(max_examples=30, deadline=None)
def test_in_lockstep_all_stages_do_one_kind_of_work_at_a_tick_in_the_order_of_the_schedule(schedule):
    rows = ticks_in_lockstep(schedule)
    assert all(len({task.work for task in row if task}) == 1 for row in rows)
    assert tuple(tuple(filter(None, column)) for column in zip(*rows, strict=True)) == schedule.orders


def test_a_micro_batch_hops_p_v_minus_1_times_in_each_direction():
    for schedule, hops in ((one_f_one_b(4, 8), 3), (interleaved(4, 8, 2), 7)):
        tasks = [(stage, task) for stage, order in enumerate(schedule.orders) for task in order]
        crossing = [task.work for stage, task in tasks for place, _ in needs(schedule, stage, task) if place != stage]
        assert {work: crossing.count(work) for work in crossing} == {Work.FORWARD: 8 * hops, Work.BACKWARD: 8 * hops}


@pytest.mark.parametrize(
    ("make", "sizes", "expected"),
    [
        (interleaved, (4, 6, 2), "a multiple of 4 micro-batches"),
        (interleaved, (4, 8, 1), "2 chunks or more"),
        (dual_pipe, (3, 8), "even numbers"),
        (dual_pipe, (4, 6), "at least 8 micro-batches"),
        (gpipe, (0, 4), "at least one of each"),
        (
            one_f_one_b,
            (100_000, 64),
            "stages=100000, micro_batches=64, chunks=1: 6,400,000 visits of micro-batches to stages; expected "
            "65,536 at most",
        ),
        (gpipe, (2, 32_769), "65,538 visits"),
        (interleaved, (4, 8_196, 2), "65,568 visits"),
        (dual_pipe, (2, 10**12), "2,000,000,000,000 visits"),
    ],
)
def test_sizes_that_a_schedule_has_no_order_for_are_refused(make, sizes, expected):
    with pytest.raises(UsageError, match=expected):
        make(*sizes)
