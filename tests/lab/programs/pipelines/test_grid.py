"""Every schedule at every size: idle ticks are what the formula says, or the size is refused with the reason."""

from functools import cache
from itertools import product

import pytest

from lab.book.architecture import dualpipe_idle_s
from lab.book.pipeline import idle_s, zero_bubble_idle_s, zero_bubble_in_flight
from lab.meshes.errors import UsageError
from lab.programs.pipelines.domain import LAGS
from lab.programs.pipelines.orders import named
from lab.programs.pipelines.schedule import Schedule, in_flight, ticks
from lab.programs.pipelines.simulation import Durations, simulate

STAGES, MICRO_BATCHES, CHUNKS = (2, 4, 8, 16), (4, 8, 32, 64), (1, 2, 4)
SIZES = tuple(product(STAGES, MICRO_BATCHES))


@cache
def turns(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """[stage]: the ticks in which it works."""
    table = ticks(schedule)
    return tuple(tuple(tick for tick, row in enumerate(table) if row[stage]) for stage in range(schedule.stages))


def idle_ticks(schedule: Schedule) -> set[int]:
    """Of each stage, in a step."""
    end = 1 + max(worked[-1] for worked in turns(schedule))
    return {end - len(worked) for worked in turns(schedule)}


def gaps(schedule: Schedule) -> int:
    """Of the stage that has most of them, between its first and its last work."""
    return max(worked[-1] - worked[0] + 1 - len(worked) for worked in turns(schedule))


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_gpipe_and_1f1b_idle_2_p_minus_1_ticks_on_every_stage(name):
    for P, m in SIZES:
        assert idle_ticks(named(name, P, m)) == {idle_s(P, 1, 1)} == {2 * (P - 1)}


@pytest.mark.parametrize("chunks", CHUNKS)
def test_interleaved_idles_as_many_ticks_of_a_chunk_or_is_refused_where_p_does_not_divide_m_or_there_is_one_chunk(
    chunks,
):
    for P, m in SIZES:
        if m % P or chunks == 1:
            with pytest.raises(
                UsageError,
                match=(
                    f"interleaved: {m} micro-batches and {chunks} chunks on {P} stages; expected a multiple of {P} "
                    "micro-batches and 2"
                ),
            ):
                named("interleaved", P, m, chunks)
        else:
            assert idle_ticks(named("interleaved", P, m, chunks)) == {chunks * idle_s(P, 1, 1, chunks)}


@pytest.mark.parametrize("name", LAGS)
def test_zero_bubbles_have_the_gaps_of_their_formula_where_micro_batches_fill_them_and_more_elsewhere(name):
    for P, m in SIZES:
        schedule, formula = named(name, P, m), zero_bubble_idle_s(P, 1, 1, 1, LAGS[name])
        assert (gaps(schedule) == formula) == (m >= zero_bubble_in_flight(P, LAGS[name]))
        assert max(in_flight(schedule)) == min(m, zero_bubble_in_flight(P, LAGS[name]))


def test_dual_pipe_idles_half_p_minus_1_times_2_or_is_refused_below_2_p_micro_batches():
    """In forwards, as its tasks last 1 to 3 of them."""
    for P, m in SIZES:
        if m < 2 * P:
            with pytest.raises(
                UsageError,
                match=f"dual_pipe: {m} micro-batches on {P} stages; expected even numbers of both and at least {2 * P}",
            ):
                named("dual_pipe", P, m)
        else:
            timeline = simulate(named("dual_pipe", P, m), Durations(1, 1, 1))
            assert timeline.makespan - min(timeline.busy) == dualpipe_idle_s(P, 3, 2, 1) == P - 2
