"""What a schedule must be, when its work runs and what it holds."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.meshes.errors import UsageError
from lab.programs.pipelines.orders import gpipe, one_f_one_b
from lab.programs.pipelines.schedule import (
    Deadlock,
    Schedule,
    Task,
    Work,
    in_flight,
    needs,
    ticks,
)
from tests.lab.programs.pipelines import every_schedule

F, B, W = Work


def parts(schedule: Schedule, stage: int) -> list[Task]:
    return [part for task in schedule.orders[stage] for part in task.parts]


def with_order(schedule: Schedule, stage: int, order: tuple[Task, ...]) -> Schedule:
    return replace(schedule, orders=(*schedule.orders[:stage], order, *schedule.orders[stage + 1 :]))


@settings(max_examples=60, deadline=None)
@given(every_schedule.every)
def test_every_generator_does_each_piece_once_and_ends(schedule):
    table = ticks(schedule)
    for stage, order in enumerate(schedule.orders):
        assert [row[stage] for row in table if row[stage]] == list(order)
        found = parts(schedule, stage)
        assert len(found) == len(set(found))
        assert {(task.micro_batch, task.chunk) for task in found if task.work is F} == set(schedule.ways)


@settings(max_examples=60, deadline=None)
@given(st.one_of(every_schedule.plain, every_schedule.in_chunks))
def test_no_result_is_used_before_the_tick_after_it(schedule):
    """Of micro-batches through the virtual stages, told here once more without `needs`."""
    last = schedule.stages * schedule.chunks - 1
    ran = [(tick, stage, task) for tick, row in enumerate(ticks(schedule)) for stage, task in enumerate(row) if task]
    done = {(task.work, task.micro_batch, task.chunk * schedule.stages + stage): tick for tick, stage, task in ran}
    for (work, micro_batch, virtual), tick in done.items():
        if work is F and virtual > 0:
            assert done[F, micro_batch, virtual - 1] < tick
        if work is B and virtual < last:
            assert done[B, micro_batch, virtual + 1] < tick
        if work is not F:
            assert done[F if work is B else B, micro_batch, virtual] < tick


@settings(max_examples=60, deadline=None)
@given(every_schedule.every, st.data())
def test_an_order_that_lost_or_repeats_a_forward_or_backward_is_refused(schedule, data):
    stage = data.draw(st.integers(0, schedule.stages - 1))
    order = schedule.orders[stage]
    turn = data.draw(st.sampled_from([turn for turn, task in enumerate(order) if task.work is not W]))
    for mutilated in (order[:turn] + order[turn + 1 :], order[: turn + 1] + order[turn:]):
        with pytest.raises(UsageError, match=rf"stage {stage} runs . times"):
            with_order(schedule, stage, mutilated)


@settings(max_examples=60, deadline=None)
@given(every_schedule.every, st.data())
def test_a_backward_before_its_own_forward_deadlocks(schedule, data):
    stage = data.draw(st.integers(0, schedule.stages - 1))
    order = schedule.orders[stage]
    turn = next(turn for turn, task in enumerate(order) if task.work is B)
    with pytest.raises(Deadlock, match=f"stage {stage} waits before {order[turn]} for "):
        ticks(with_order(schedule, stage, (order[turn], *order[:turn], *order[turn + 1 :])))


def test_a_deadlock_names_the_stages_and_what_each_waits_for():
    """Stage 0 alternates from the start, stage 1 wants two forwards first."""
    first, second = (Task(F, 0), Task(B, 0), Task(F, 1), Task(B, 1)), (Task(F, 0), Task(F, 1), Task(B, 0), Task(B, 1))
    expected = "crossed deadlocks: stage 0 waits before B0 for B0 of stage 1, stage 1 waits before F1 for F1 of stage 0"
    with pytest.raises(Deadlock, match=expected):
        ticks(Schedule("crossed", 2, 2, 1, (first, second)))


def test_work_on_a_micro_batch_or_chunk_that_there_is_not_is_refused():
    for strange in (Task(F, 2), Task(B, 0, chunk=1)):
        with pytest.raises(UsageError, match=f"stage 0 runs 1 times {strange}"):
            with_order(gpipe(2, 2), 0, (*gpipe(2, 2).orders[0], strange))
    with pytest.raises(UsageError, match="1 task orders for 2 stages"):
        Schedule("short", 2, 2, 1, gpipe(2, 2).orders[:1])


@pytest.mark.parametrize(
    ("schedule", "rows"),
    [
        (gpipe(2, 2), ["F0 F1 - - B1 B0", "- F0 F1 B1 B0 -"]),
        (one_f_one_b(2, 3), ["F0 F1 - B0 F2 B1 - B2", "- F0 B0 F1 B1 F2 B2 -"]),
    ],
)
def test_the_ticks_of_2_stages(schedule, rows):
    assert [" ".join(str(task or "-") for task in row) for row in zip(*ticks(schedule), strict=True)] == rows


def test_ticks_as_long_as_their_longest_job_take_1f1b_58_forwards_and_gpipe_44_with_backwards_of_3():
    lasts = {F: 1, B: 3}
    steps = [
        sum(max(lasts[task.work] for task in row if task) for row in ticks(make(4, 8))) for make in (gpipe, one_f_one_b)
    ]
    assert steps == [44, 58]


def in_step(P: int, m: int) -> dict[tuple[int, Task], int]:
    """(stage, task) to its tick, where all stages go forward in even ticks and backward in odd ones."""
    forwards = {(stage, Task(F, i)): 2 * (i + stage) for stage in range(P) for i in range(m)}
    return forwards | {(stage, Task(B, i)): 2 * (i + 2 * P - 2 - stage) + 1 for stage in range(P) for i in range(m)}


def test_forwards_and_backwards_in_step_take_4_stages_and_8_micro_batches_44_too_and_hold_7_where_1f1b_holds_4():
    """Each result a tick or more before its use; 1F1B's own order waits for the longer of the two in every tick."""
    P, m, lasts, schedule = 4, 8, {F: 1, B: 3}, one_f_one_b(4, 8)
    when = in_step(P, m)
    assert all(when[need] < tick for (stage, task), tick in when.items() for need in needs(schedule, stage, task))
    longest = {tick: max(lasts[task.work] for (_, task), at in when.items() if at == tick) for tick in when.values()}
    orders = tuple(
        tuple(sorted((task for stage, task in when if stage == s), key=lambda task: when[s, task])) for s in range(P)
    )
    assert (sum(longest.values()), in_flight(replace(schedule, orders=orders))) == (44, (7, 5, 3, 1))
    assert in_flight(schedule) == (4, 3, 2, 1)


def test_a_weight_gradient_that_is_put_off_holds_its_micro_batch():
    plain = (Task(F, 0), Task(B, 0), Task(F, 1), Task(B, 1))
    late = (Task(F, 0), Task(B, 0), Task(F, 1), Task(B, 1), Task(W, 0), Task(W, 1))
    assert in_flight(Schedule("mixed", 2, 2, 1, (late, plain))) == (2, 1)
