"""Tables of schedules: every message is where the work needs it, and stashes are as large as what is in flight."""

from itertools import product

import pytest

from lab.meshes.errors import UsageError
from lab.programs.pipelines.orders import (
    dual_pipe,
    gpipe,
    interleaved,
    one_f_one_b,
    zb_h1,
    zb_h2,
)
from lab.programs.pipelines.schedule import Schedule, in_flight, ticks
from lab.programs.pipelines.table import NOWHERE, Job, table_of, to_do

SIZES = ((2, 2), (2, 6), (4, 4), (4, 12), (8, 16))
PLAIN = tuple(make(*size) for make, size in product((gpipe, one_f_one_b, zb_h1, zb_h2), SIZES))
EVERY = (*PLAIN, *(interleaved(*size, 2) for size in SIZES), interleaved(4, 8, 3))
every_schedule = pytest.mark.parametrize("schedule", EVERY, ids=lambda s: f"{s.name} {s.stages} {s.micro_batches}")


def received(schedule: Schedule) -> list[tuple]:
    """Plays the table with names instead of arrays: of each job, what it found in the slots that it reads."""
    table, P = table_of(schedule), schedule.stages
    inputs, cotangents, halves = ([{} for _ in range(P)] for _ in range(3))
    sent, found = [(None, None)] * P, []
    for tick in range(table.ticks):
        now = []
        for stage in range(P):
            job, micro_batch, chunk, x, dy, new_x, new_dy, kept = (int(column[tick, stage]) for column in table.rows)
            if new_x != NOWHERE:
                inputs[stage][new_x] = sent[(stage - 1) % P][0]
            if new_dy != NOWHERE:
                cotangents[stage][new_dy] = sent[(stage + 1) % P][1]
            way, virtual = (micro_batch, chunk * P + stage), chunk * P + stage
            if job == Job.INPUT_GRADIENT:
                halves[stage][kept] = way
            found.append(
                (Job(job), way, inputs[stage].get(x), cotangents[stage].get(dy), halves[stage].get(kept))
            ) if job else None
            forth = (micro_batch, virtual + 1) if job == Job.FORWARD else None
            back = (micro_batch, virtual - 1) if job in (Job.BACKWARD, Job.INPUT_GRADIENT) else None
            now.append((forth, back))
        sent = now
    return found


@every_schedule
def test_each_job_reads_the_messages_of_its_own_micro_batch_and_chunk(schedule):
    last = schedule.stages * schedule.chunks - 1
    for job, way, x, dy, kept in received(schedule):
        if job is Job.WEIGHT_GRADIENT:
            assert kept == way
            continue
        assert way[1] == 0 or x == way
        assert job is Job.FORWARD or way[1] == last or dy == way


@pytest.mark.parametrize("size", SIZES)
def test_gpipe_keeps_m_inputs_1f1b_and_zb_h1_as_many_as_stages_zb_h1_as_many_halves_and_zb_h2_2_p_minus_1(size):
    P, m = size
    assert [table_of(make(P, m)).kept for make in (gpipe, one_f_one_b, zb_h1, zb_h2)] == [
        0,
        0,
        min(P, m),
        min(2 * P - 1, m),
    ]
    assert [table_of(make(P, m)).inputs for make in (gpipe, one_f_one_b, zb_h1)] == [m, min(P, m), min(P, m)]
    assert [table_of(make(P, m)).cotangents for make in (gpipe, one_f_one_b, zb_h1)] == [1, 1, 1]


@every_schedule
def test_no_stash_has_room_for_more_inputs_than_are_in_flight_but_one_that_arrives_early(schedule):
    early = schedule.name == "zb_h2" and schedule.micro_batches > 2 * schedule.stages - 2
    assert table_of(schedule).inputs <= max(in_flight(schedule)) + early


@every_schedule
def test_a_table_does_what_the_orders_say_and_idles_for_the_rest(schedule):
    jobs = table_of(schedule).rows.job
    assert [[int((jobs[:, stage] == job).sum()) for job in Job] for stage in range(schedule.stages)] == to_do(schedule)
    assert len(jobs) == len(ticks(schedule))


def test_two_directions_are_refused_in_one_line():
    with pytest.raises(UsageError, match="dual_pipe: its micro-batches go through the stages in both directions"):
        table_of(dual_pipe(4, 8))
