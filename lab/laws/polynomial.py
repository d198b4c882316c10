"""Sums of monomials in a program's sizes and degrees: rational coefficients, integer exponents. Imports no JAX."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from lab.core.codec import Size


@dataclass(frozen=True)
class Monomial:
    """`numerator / denominator` times each variable to its exponent; those of 0 are left out."""

    numerator: int
    denominator: Size
    exponents: Mapping[str, int]

    @property
    def coefficient(self) -> Fraction:
        return Fraction(self.numerator, self.denominator)


Polynomial = tuple[Monomial, ...]


def monomial(coefficient: Fraction | int, exponents: Mapping[str, int]) -> Monomial:
    exact = Fraction(coefficient)
    return Monomial(exact.numerator, exact.denominator, {name: e for name, e in sorted(exponents.items()) if e})


def collected(monomials: Iterable[Monomial]) -> Polynomial:
    """Equal powers added up; those of the most variables first."""
    sums: dict[tuple[tuple[str, int], ...], Fraction] = defaultdict(Fraction)
    for each in monomials:
        sums[tuple(sorted(each.exponents.items()))] += each.coefficient
    ordered = sorted(sums, key=lambda powers: (sums[powers] < 0, -sum(e for _, e in powers), -len(powers), powers))
    return tuple(monomial(sums[powers], dict(powers)) for powers in ordered if sums[powers])


def product(one: Polynomial, other: Polynomial) -> Polynomial:
    return collected(
        monomial(
            a.coefficient * b.coefficient,
            {name: a.exponents.get(name, 0) + b.exponents.get(name, 0) for name in {*a.exponents, *b.exponents}},
        )
        for a in one
        for b in other
    )


def value(of: Polynomial, sizes: Mapping[str, int]) -> Fraction:
    total = Fraction(0)
    for each in of:
        term = each.coefficient
        for name, exponent in each.exponents.items():
            term *= Fraction(sizes[name]) ** exponent
        total += term
    return total


def variables(of: Polynomial) -> set[str]:
    return {name for each in of for name in each.exponents}
