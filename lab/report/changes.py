"""Changes between two ledgers as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lab.changes import Change, Row, changes
from lab.ledger import Ledger, Totals
from lab.report.tables import Column, columns_text
from lab.report.units import bytes_text


def changes_text(before: Ledger, after: Ledger) -> str:
    """A row a change, the largest first, and what a step sends in all; one line where nothing changed."""
    found = changes(before, after)
    sent = [_sent(ledger.split().totals()) for ledger in (before, after)]
    if not found:
        return f"no change: {sent[1]} a step of one device, in both"
    total = f"in all: {sent[0]} a step of one device before, {sent[1]} after"
    return columns_text(_columns(found)) + f"\n\n{total}"


def _columns(found: Sequence[Change]) -> list[Column]:
    def of(tell: Callable[[Row], str]) -> tuple[str, ...]:
        """What is told of the row after and, where it was otherwise, before."""
        return tuple(" -> ".join(dict.fromkeys(tell(row) for row in (change.before, change.after) if row)) for change in found)

    columns = [
        Column("change", tuple(change.what for change in found)),
        Column("kind", of(lambda row: str(row.kind))),
        Column("axes", of(lambda row: "?" if row.axes is None else "+".join(row.axes))),
        Column("executions", of(lambda row: _at_least(row.totals, f"{row.totals.executions:,}")), is_number=True),
        Column("wire a step", of(lambda row: _at_least(row.totals, bytes_text(row.totals.wire_bytes))), is_number=True),
        Column("dtype", of(lambda row: row.dtype)),
        Column("phase", of(lambda row: row.phase or "-")),
        Column("scope", of(lambda row: row.scope or "-")),
        Column("origin", tuple((change.after or change.before).origin or "" for change in found)),
    ]
    return [column for column in columns if any(column.cells)]


def _sent(totals: Totals) -> str:
    return _at_least(totals, f"{bytes_text(totals.wire_bytes)} in {totals.executions:,} executions")


def _at_least(totals: Totals, text: str) -> str:
    return f">= {text}" if totals.lower_bound else text
