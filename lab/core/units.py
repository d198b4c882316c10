"""Numbers with their units. GB = 1e9 bytes."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z")


def bytes_text(amount: float | Fraction) -> str:
    """`1.745 GB`: four digits and a decimal prefix."""
    return scaled(amount, "B")


def scaled(amount: float | Fraction, unit: str) -> str:
    """Four digits, a decimal prefix and the unit; whole numbers below a thousand as they are."""
    power, whole = 0, float(amount)
    while power < len(_PREFIXES) - 1 and float(f"{whole / 1000**power:.4g}") >= 1000:
        power += 1
    value = whole / 1000**power
    return f"{value:.4g} {_PREFIXES[power]}{unit}" if power or value == int(value) else f"{value:.4g} {unit}"


def number(value: Fraction) -> int | float:
    """An exact integer where it is one, for JSON and tables."""
    return int(value) if value.denominator == 1 else float(value)


def exact(amount: int | Fraction) -> str:
    """`1,731,198,976`: every digit; a fraction is rounded to a tenth."""
    return f"{float(amount):,.1f}".removesuffix(".0") if Fraction(amount).denominator > 1 else f"{int(amount):,}"


def share_text(share: float) -> str:
    """`49.5 %`: three digits; `< 0.01 %` for what is smaller and not nothing."""
    if 0 < share < 1e-4:
        return "< 0.01 %"
    return f"{100 * share:,.0f} %" if share >= 9.995 else f"{100 * share:.3g} %"


_PARTS = dict(
    enumerate("half, a third, a quarter, a fifth, a sixth, a seventh, an eighth, a ninth, a tenth".split(", "), 2)
)


def part_text(part: Fraction) -> str:
    """`a third`, `1/12`, `37.5 %`: of something."""
    if part.numerator == 1:
        return _PARTS.get(part.denominator, str(part))
    return share_text(float(part))


def count(number: int, noun: str) -> str:
    """`1 gather`, `3 gathers`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def executions_text(executions: int, arrays: int) -> str:
    """`1 execution of 3 arrays`, the last where the compiler combined some."""
    return count(executions, "execution") + (f" of {count(arrays, 'array')}" if arrays != executions else "")


def listed(names: Iterable[str]) -> str:
    """`a, b and c`, each name once."""
    *others, last = dict.fromkeys(names)
    return f"{', '.join(others)} and {last}" if others else last


def seconds_text(seconds: float) -> str:
    """`1.26 ms`: three digits, in the unit that suits."""
    unit, scale = next(
        ((unit, scale) for unit, scale in (("s", 1), ("ms", 1e3)) if seconds * scale >= 0.9995), ("us", 1e6)
    )
    return f"{seconds * scale:.3g} {unit}"
