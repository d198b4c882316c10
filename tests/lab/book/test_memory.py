from fractions import Fraction

import pytest

from lab.book.memory import model_state_bytes


def test_a_7b_model_holds_112_then_38_5_then_26_25_then_14_gb_on_each_of_8():
    assert [float(model_state_bytes(7 * 10**9, 8, stage)) / 1e9 for stage in range(4)] == [112, 38.5, 26.25, 14]


def test_state_is_exact_where_it_does_not_divide():
    assert model_state_bytes(1, 3, 2) == 2 + Fraction(14, 3)


def test_stage_four_is_refused():
    with pytest.raises(ValueError, match="stage=4"):
        model_state_bytes(1, 8, 4)
