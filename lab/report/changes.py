"""Changes between two ledgers as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from lab.core.changes import Along, Change, Row, by_axes, changes
from lab.core.known import known
from lab.core.ledger import Ledger, Totals
from lab.core.units import bytes_text, share_text
from lab.report.fitted import Column
from lab.report.origins import common_folder, folder_lines, short_ledger
from lab.report.tables import at_least, columns_text, sent_text


def changes_text(before: Ledger, after: Ledger) -> str:
    """How much more or less a step sends, a row a change, the largest first, and what came and went along the axes that
    changed."""
    folder = common_folder(before, after)
    before, after = short_ledger(before, folder), short_ledger(after, folder)
    found = changes(before, after)
    tables = [columns_text(_columns(found)), columns_text(_along(by_axes(before, after)))] if found else []
    return "\n\n".join([_headline(before, after, is_same=not found), *tables, *(folder_lines(folder) if found else [])])


def _headline(before: Ledger, after: Ledger, is_same: bool) -> str:
    """What came of it in a sentence, then both totals."""
    said = "no change" if is_same else _net_sentence(before.totals(), after.totals())
    return f"{said}\n\nbefore: {_sent(before)}\nafter:  {_sent(after)}"


def _net_sentence(old: Totals, new: Totals) -> str:
    if old.lower_bound or new.lower_bound:
        return "one device sends more or less, how much is not known: the text does not say how often a loop runs"
    net = new.wire_bytes - old.wire_bytes
    if not net:
        return "one device sends as many bytes a step as before, in other transfers"
    share = f" ({_percent(net, old.wire_bytes)})" if old.wire_bytes else ""
    return f"one device sends {bytes_text(abs(net))} a step {'more' if net > 0 else 'less'} than before{share}"


def _sent(ledger: Ledger) -> str:
    """`step.py:build, 121.6 MB in 5 executions of 6 arrays`."""
    return ", ".join(filter(None, (ledger.source, sent_text(ledger.totals()))))


def _along(rows: Sequence[Along]) -> list[Column]:
    def of(tell: Callable[[Along], str]) -> tuple[str, ...]:
        return tuple(map(tell, rows))

    return [
        Column("along", of(lambda row: row.axes)),
        Column("before", of(lambda row: bytes_text(row.before)), is_number=True),
        Column("came", of(lambda row: _signed(row.came)), is_number=True),
        Column("went", of(lambda row: _signed(row.went and -row.went)), is_number=True),
        Column("net", of(_net), is_number=True),
        Column("after", of(lambda row: bytes_text(row.after)), is_number=True),
    ]


def _net(row: Along) -> str:
    """`+31.46 MB (+50 %)`, a share of what was sent before."""
    share = f" ({_percent(row.net, row.before)})" if row.net and row.before else ""
    return f"{_signed(row.net)}{share}"


def _percent(net: Fraction, before: Fraction) -> str:
    return f"{'+' if net > 0 else '-'}{share_text(float(abs(net) / before))}"


def _signed(amount: Fraction | None) -> str:
    if amount is None:
        return "?"
    return f"{'+' if amount > 0 else '-' if amount < 0 else ''}{bytes_text(abs(amount))}"


def _columns(found: Sequence[Change]) -> list[Column]:
    def of(tell: Callable[[Row], str]) -> tuple[str, ...]:
        """What is told of the row after and, where it was otherwise, before."""
        return tuple(" -> ".join(dict.fromkeys(map(tell, change.rows))) for change in found)

    columns = [
        Column("change", tuple(change.what for change in found)),
        Column("kind", of(lambda row: str(row.kind))),
        Column("axes", of(lambda row: row.span)),
        Column("arrays", of(lambda row: at_least(row.totals, f"{row.totals.arrays:,}")), is_number=True),
        Column("wire a step", of(lambda row: at_least(row.totals, bytes_text(row.totals.wire_bytes))), is_number=True),
        Column("net", tuple(map(_net_of, found)), is_number=True),
        Column("dtype", of(lambda row: row.dtype)),
        Column("phase", of(lambda row: row.phase or "-")),
        Column("scope", of(lambda row: row.scope or "-")),
        Column("origin", tuple(known(change.after or change.before).origin or "" for change in found)),
    ]
    return [column for column in columns if any(column.cells)]


def _net_of(change: Change) -> str:
    is_known = not any(row.totals.lower_bound for row in change.rows)
    return _signed(change.added_wire_bytes if is_known else None)
