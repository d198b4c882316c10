"""Which schedules the formulas of split backwards hold for, by numbers worked out by hand."""

import pytest

from lab.programs.pipelines.domain import Times, refusal
from lab.programs.pipelines.orders import zb_h1

EVEN, LONG_WEIGHT = Times(1, 1, 1, 3), Times(1, 1, 2, 4)


@pytest.mark.parametrize(
    ("stages", "micro_batches", "times", "said"),
    [
        (4, 8, EVEN, None),
        (4, 3, EVEN, "refused: 3 micro-batches never fill 4 stages; expected 4 or more"),
        (4, 8, LONG_WEIGHT, "refused: a weight gradient of length 2 does not fit into gaps of 1; expected no more"),
        (1, 1, LONG_WEIGHT, None),
    ],
    ids=["filled", "not filled", "no room for a weight", "one stage idles never"],
)
def test_a_formula_for_split_backwards_is_refused_where_stages_are_not_filled(stages, micro_batches, times, said):
    assert refusal(zb_h1(stages, micro_batches), times) == said
