"""Chapters 24 and 31a simulated: stages that run their list of passes in order, each once its input has come."""

from functools import cache

import pytest

from lab.book.composition import interleaving_saves_s, pipelined_step_s

Pass = tuple[str, int, int]
"""Kind, chunk of layers, micro-batch."""


def one_f_one_b(stage: int, stages: int, micro_batches: int, warm_up: int | None = None) -> list[Pass]:
    ahead = min(micro_batches, stages - 1 - stage if warm_up is None else warm_up)
    return ordered([("F", 0, i) for i in range(micro_batches)], [("B", 0, i) for i in range(micro_batches)], ahead)


def interleaved(stage: int, stages: int, micro_batches: int, chunks: int, warm_up: int | None = None) -> list[Pass]:
    """Megatron's: chunks take turns after every `stages` micro-batches (Narayanan et al. 2021)."""
    turns = [(chunk, start + i) for start in range(0, micro_batches, stages) for chunk in range(chunks) for i in range(stages)]
    ahead = 2 * (stages - 1 - stage) + (chunks - 1) * stages if warm_up is None else warm_up
    return ordered([("F", *turn) for turn in turns], [("B", chunks - 1 - chunk, i) for chunk, i in turns], ahead)


def ordered(forwards: list[Pass], backwards: list[Pass], ahead: int) -> list[Pass]:
    """`ahead` forwards, then one forward and one backward in turn, then the backwards that are left."""
    steady = [kind for pair in zip(forwards[ahead:], backwards, strict=False) for kind in pair]
    return forwards[:ahead] + steady + backwards[len(forwards) - ahead :]


def makespan(schedule: list[list[Pass]], chunks: int = 1, forward_s: float = 1.0, backward_s: float = 2.0) -> float:
    """When the last pass ends; each takes its stage a chunk's share of the time.

    Raises:
      RecursionError: passes that wait for each other.
    """
    stages, places = len(schedule), {}
    for stage, passes in enumerate(schedule):
        assert len(set(passes)) == len(passes)
        places |= {(stage, p): i for i, p in enumerate(passes)}

    @cache
    def end(stage: int, what: Pass) -> float:
        kind, chunk, micro_batch = what
        at = places[stage, what]
        depth = chunk * stages + stage + (-1 if kind == "F" else 1)
        source = (depth % stages, (kind, depth // stages, micro_batch)) if 0 <= depth < chunks * stages else None
        if source is None and kind == "B":
            source = (stage, ("F", chunk, micro_batch))
        ready = end(*source) if source else 0.0
        before = end(stage, schedule[stage][at - 1]) if at else 0.0
        return max(ready, before) + (forward_s if kind == "F" else backward_s) / chunks

    return max(end(stage, passes[-1]) for stage, passes in enumerate(schedule))


def bubble(total: float, micro_batches: int) -> float:
    return 1 - 3 * micro_batches / total


@pytest.mark.parametrize(("stages", "micro_batches", "share"), [(8, 16, 7 / 23), (8, 32, 7 / 39), (16, 32, 15 / 47), (4, 1, 3 / 4), (1, 4, 0)])
def test_1f1b_idles_p_minus_1_of_m_plus_p_minus_1(stages, micro_batches, share):
    total = makespan([one_f_one_b(r, stages, micro_batches) for r in range(stages)])
    assert bubble(total, micro_batches) == pytest.approx(share)
    assert total == pipelined_step_s(micro_batches, stages, 3.0)


@pytest.mark.parametrize(("stages", "micro_batches", "chunks", "share"), [(8, 16, 4, 7 / 71), (16, 32, 2, 15 / 79), (16, 32, 4, 15 / 143), (4, 8, 2, 3 / 19)])
def test_chunks_divide_the_idle_time_by_their_number(stages, micro_batches, chunks, share):
    total = makespan([interleaved(r, stages, micro_batches, chunks) for r in range(stages)], chunks)
    assert bubble(total, micro_batches) == pytest.approx(share)


def test_two_chunks_save_160_of_1000_ms_where_the_difference_of_the_bubbles_says_129():
    plain = makespan([one_f_one_b(r, 16, 32) for r in range(16)])
    twice = makespan([interleaved(r, 16, 32, 2) for r in range(16)], 2)
    assert (1 - twice / plain) * 1000 == pytest.approx(interleaving_saves_s(1000, 16, 32, 2)) == pytest.approx(159.57, rel=1e-4)
    assert (bubble(plain, 32) - bubble(twice, 32)) * 1000 == pytest.approx(129.3, rel=1e-3)


def live(passes: list[Pass]) -> int:
    """Most micro-batches whose activations a stage keeps at once."""
    held = [sum(1 if kind == "F" else -1 for kind, *_ in passes[:i]) for i in range(len(passes) + 1)]
    return max(held)


@pytest.mark.parametrize("micro_batches", [4, 16])
def test_stage_r_keeps_p_minus_r_micro_batches_and_with_p_minus_1_forwards_ahead_everywhere_all_keep_p(micro_batches):
    assert [live(one_f_one_b(r, 8, micro_batches)) for r in range(8)] == [min(micro_batches, 8 - r) for r in range(8)]
    assert {live(one_f_one_b(r, 8, micro_batches, warm_up=7)) for r in range(8)} == {min(micro_batches, 8)}


def test_printed_interleaved_warm_up_leaves_passes_that_wait_for_each_other():
    printed = [interleaved(r, 4, 8, 2, warm_up=(4 - 1 - r) * 2) for r in range(4)]
    with pytest.raises(RecursionError):
        makespan(printed, 2)
