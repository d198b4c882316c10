"""The one sum of monomials that gives what was measured at chosen points: solved over fractions, never fitted.

Each variable is changed in turn, from a first point on. Where a quantity then grows by a power of the change, that
variable has this exponent in every monomial. Where it does not, it is a sum of two or three powers, which further
values of the variable tell apart; each power's own coefficient is a quantity of the other variables, and solved alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import combinations
from typing import TypeVar

from lab.laws.polynomial import Monomial, Polynomial, collected, monomial

T = TypeVar("T")
Point = tuple[int, ...]
"""One value a variable, in the order of their names."""
Exponents = tuple[tuple[str, int], ...]
"""Of a monomial, by name."""
Quantity = Callable[[Point], Fraction]
"""What was measured at a point.

Raises:
  Missing: it was not measured there.
  NoLaw: it cannot be.
"""
EXPONENTS = range(-2, 4)
MOST_POWERS = 3


Dim = tuple[Polynomial, Polynomial]


class Missing(Exception):
    """Points that have to be measured before more can be said."""

    def __init__(self, points: Iterable[Point]) -> None:
        self.points = frozenset(points)


class NoLaw(Exception):
    """Why no sum of monomials gives what was measured."""


class Unknowable(NoLaw):
    """What no more compiles, and no other way to put transfers together, would tell."""


@dataclass(frozen=True)
class Grid:
    """Where to measure.

    Attributes:
      names: of the variables.
      values: of each, the first point's first, then those that are tried in this order.
      dims: of arrays, each with the parts that it is split into.
    """

    names: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]
    dims: tuple[Dim, ...] = ()

    @property
    def first(self) -> Point:
        return tuple(values[0] for values in self.values)


def solved(quantity: Quantity, grid: Grid) -> Polynomial:
    """The polynomial that gives a quantity.

    Raises:
      Missing: points are to be measured first.
      NoLaw: there is none of few powers of each variable.
    """
    free = range(len(grid.names))
    powers = each_of([partial(_powers, quantity, grid, i) for i in free])
    return collected(_solved(quantity, grid, dict(zip(free, powers, strict=True))))


def _solved(quantity: Quantity, grid: Grid, powers: Mapping[int, tuple[int, ...]]) -> list[Monomial]:
    """By the powers that each variable may have."""
    free = list(powers)
    # What changes by one power changes every monomial by it, but where sums agree by chance: held-out sizes tell.
    mixed = [i for i in free if len(powers[i]) > 1]
    shared = {grid.names[i]: powers[i][0] for i in free if i not in mixed}
    scale = Fraction(1)
    for i in free:
        scale *= Fraction(grid.first[i]) ** powers[i][0] if i not in mixed else 1
    if not mixed:
        return [monomial(quantity(grid.first) / scale, shared)]
    split, *rest = mixed
    parts = [_coefficient(quantity, grid, split, powers[split], power) for power in powers[split]]
    solutions = each_of([partial(_part, part, grid, {i: powers[i] for i in rest}) for part in parts])
    return [
        monomial(each.coefficient / scale, {**each.exponents, **shared, grid.names[split]: power})
        for power, some in zip(powers[split], solutions, strict=True)
        for each in some
    ]


def _part(quantity: Quantity, grid: Grid, powers: Mapping[int, tuple[int, ...]]) -> list[Monomial]:
    """Solved, where a variable may have fewer powers than in the whole."""
    own = each_of([partial(_of_these, quantity, grid, i, powers[i]) for i in powers])
    return _solved(quantity, grid, dict(zip(powers, own, strict=True)))


def _of_these(quantity: Quantity, grid: Grid, i: int, powers: tuple[int, ...]) -> tuple[int, ...]:
    """The one power that two values show, or all."""
    values = grid.values[i][:2]
    found = each_of([partial(quantity, _at(grid.first, i, v)) for v in values])
    alone = [power for power in powers if _gives((power,), values, found)]
    return (alone[0],) if alone else powers


def combined(quantity: Quantity, grid: Grid, points: Sequence[Point], shapes: Sequence[Exponents]) -> Polynomial:
    """The one sum of monomials of these exponents that gives a quantity at all points: for what a compiler computes at
    once at some sizes and apart at others, of the same kinds as what is known.

    Raises:
      NoLaw: there is none, or more than one.
    """
    rows = [[*(_power(grid, point, shape) for shape in shapes), Fraction(quantity(point))] for point in points]
    lead = 0
    for column in range(len(shapes)):
        pivot = next((r for r in range(lead, len(rows)) if rows[r][column]), None)
        if pivot is None:
            raise NoLaw("several sums of known monomials give what is compiled")
        rows[lead], rows[pivot] = rows[pivot], rows[lead]
        rows[lead] = [x / rows[lead][column] for x in rows[lead]]
        for r in range(len(rows)):
            if r != lead and rows[r][column]:
                rows[r] = [a - rows[r][column] * b for a, b in zip(rows[r], rows[lead], strict=True)]
        lead += 1
    if lead >= len(rows) or any(row[-1] for row in rows[lead:]):
        raise NoLaw("no sum of known monomials gives what is compiled")
    return collected(monomial(row[-1], dict(shape)) for row, shape in zip(rows, shapes, strict=False))


def _power(grid: Grid, point: Point, shape: Exponents) -> Fraction:
    sizes, found = dict(zip(grid.names, point, strict=True)), Fraction(1)
    for name, exponent in shape:
        found *= Fraction(sizes[name]) ** exponent
    return found


def each_of(asked: Sequence[Callable[[], T]]) -> list[T]:
    """What each gives; what all of them miss at once."""
    found, missing = list[T](), set[Point]()
    for ask in asked:
        try:
            found.append(ask())
        except Missing as these:
            missing |= these.points
    if missing:
        raise Missing(missing)
    return found


def _at(point: Point, i: int, value: int) -> Point:
    return (*point[:i], value, *point[i + 1 :])


def _powers(quantity: Quantity, grid: Grid, i: int) -> tuple[int, ...]:
    """The exponents that a variable has, from values of it with all others as in the first point."""
    values = grid.values[i]
    if len(values) < 2:
        raise NoLaw(f"{grid.names[i]} cannot be changed")
    for count in range(1, MOST_POWERS + 1):
        # More powers fit small numbers by chance: they have to fit a value more.
        for used in range(count + 1 + (count > 2), len(values) + 1):
            some = values[:used]
            found = each_of([partial(quantity, _at(grid.first, i, v)) for v in some])
            sets = [powers for powers in combinations(EXPONENTS, count) if _gives(powers, some, found)]
            if len(sets) == 1:
                return sets[0]
            if not sets:
                break
            if not any(found):
                return (0,)
    shown = ", ".join(f"{v}: {q}" for v, q in zip(values, found, strict=False))
    raise NoLaw(f"no sum of up to {MOST_POWERS} powers of {grid.names[i]} gives what is compiled ({shown})")


def _gives(powers: Sequence[int], values: Sequence[int], found: Sequence[Fraction]) -> bool:
    """With no coefficient that is 0."""
    count = len(powers)
    weights = _inverse([[Fraction(v) ** p for p in powers] for v in values[:count]])
    coefficients = [sum((w * f for w, f in zip(row, found, strict=False)), Fraction(0)) for row in weights]
    return (all(coefficients) or not any(found)) and all(
        sum((c * Fraction(v) ** p for c, p in zip(coefficients, powers, strict=True)), Fraction(0)) == f
        for v, f in zip(values, found, strict=True)
    )


def _coefficient(quantity: Quantity, grid: Grid, i: int, powers: Sequence[int], power: int) -> Quantity:
    """What one power of a variable is multiplied with, as a quantity of the others."""
    values = grid.values[i][: len(powers)]
    weights = _inverse([[Fraction(v) ** p for p in powers] for v in values])[powers.index(power)]

    def part(point: Point) -> Fraction:
        found = each_of([partial(quantity, _at(point, i, v)) for v in values])
        return sum((w * f for w, f in zip(weights, found, strict=True)), Fraction(0))

    return part


def _inverse(rows: list[list[Fraction]]) -> list[list[Fraction]]:
    """Gauss and Jordan, over fractions."""
    n = len(rows)
    work = [[*row, *(Fraction(i == j) for j in range(n))] for i, row in enumerate(rows)]
    for i in range(n):
        pivot = next(r for r in range(i, n) if work[r][i])
        work[i], work[pivot] = work[pivot], work[i]
        work[i] = [x / work[i][i] for x in work[i]]
        for r in range(n):
            if r != i and work[r][i]:
                work[r] = [a - work[r][i] * b for a, b in zip(work[r], work[i], strict=True)]
    return [row[n:] for row in work]
