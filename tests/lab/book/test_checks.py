from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from lab.book.checks import (
    above,
    at_least,
    below,
    count,
    finite,
    not_negative,
    not_zero,
    positive,
    positive_or_infinite,
    ratio,
    real,
    share,
    whole,
)


@pytest.mark.parametrize("refused", [0, -1, 0.0, float("nan"), Fraction(0), Fraction(-1, 2), "8", True])
def test_what_is_not_above_zero_is_refused_by_name(refused):
    with pytest.raises(ValueError, match=f"ranks={refused}: expected a number above 0"):
        positive(payload_bytes=1, ranks=refused)


def test_the_first_refused_value_of_an_array_is_named():
    with pytest.raises(ValueError, match="^ranks=-3: "):
        positive(ranks=np.array([1, -3, 0]))


def test_zero_is_not_negative_and_minus_one_is():
    not_negative(a=0, b=np.zeros(3))
    with pytest.raises(ValueError, match="b=-1"):
        not_negative(a=0, b=-1)


def test_bounds_are_told_and_the_lower_one_is_included():
    at_least(2, ranks=np.array([2, 3]))
    below(1, load=0.99)
    with pytest.raises(ValueError, match="^ranks=1: expected 2 or above"):
        at_least(2, ranks=1)
    with pytest.raises(ValueError, match="^load=1: expected less than 1"):
        below(1, load=1)
    above(1, ratio=1.01)
    with pytest.raises(ValueError, match="^ratio=1: expected more than 1"):
        above(1, ratio=1)


def test_zero_alone_is_refused_where_a_sign_is_free():
    not_zero(weight=-1, gradient=np.array([1, -1]))
    with pytest.raises(ValueError, match="^weight=0: expected a number other than 0"):
        not_zero(weight=0)


@pytest.mark.parametrize("check", [positive, not_negative, not_zero, partial(at_least, 2), partial(above, 2)])
def test_an_infinite_number_is_refused_as_such_where_no_limit_is_stated(check):
    check(seconds=np.array([3.0, 4.0]))
    with pytest.raises(ValueError, match="^seconds=inf: expected a finite number"):
        check(seconds=np.array([3.0, np.inf]))


def test_an_infinite_number_is_taken_where_a_limit_is_stated():
    positive_or_infinite(parameters=np.inf)
    at_least(2, infinite=True, ranks=np.inf)
    with pytest.raises(ValueError, match="^ranks=1: expected 2 or above"):
        at_least(2, infinite=True, ranks=1)


@pytest.mark.parametrize("refused", [0, -8, 1.5, Fraction(3, 2), float("nan")])
def test_a_count_is_whole_above_zero_or_endless(refused):
    count(ranks=8, stages=8.0, shards=np.arange(1, 3), replicas=float("inf"), hosts=Fraction(4, 2))
    with pytest.raises(ValueError, match=f"^ranks={refused}: expected a whole number above 0"):
        count(ranks=refused)


@pytest.mark.parametrize("refused", [-0.1, 1.1, float("nan")])
def test_a_share_lies_between_zero_and_one(refused):
    share(mfu=0, overlap=1, of=np.linspace(0, 1, 3))
    with pytest.raises(ValueError, match=f"mfu={refused}"):
        share(mfu=refused)


@pytest.mark.parametrize("refused", [0.5, Fraction(1, 3), float("inf"), float("nan")])
def test_eight_and_eight_point_zero_are_whole_and_halves_are_not(refused):
    whole(ranks=8, layers=8.0, stages=np.arange(3), parameters=10**30, blocks=Fraction(4, 2))
    with pytest.raises(ValueError, match=f"ranks={refused}"):
        whole(ranks=refused)


@pytest.mark.parametrize("refused", [float("inf"), -float("inf"), float("nan"), "8"])
def test_what_is_endless_or_no_number_is_not_finite(refused):
    finite(s=-0.5, ranks=10**30, part=Fraction(1, 3), times=np.zeros(2))
    with pytest.raises(ValueError, match=f"^s={refused}: expected a finite number"):
        finite(s=refused)


def test_a_third_of_integers_is_exact_and_of_floats_a_float():
    assert ratio(1, 3) == Fraction(1, 3) and ratio(Fraction(1, 3), 2) == Fraction(1, 6)
    assert isinstance(ratio(1.0, 3), float)
    assert ratio(np.array([1, 2]), 4).tolist() == [0.25, 0.5]


def test_a_time_from_exact_bytes_is_a_float_even_with_arrays():
    assert isinstance(real(Fraction(1, 3)), float)
    assert (real(Fraction(1, 2)) / np.array([1.0, 2.0])).dtype == float
