"""Sums of monomials as people write them: text and LaTeX. Imports no JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

from lab.laws.evaluate import SHARES
from lab.laws.polynomial import Monomial, Polynomial


def share(kind: str, network_kind: str | None) -> str:
    """What a device sends of a payload, in a group of P: `(P - 1) / P`; see `lab.laws.evaluate.wire_bytes`."""
    if network_kind == "all_gather":
        return "(P - 1)"  # The payload is the device's own part.
    times = SHARES.get(network_kind or kind, 0)
    return f"{times if times != 1 else ''} (P - 1) / P".strip() if times else "1"


def text(of: Polynomial) -> str:
    """`4 * embed * mlp * layers / tensor + 2 * embed`; 0 for none."""
    return _sum([_monomial_text(each) for each in of])


def latex(of: Polynomial) -> str:
    return _sum([_monomial_latex(each) for each in of])


def _sum(terms: list[str]) -> str:
    return " + ".join(terms).replace("+ -", "- ") or "0"


def _sides(of: Monomial) -> tuple[Fraction, dict[str, int], dict[str, int]]:
    above = {name: e for name, e in of.exponents.items() if e > 0}
    below = {name: -e for name, e in of.exponents.items() if e < 0}
    return of.coefficient, above, below


def _factors(powers: Mapping[str, int], show: Callable[[str, int], str]) -> list[str]:
    return [show(name, e) for name, e in powers.items()]


def _monomial_text(of: Monomial) -> str:
    coefficient, above, below = _sides(of)
    over = _factors(above, lambda name, e: name if e == 1 else f"{name}^{e}")
    under = _factors(below, lambda name, e: name if e == 1 else f"{name}^{e}")
    sign = "-" if coefficient < 0 else ""
    number, size = abs(coefficient.numerator), coefficient.denominator
    top = " * ".join([*([str(number)] if number != 1 or not over else []), *over])
    bottom = [*([str(size)] if size != 1 else []), *under]
    if not bottom:
        return sign + top
    return f"{sign}{top} / {bottom[0] if len(bottom) == 1 else '(' + ' * '.join(bottom) + ')'}"


def _monomial_latex(of: Monomial) -> str:
    coefficient, above, below = _sides(of)

    def show(name: str, e: int) -> str:
        word = rf"\mathrm{{{name}}}".replace("_", r"\_")
        return word if e == 1 else f"{word}^{{{e}}}"

    over, under = _factors(above, show), _factors(below, show)
    sign = "-" if coefficient < 0 else ""
    number, size = abs(coefficient.numerator), coefficient.denominator
    top = r" \cdot ".join([*([str(number)] if number != 1 or not over else []), *over])
    bottom = [*([str(size)] if size != 1 else []), *under]
    return rf"{sign}\frac{{{top}}}{{{' '.join(bottom)}}}" if bottom else sign + top
