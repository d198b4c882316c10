"""What every formula asks of its arguments, numbers or arrays, and how it stays exact.

Each check raises ValueError that names the argument and the first value refused.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeVar, overload

import numpy as np

Number = int | float | Fraction
"""What most formulas take and give. Arrays of numbers work the same, element by element, unless a formula says
otherwise."""
Real = TypeVar("Real", float, np.ndarray)
"""A number, or an array of them, where what comes out is of the same kind."""
Exact = int | Fraction
"""Of which sums, products and `ratio` stay exact."""


def positive(**arguments: Any) -> None:
    """Above zero, and finite."""
    _require(arguments, lambda value: value > 0, "a number above 0")


def positive_or_infinite(**arguments: Any) -> None:
    """Above zero; or infinity, for a limit."""
    _require(arguments, lambda value: value > 0, "a number above 0", infinite=True)


def count(**arguments: Any) -> None:
    """A whole number above zero, whatever its type: 8 or 8.0, not 1.5; or infinity, for a limit."""
    _require(
        arguments,
        lambda value: (value > 0) & ((value % 1 == 0) | (value == np.inf)),
        "a whole number above 0",
        infinite=True,
    )


def not_negative(**arguments: Any) -> None:
    """Zero or above, and finite."""
    _require(arguments, lambda value: value >= 0, "a number of 0 or above")


def share(**arguments: Any) -> None:
    """From 0 to 1, both included."""
    _require(arguments, lambda value: (value >= 0) & (value <= 1), "a share, from 0 to 1")


def at_least(bound: Any, /, *, infinite: bool = False, **arguments: Any) -> None:
    """The bound or above, and finite unless the formula has a limit."""
    _require(arguments, lambda value: value >= bound, f"{bound} or above", infinite)


def above(bound: Any, /, **arguments: Any) -> None:
    """More than the bound, and finite."""
    _require(arguments, lambda value: value > bound, f"more than {bound}")


def below(bound: Any, /, **arguments: Any) -> None:
    """Less than the bound, and finite."""
    _require(arguments, lambda value: value < bound, f"less than {bound}")


def not_zero(**arguments: Any) -> None:
    """Above or below zero, and finite."""
    _require(arguments, lambda value: value != 0, "a number other than 0")


def whole(**arguments: Any) -> None:
    """Integral, whatever its type: 8 or 8.0."""
    _require(arguments, lambda value: value % 1 == 0, "a whole number")


def finite(**arguments: Any) -> None:
    """Neither infinite nor NaN."""
    _require(arguments, lambda value: abs(value) < np.inf, "a finite number")


@overload
def ratio(numerator: Exact, denominator: Exact) -> Fraction: ...
@overload
def ratio(numerator: Number, denominator: Number) -> Fraction | float: ...
def ratio(numerator: Number, denominator: Number) -> Fraction | float:
    """A quotient: the exact Fraction of integers and fractions, a / b of anything else."""
    if isinstance(numerator, (int, Fraction)) and isinstance(denominator, (int, Fraction)):
        return Fraction(numerator) / denominator
    return numerator / denominator


def chosen(condition: Any, then: Any, otherwise: Any) -> Any:
    """One of two numbers; of arrays an array, element by element."""
    return np.where(condition, then, otherwise)[()]


def real(value: Number) -> float:
    """A float where the value is exact, arrays as they are: for times, which need no exactness."""
    return float(value) if isinstance(value, (int, Fraction)) else value


def _require(
    arguments: dict[str, Any], holds: Callable[[np.ndarray], Any], expected: str, infinite: bool = False
) -> None:
    for name, value in arguments.items():
        # A number alone, as searches ask of thousands, needs no array.
        if type(value) in (int, float) and holds(value) is True and (infinite or abs(value) < np.inf):
            continue
        values = np.asarray(value)
        # Fractions and integers beyond 64 bits are objects to NumPy; text and bools are no numbers.
        if values.dtype.kind not in "iufO":
            raise ValueError(f"{name}={value}: expected {expected}")
        with np.errstate(invalid="ignore"):
            fine = np.asarray(holds(values), dtype=bool)
            if not fine.all():
                raise ValueError(f"{name}={values[~fine].flat[0]}: expected {expected}")
            if not infinite and (endless := np.asarray(abs(values) == np.inf, dtype=bool)).any():
                raise ValueError(f"{name}={values[endless].flat[0]}: expected a finite number")
