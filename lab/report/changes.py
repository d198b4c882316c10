"""Changes between two ledgers as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from lab.core.changes import Along, Change, Row, by_axes, changes
from lab.core.known import known
from lab.core.ledger import Ledger, Totals
from lab.core.units import bytes_text, count, share_text
from lab.report.fitted import Column
from lab.report.origins import common_folder, folder_lines, short_ledger
from lab.report.tables import at_least, bound, bounded, bytes_bound, columns_text, sent_text


def changes_text(before: Ledger, after: Ledger) -> str:
    """How much more or less a step sends, a row a change, the largest first, and what came and went along the axes that
    changed."""
    folder = common_folder(before, after)
    before, after = short_ledger(before, folder), short_ledger(after, folder)
    found = changes(before, after)
    tables = [columns_text(_columns(found)), columns_text(_along(by_axes(before, after)))] if found else []
    return "\n\n".join([_headline(before, after, is_same=not found), *tables, *(folder_lines(folder) if found else [])])


def exceeded(before: Ledger, after: Ledger, allowed: Fraction) -> list[str]:
    """A sentence for all axes along which more changed than this share: `fsdp changed by 150 % (18.87 MB came or went),
    more than --allow 60 %`."""
    return [
        f"{row.axes} changed by {_changed_text(row)}, more than --allow {share_text(float(allowed))}"
        for row in by_axes(before, after)
        if row.exceeds(allowed)
    ]


def _changed_text(row: Along) -> str:
    if row.changed is None:
        return "an amount that the text does not tell"
    share = share_text(float(row.changed / row.before)) if row.before else "more than all"
    return f"{share} ({bytes_text(row.changed)} came or went, {bytes_text(row.before)} before)"


def _headline(before: Ledger, after: Ledger, is_same: bool) -> str:
    """What came of it in a sentence, then both totals."""
    said = "no change" if is_same else _net_sentence(before.totals(), after.totals())
    ledgers = before, after
    # A snapshot has an execution for each array.
    counts_arrays = any(ledger.transfers and all(t.instruction is None for t in ledger.transfers) for ledger in ledgers)
    old, new = (_sent(ledger, counts_arrays) for ledger in ledgers)
    return f"{said}\n\nbefore: {old}{_where(before, after)}\nafter:  {new}{_where(after, before)}"


def _net_sentence(old: Totals, new: Totals) -> str:
    if old.lower_bound or new.lower_bound:
        return "one device sends more or less, how much is not known: the text does not say how often a loop runs"
    net = new.wire_bytes - old.wire_bytes
    if not net:
        return "one device sends as many bytes a step as before, in other transfers"
    share = f" ({_percent(net, old.wire_bytes)})" if old.wire_bytes else ""
    return f"one device sends {bytes_text(abs(net))} a step {'more' if net > 0 else 'less'} than before{share}"


def _sent(ledger: Ledger, counts_arrays: bool) -> str:
    """`step.py:build, 121.6 MB in 5 executions of 6 arrays`, or `121.6 MB in 6 arrays`."""
    total = ledger.totals()
    sent = f"{bytes_bound(total)}{bytes_text(total.wire_bytes)} in {bound(total)}{count(total.arrays, 'array')}"
    return ", ".join(filter(None, (ledger.source, sent if counts_arrays else sent_text(total))))


def _where(ledger: Ledger, other: Ledger) -> str:
    """The target and the mesh, where they are not those of the other."""
    mesh = ledger.mesh and ",".join(f"{name}={size}" for name, size in ledger.mesh.items())
    parts = [
        *[f"for {ledger.target or 'an unknown target'}"] * (ledger.target != other.target),
        *[f"mesh {mesh or 'unknown'}"] * (list((ledger.mesh or {}).items()) != list((other.mesh or {}).items())),
    ]
    return "".join(f", {part}" for part in parts)


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
        Column("wire a step", of(lambda row: bounded(row.totals, bytes_text(row.totals.wire_bytes))), is_number=True),
        Column("net", tuple(map(_net_of, found)), is_number=True),
        Column("dtype", of(lambda row: row.dtype)),
        Column("phase", of(lambda row: row.phase or "-")),
        Column("scope", tuple(map(_scopes, found))),
        Column("origin", tuple(known(change.after or change.before).origin or "" for change in found)),
    ]
    return [column for column in columns if any(column.cells)]


def _scopes(change: Change) -> str:
    """Functions stand for scopes where both ledgers tell them."""
    tells = all(row.scope_or_function for row in change.rows)
    return " -> ".join(dict.fromkeys((row.scope_or_function if tells else row.scope) or "-" for row in change.rows))


def _net_of(change: Change) -> str:
    is_known = not any(row.totals.lower_bound for row in change.rows)
    return _signed(change.added_wire_bytes if is_known else None)
