"""Sums of monomials from values at chosen points, exactly."""

from fractions import Fraction
from math import ceil

import pytest

from lab.laws.formula import latex, text
from lab.laws.interpolation import Grid, Missing, NoLaw, combined, solved
from lab.laws.polynomial import collected, monomial, product, value

GRID = Grid(
    ("fsdp", "tensor", "layers", "embed", "vocab"),
    ((2, 4, 8, 6), (2, 4, 8, 6), (4, 8, 16, 12, 32), (64, 128, 256, 192, 512), (96, 192, 384, 288)),
)


def _asked(of):
    """The sum that gives `of`, and the points that were measured for it."""
    known = {}

    def quantity(point):
        if point not in known:
            raise Missing([point])
        return known[point]

    while True:
        try:
            return solved(quantity, GRID), known
        except Missing as these:
            known |= {point: Fraction(of(*point)) for point in these.points}


def test_a_monomial_takes_one_change_of_each_variable():
    found, points = _asked(lambda f, t, L, D, V: Fraction(4 * L * D * D, f * t))
    assert found == (monomial(4, {"layers": 1, "embed": 2, "fsdp": -1, "tensor": -1}),)
    assert set(points) == {
        (2, 2, 4, 64, 96),
        (4, 2, 4, 64, 96),
        (2, 4, 4, 64, 96),
        (2, 2, 8, 64, 96),
        (2, 2, 4, 128, 96),
        (2, 2, 4, 64, 192),
    }


@pytest.mark.parametrize(
    "of, formula",
    [
        (lambda f, t, L, D, V: 3 * (L - 1), "3 * layers - 3"),
        (lambda f, t, L, D, V: Fraction(L * (f - 1), 3), "fsdp * layers / 3 - layers / 3"),
        (lambda f, t, L, D, V: Fraction(2 * V * D, t) + 4 * D * L, "2 * embed * vocab / tensor + 4 * embed * layers"),
        (lambda f, t, L, D, V: D * D * L + 5 * D + 7, "embed^2 * layers + 5 * embed + 7"),
    ],
)
def test_sums_are_told_apart(of, formula):
    found, points = _asked(of)
    terms = sorted(formula.replace(" - ", " + -").split(" + "))
    assert sorted(text(found).replace(" - ", " + -").split(" + ")) == terms
    assert all(value(found, dict(zip(GRID.names, point, strict=True))) == of(*point) for point in points)


@pytest.mark.parametrize("of", [lambda f, t, L, D, V: max(D, 100), lambda f, t, L, D, V: ceil(D / 50)])
def test_what_is_no_sum_of_powers_is_refused(of):
    with pytest.raises(NoLaw, match="no sum of up to 3 powers"):
        _asked(of)


def test_known_monomials_are_combined_only_where_one_combination_fits():
    points = [(2, 2, 4, 64, 96), (4, 2, 4, 64, 96), (2, 2, 8, 64, 96), (2, 2, 4, 128, 96)]
    shapes = [(("embed", 1), ("layers", 1)), (("embed", 1), ("fsdp", -1))]

    def quantity(point):
        f, _, L, D, _ = point
        return Fraction(3 * D * L) + Fraction(5 * D, f)

    found = combined(quantity, GRID, points, shapes)
    assert found == collected([monomial(3, {"embed": 1, "layers": 1}), monomial(5, {"embed": 1, "fsdp": -1})])
    with pytest.raises(NoLaw, match="no sum of known monomials"):
        combined(lambda point: quantity(point) + point[3] ** 2, GRID, points, shapes)
    with pytest.raises(NoLaw, match="several sums"):
        combined(quantity, GRID, points[:1], shapes)


def test_formulas_are_written_as_people_do():
    law = collected([monomial(Fraction(3, 2), {"embed": 2, "fsdp": -1}), monomial(-1, {"kv_heads": 1})])
    assert text(law) == "3 * embed^2 / (2 * fsdp) - kv_heads"
    assert latex(law) == r"\frac{3 \cdot \mathrm{embed}^{2}}{2 \mathrm{fsdp}} - \mathrm{kv\_heads}"
    assert text(()) == "0"
    assert text(product(law, (monomial(2, {"fsdp": 1}),))) == "3 * embed^2 - 2 * fsdp * kv_heads"
