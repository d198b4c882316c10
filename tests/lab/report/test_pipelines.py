"""What is said of a pipeline's time."""

import pytest

from lab.harness.result import Result, Seconds
from lab.report.pipelines import idle_lines


def said(mesh: dict[str, int] | None = None, **sizes) -> str:
    parameters = {"schedule": "1f1b", "accumulation": 1, "chunks": 1, "batch": 512} | sizes
    of = Result("ch24", "explicit", "cpu:8", mesh or {"data": 2, "pipe": 4, "tensor": 2}, parameters, Seconds(0, 0, 0))
    (line,) = idle_lines(of)
    return line


def test_four_stages_wait_three_quarters_of_one_micro_batch_and_16_percent_of_16():
    line = said()
    assert line.startswith("stages of 1f1b wait 75 % of the time, (p-1)/(m+p-1) with p=4 and m=1, if forward, ")
    assert line.endswith("; --set accumulation=16 makes it 15.8 %")
    assert said(accumulation=16).startswith("stages of 1f1b wait 15.8 % of the time")


def test_warm_up_is_three_forwards_and_drain_three_backwards_of_33():
    line = said(accumulation=8)
    assert line.endswith("took equally long: warm-up 9.09 %, steady 72.7 %, drain 18.2 %")


@pytest.mark.parametrize(
    ("sizes", "changes"),
    [
        ({"batch": 24}, "--set accumulation=12 makes it 20 %"),
        ({"batch": 2}, "--set accumulation=16 --set batch=32 makes it 15.8 %"),
        ({"batch": 40, "schedule": "interleaved", "chunks": 2, "accumulation": 4}, None),
        ({"batch": 20, "schedule": "zb_h1", "accumulation": 2}, "--set accumulation=10 makes it 9.09 %"),
    ],
)
def test_the_batch_of_a_rank_splits_into_the_micro_batches_that_are_named(sizes, changes):
    line = said(**sizes)
    assert line.endswith(f"; {changes}") if changes else "--set" not in line


def test_formulas_of_one_backward_are_not_said_of_one_in_halves():
    assert "(p-1)" not in said(schedule="zb_h1", accumulation=4) and "(v m+p-1)" in said(
        schedule="interleaved", chunks=2, accumulation=4
    )


def test_nothing_is_said_of_a_step_without_stages():
    assert not idle_lines(Result("ch15", "declared", "cpu:8", {"data": 8}, {"layers": 4}, Seconds(0, 0, 0)))
