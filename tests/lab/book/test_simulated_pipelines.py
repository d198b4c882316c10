"""Chapter 24's statements on schedules, decided by the simulator of chapter 16."""

import pytest

from lab.book.composition import interleaving_saves_s, pipelined_step_s
from tests.lab.book import schedules

TIMES = {"F": 1, "B": 2}


def ends(orders, chunks=1) -> float:
    return max(end for _, end in schedules.run(orders, TIMES, chunks))


def idle_share(makespan: float, micro_batches: int) -> float:
    return 1 - 3 * micro_batches / makespan


@pytest.mark.parametrize(("stages", "micro_batches", "idle"), [(8, 16, 7 / 23), (8, 32, 7 / 39), (16, 32, 15 / 47), (35, 70, 34 / 104)])
def test_1f1b_takes_m_plus_p_minus_1_turns_and_idles_for_p_minus_1(stages, micro_batches, idle):
    makespan = ends([schedules.one_f_one_b(stages, micro_batches, s) for s in range(stages)])
    assert makespan == pytest.approx(pipelined_step_s(micro_batches, stages, 3.0))
    assert idle_share(makespan, micro_batches) == pytest.approx(idle)


def test_two_chunks_save_160_of_1000_ms_where_the_difference_of_the_bubbles_says_129():
    plain = ends([schedules.one_f_one_b(16, 32, s) for s in range(16)])
    twice = ends([schedules.interleaved(16, 32, s, 2) for s in range(16)], 2)
    assert (1 - twice / plain) * 1000 == pytest.approx(interleaving_saves_s(1000, 16, 32, 2)) == pytest.approx(159.57, rel=1e-4)
    assert (idle_share(plain, 32) - idle_share(twice, 32)) * 1000 == pytest.approx(129.3, rel=1e-3)


@pytest.mark.parametrize("micro_batches", [4, 16])
def test_with_p_minus_1_forwards_ahead_on_every_stage_all_hold_p_micro_batches(micro_batches):
    held = [schedules.held(schedules.one_f_one_b(8, micro_batches, s, warm_up=7)) for s in range(8)]
    assert held == [min(micro_batches, 8)] * 8
    assert schedules.held(schedules.one_f_one_b(8, micro_batches, 7)) == 1


def test_the_printed_warm_ups_of_interleaved_stages_deadlock():
    """(p - s - 1) v forwards ahead: a last stage without any waits for its second chunk, which waits for the first stage."""
    whole = [schedules.interleaved(4, 8, s, 2) for s in range(4)]
    forward, backward = ([[op for op in order if op[0] == kind] for order in whole] for kind in "FB")
    printed = []
    for s in range(4):
        ahead = (4 - s - 1) * 2
        pairs = [op for i in range(16 - ahead) for op in (forward[s][ahead + i], backward[s][i])]
        printed.append(forward[s][:ahead] + pairs + backward[s][16 - ahead :])
    with pytest.raises(RuntimeError, match="deadlock"):
        ends(printed, 2)
