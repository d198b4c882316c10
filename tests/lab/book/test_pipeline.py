"""Chapter 16 decided by a simulator of events that knows nothing of its formulas."""

from fractions import Fraction
from itertools import combinations

import pytest

from lab.book.pipeline import (
    bubble_share,
    hops,
    idle_s,
    in_flight,
    interleaved_in_flight,
    stage_volume_bytes,
    step_s,
    throughput_per_s,
    uneven_efficiency,
    uneven_step_s,
    warm_up,
    zero_bubble_idle_s,
    zero_bubble_in_flight,
    zero_bubble_share,
)
from tests.lab.book import schedules

SIZES = [(2, 2), (4, 4), (4, 8), (8, 8), (8, 32), (3, 7)]


def whole(schedule, P, m, times, chunks=1, **options):
    return max(end for _, end in schedules.run([schedule(P, m, s, **options) for s in range(P)], times, chunks))


@pytest.mark.parametrize("P, m", SIZES)
@pytest.mark.parametrize("backward_s", [1, 2, 1.3])
def test_gpipe_and_1f1b_take_m_plus_p_minus_1_turns(P, m, backward_s):
    times = {"F": 1, "B": backward_s}
    for schedule in (schedules.gpipe, schedules.one_f_one_b):
        assert whole(schedule, P, m, times) == pytest.approx(step_s(P, m, 1, backward_s))
    assert idle_s(P, 1, backward_s) / step_s(P, m, 1, backward_s) == pytest.approx(float(bubble_share(P, m)))


@pytest.mark.parametrize("P, m, v", [(4, 8, 2), (8, 48, 2), (8, 48, 4), (2, 4, 3)])
def test_interleaving_divides_the_idle_time_by_v(P, m, v):
    makespan = whole(schedules.interleaved, P, m, {"F": 1, "B": 2}, v, v=v)
    assert makespan == pytest.approx(step_s(P, m, 1, 2, v))
    assert (makespan - 3 * m) / makespan == pytest.approx(float(bubble_share(P, m, v)))


@pytest.mark.parametrize("P, m", SIZES)
def test_stage_s_of_1f1b_holds_p_minus_s_micro_batches_and_of_gpipe_all(P, m):
    assert [schedules.held(schedules.one_f_one_b(P, m, s)) for s in range(P)] == [in_flight(P, m, s) for s in range(P)]
    assert {schedules.held(schedules.gpipe(P, m, s)) for s in range(P)} == {m}


@pytest.mark.parametrize("P, m, v", [(4, 8, 2), (8, 16, 2), (8, 16, 4)])
def test_stage_0_of_interleaved_1f1b_holds_p_minus_1_chunks_beyond_p_stages(P, m, v):
    held = [Fraction(schedules.held(schedules.interleaved(P, m, s, v)), v) for s in range(P)]
    assert held == [interleaved_in_flight(P, v, s) for s in range(P)]
    assert held[0] == P + Fraction(P - 1, v)


def test_the_printed_warm_ups_deadlock():
    for warm in (lambda s: s, lambda s: s + 1):
        with pytest.raises(RuntimeError, match="deadlock"):
            schedules.run([schedules.one_f_one_b(4, 8, s, warm(s)) for s in range(4)], {"F": 1, "B": 1})
    schedules.run([schedules.one_f_one_b(4, 8, s, int(warm_up(4, 8, s))) for s in range(4)], {"F": 1, "B": 1})


@pytest.mark.parametrize("P, m", [(4, 8), (8, 32)])
@pytest.mark.parametrize("times", [(1, 1, 1), (1, 1, 0.3), (1.2, 1.1, 0.5)])
def test_zb_h1_idles_p_minus_1_times_f_plus_b_minus_w(P, m, times):
    makespan = whole(schedules.zero_bubble, P, m, dict(zip("FBW", times, strict=True)), k=1)
    assert makespan - m * sum(times) == pytest.approx(zero_bubble_idle_s(P, *times))
    assert 1 - m * sum(times) / makespan == pytest.approx(zero_bubble_share(P, m, *times))


def test_zb_h2_idles_9_8_of_83_4_units_and_with_equal_times_each_stage_never():
    orders = [schedules.zero_bubble(8, 32, s, 2) for s in range(8)]
    spans = schedules.run(orders, {"F": 1, "B": 1, "W": 0.3})
    assert max(end for _, end in spans) == pytest.approx(83.4) and zero_bubble_idle_s(8, 1, 1, 0.3, lag=2) == pytest.approx(9.8)
    assert {end - start for start, end in schedules.run(orders, dict.fromkeys("FBW", 1))} == {96}
    assert zero_bubble_idle_s(8, 1, 1, 1, lag=2) == 0


def test_zero_bubble_holds_8_and_15_micro_batches_on_8_stages():
    for k in (1, 2):
        assert max(schedules.held(schedules.zero_bubble(8, 32, s, k)) for s in range(8)) == zero_bubble_in_flight(8, k)


def test_the_printed_zb_h1_bubble_of_3_5_percent_is_13_9():
    assert zero_bubble_share(8, 32, 1, 1, 0.3) == pytest.approx(0.1392, rel=1e-3)


def best_contiguous_s(layer_s, stages):
    cuts = combinations(range(1, len(layer_s)), stages - 1)
    return min(max(sum(layer_s[a:b]) for a, b in zip((0, *c), (*c, len(layer_s)), strict=True)) for c in cuts)


def test_no_contiguous_split_of_four_slow_after_four_fast_layers_beats_25_percent():
    assert best_contiguous_s([10] * 4 + [20] * 4, 4) == 40
    assert uneven_efficiency([20, 20, 40, 40]) == 0.75


def test_uneven_stages_take_their_sum_and_the_slowest_m_minus_1_times():
    times = [1, 3, 2]
    done = [0.0] * 3
    for _ in range(10):
        for s, t in enumerate(times):
            done[s] = max(done[s], done[s - 1] if s else 0) + t
    assert uneven_step_s(times, 10) == done[-1]
    assert uneven_efficiency(times, 10) == pytest.approx(10 * 6 / (3 * done[-1]))


def test_64_micro_batches_on_8_stages_make_246_145_tokens_a_second():
    assert throughput_per_s(8, 64, 0.01, 0.02) * 4 * 2048 == pytest.approx(246_145, rel=1e-5)


def test_an_interior_rank_sends_28_5_times_less_than_data_parallelism_not_4_3():
    assert 245e9 / stage_volume_bytes(134_217_728, 32) == pytest.approx(28.5, rel=2e-3)


def test_interleaving_4_stages_by_2_sends_2_33_times_as_often():
    assert hops(4, 2) / hops(4) == pytest.approx(7 / 3)


def test_a_stage_beyond_the_last_is_named():
    with pytest.raises(ValueError, match="stage=4: expected less than 4"):
        in_flight(4, 8, 4)
