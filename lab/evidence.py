"""What claims ask of a measured ledger."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from lab.hlo.shapes import bits
from lab.ledger import Kind, Ledger, Transfer, number


def along(ledger: Ledger, axis: str, *, kind: Kind | None = None, phase: str | None = None) -> tuple[Transfer, ...]:
    """The transfers over this axis alone, one an operand, of one kind and phase where these are given."""
    rows = ledger.split().transfers
    return tuple(t for t in rows if t.axes == (axis,) and kind in (None, t.kind) and phase in (None, t.phase))


def element_bytes(transfers: Iterable[Transfer]) -> int:
    """Bytes of an element as the compiler sends it: the book's `e`, after the compiler has widened what it widens."""
    return max((bits(t.dtype) // 8 for t in transfers), default=1)


def counted(value: int | Fraction) -> str:
    """With thousands separators."""
    return f"{number(Fraction(value)):,}"
