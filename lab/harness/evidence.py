"""What claims ask of a measured ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from lab.collectives import AlphaBeta
from lab.core.known import known
from lab.core.ledger import Kind, Ledger, Phase, Totals, Transfer
from lab.core.units import number
from lab.hlo.shapes import bits


def along(ledger: Ledger, axis: str, *, kind: Kind | None = None, phase: Phase | None = None) -> tuple[Transfer, ...]:
    """The transfers over this axis alone, one an operand, of one kind and phase where these are given."""
    rows = ledger.split().transfers
    return tuple(t for t in rows if t.axes == (axis,) and kind in (None, t.kind) and phase in (None, t.phase))


def in_scope(ledger: Ledger, scope: str) -> tuple[Transfer, ...]:
    """The transfers of one named scope, one an operand."""
    return tuple(t for t in ledger.split().transfers if t.scope == scope)


def sent(ledger: Ledger, scope: str, *axes: str) -> Totals:
    """What a scope sends; along these axes alone, where some are named."""
    return Totals.of(t for t in in_scope(ledger, scope) if not axes or t.axes == axes)


def priced_s(ledger: Ledger, scope: str, links: Mapping[str, AlphaBeta]) -> float:
    """Seconds of the messages of a scope, one after the other, each over the slowest link of its axes."""
    return sum(
        known(t.executions) * max(links[axis].seconds(known(t.wire_bytes)) for axis in known(t.axes))
        for t in in_scope(ledger, scope)
    )


def element_bytes(transfers: Iterable[Transfer]) -> int:
    """Bytes of an element as the compiler sends it: the book's `e`, after the compiler has widened what it widens."""
    return max((bits(t.dtype) // 8 for t in transfers), default=1)


def elements_sent(transfers: Iterable[Transfer]) -> Fraction:
    """Numbers that one device sends a step: its wire bytes over `e`, each transfer's own."""
    return sum((Totals.of((t,)).wire_bytes * 8 / bits(t.dtype) for t in transfers), Fraction(0))


def elements(transfers: Iterable[Transfer]) -> Fraction:
    """Numbers in the payloads of a step, each transfer's in its own dtype."""
    return sum((Fraction(8 * (t.executions or 0) * t.payload_bytes, bits(t.dtype)) for t in transfers), Fraction(0))


def of_elements(transfers: Iterable[Transfer], elements: int) -> tuple[Transfer, ...]:
    """Those that carry so many elements, each in its own dtype."""
    return tuple(t for t in transfers if 8 * t.payload_bytes == elements * bits(t.dtype))


def counted(value: int | Fraction) -> str:
    """With thousands separators."""
    return f"{number(Fraction(value)):,}"
