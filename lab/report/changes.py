"""Changes between two ledgers as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lab.core.changes import Along, Change, Row, by_axes, changes
from lab.core.ledger import Ledger, Totals
from lab.core.units import bytes_text
from lab.report.tables import Column, columns_text


def changes_text(before: Ledger, after: Ledger) -> str:
    """A row a change, the largest first, what a step sends along the axes that changed, and in all; one line where
    nothing changed."""
    found = changes(before, after)
    sent = [_sent(ledger.split().totals()) for ledger in (before, after)]
    if not found:
        return f"no change: {sent[1]} a step of one device, in both"
    total = f"in all: {sent[0]} a step of one device before, {sent[1]} after"
    return "\n\n".join([columns_text(_columns(found)), columns_text(_along(by_axes(before, after))), total])


def _along(rows: Sequence[Along]) -> list[Column]:
    return [
        Column("along", tuple(row.axes for row in rows)),
        *(
            Column(f"wire {end}", tuple(bytes_text(getattr(row, end)) for row in rows), is_number=True)
            for end in ("before", "after")
        ),
        Column("changed", tuple(map(_share, rows)), is_number=True),
    ]


def _share(row: Along) -> str:
    """What changed, as a share of what was sent before."""
    if row.changed is None:
        return "?"
    return f"{float(100 * row.changed / row.before):.3g}%" if row.before else "new"


def _columns(found: Sequence[Change]) -> list[Column]:
    def of(tell: Callable[[Row], str]) -> tuple[str, ...]:
        """What is told of the row after and, where it was otherwise, before."""
        return tuple(" -> ".join(dict.fromkeys(map(tell, change.rows))) for change in found)

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
