"""What changed between two ledgers: transfers that appeared, vanished, grew, shrank or moved to another place of the
program; and how much, by axes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from lab.core import display
from lab.core.ledger import Kind, Ledger, SubAxis, Totals, Transfer, axes_label, number, span_text

SCHEMA = "sharding-lab/diff/1"
Place = tuple[Kind, tuple[str, ...] | None, int | None, int | None, str, str]
Content = tuple[str, int, bool]
"""Dtype, payload bytes of one execution, and whether the number of executions is unknown."""


@dataclass(frozen=True)
class Row:
    """All transfers of one kind, over the same axes, at one place of the program; operands of combined ones count
    each."""

    kind: Kind
    axes: tuple[str, ...] | None
    sub_axes: tuple[SubAxis, ...] | None
    phase: str
    scope: str
    origin: str | None
    dtype: str
    totals: Totals

    @property
    def span(self) -> str:
        """The axes, or parts of axes, for people."""
        return span_text(self.axes, self.sub_axes)


@dataclass(frozen=True)
class Change:
    """Attributes: what: "appeared", "vanished", "grew", "shrank", "changed" (of as many bytes) or "moved"."""

    what: str
    before: Row | None
    after: Row | None

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for row in (self.before, self.after) if row)

    @property
    def added_wire_bytes(self) -> Fraction:
        return _wire(self.after) - _wire(self.before)

    def to_json(self) -> dict[str, Any]:
        return {"what": self.what, "before": _row_json(self.before), "after": _row_json(self.after)}


@dataclass(frozen=True)
class Along:
    """What changed along the same axes.

    Attributes:
      axes: as `lab.core.ledger.axes_label` joins them.
      before, after: bytes that one device sends in a step.
      came, went: bytes that some place of the program sends more, and that some sends less; None where the texts do
        not tell.
    """

    axes: str
    before: Fraction
    after: Fraction
    came: Fraction | None
    went: Fraction | None

    @property
    def changed(self) -> Fraction | None:
        """Bytes that came or went, all added up, so that what vanished makes up for nothing that appeared."""
        return None if self.came is None or self.went is None else self.came + self.went

    @property
    def net(self) -> Fraction | None:
        return None if self.changed is None else self.after - self.before

    def exceeds(self, share: Fraction) -> bool:
        """More changed than this share of what was sent before."""
        return self.changed is None or self.changed > share * self.before

    def to_json(self) -> dict[str, Any]:
        return {
            "before": number(self.before),
            "after": number(self.after),
            **{name: _number(getattr(self, name)) for name in ("changed", "came", "went", "net")},
        }


@dataclass(frozen=True)
class Difference:
    """Two ledgers, to be compared; prints as the table of `lab diff`."""

    before: Ledger
    after: Ledger

    @property
    def changes(self) -> tuple[Change, ...]:
        return changes(self.before, self.after)

    def __str__(self) -> str:
        return display.text(self)


def by_axes(before: Ledger, after: Ledger) -> tuple[Along, ...]:
    """The axes along which something changed, the largest change first; changes that the texts do not tell the size of
    stand before all."""
    found: dict[str, list[Change]] = defaultdict(list)
    for change in changes(before, after):
        found[_label(change.rows[0])].append(change)
    old, new = before.totals_by(axes_label), after.totals_by(axes_label)
    nothing = Totals.of(())
    rows = [
        Along(axes, old.get(axes, nothing).wire_bytes, new.get(axes, nothing).wire_bytes, *_came_and_went(some))
        for axes, some in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: (row.changed is not None, -(row.changed or 0), row.axes)))


def _came_and_went(some: Sequence[Change]) -> tuple[Fraction, Fraction] | tuple[None, None]:
    if any(row.totals.lower_bound for change in some for row in change.rows):
        return None, None
    added = [change.added_wire_bytes for change in some]
    return sum((one for one in added if one > 0), Fraction(0)), sum((-one for one in added if one < 0), Fraction(0))


def _label(row: Row) -> str:
    return "?" if row.axes is None else "+".join(row.axes)


def changes(before: Ledger, after: Ledger) -> tuple[Change, ...]:
    """The largest first. Lines of source and names of instructions are not compared: they change with every edit."""
    old, new = _by_place(before), _by_place(after)
    appeared = {place: new[place] for place in new if place not in old}
    found = [_moved_or_vanished(place, old[place], appeared) for place in old if place not in new]
    found += [Change("appeared", None, _row(transfers)) for transfers in appeared.values()]
    for place in old.keys() & new.keys():
        if _content(old[place]) != _content(new[place]):
            found.append(_grown(_row(old[place]), _row(new[place])))
    return tuple(sorted(found, key=lambda change: (-abs(change.added_wire_bytes), change.what, str(change))))


def _by_place(ledger: Ledger) -> dict[Place, list[Transfer]]:
    places = defaultdict(list)
    for t in ledger.split().transfers:
        if t.group_size != 1:
            places[t.kind, t.axes, None if t.axes else t.group_size, t.shift, t.phase or "", t.scope].append(t)
    return dict(places)


def _content(transfers: Iterable[Transfer]) -> Counter[Content]:
    """Executions by what is sent."""
    counts: Counter[Content] = Counter()
    for t in transfers:
        counts[t.dtype, t.payload_bytes, t.executions is None] += t.executions or 1
    return counts


def _moved_or_vanished(place: Place, transfers: list[Transfer], appeared: dict[Place, list[Transfer]]) -> Change:
    """The same bytes that appeared elsewhere are taken out of what appeared."""
    for other in appeared:
        if other[:4] == place[:4] and _content(appeared[other]) == _content(transfers):
            return Change("moved", _row(transfers), _row(appeared.pop(other)))
    return Change("vanished", _row(transfers), None)


def _grown(before: Row, after: Row) -> Change:
    added = after.totals.wire_bytes - before.totals.wire_bytes
    return Change("grew" if added > 0 else "shrank" if added < 0 else "changed", before, after)


def _row(transfers: list[Transfer]) -> Row:
    first = transfers[0]
    dtype = "+".join(sorted({t.dtype for t in transfers}))
    sub_axes = first.sub_axes if len({t.sub_axes for t in transfers}) == 1 else None
    where = first.phase or "", first.scope, first.origin
    return Row(first.kind, first.axes, sub_axes, *where, dtype, Totals.of(transfers))


def _wire(row: Row | None) -> Fraction:
    return row.totals.wire_bytes if row else Fraction(0)


def _row_json(row: Row | None) -> dict[str, Any] | None:
    if row is None:
        return None
    told = {name: getattr(row, name) for name in ("phase", "scope", "origin", "dtype")}
    sizes = {
        "sites": row.totals.sites,
        "executions": row.totals.executions,
        "arrays": row.totals.arrays,
        "payload_bytes": row.totals.payload_bytes,
        "wire_bytes": number(row.totals.wire_bytes),
    }
    sub_axes = row.sub_axes and [asdict(one) for one in row.sub_axes]
    return {"kind": str(row.kind), "axes": row.axes and list(row.axes), "sub_axes": sub_axes} | told | sizes


def _number(value: Fraction | None) -> int | float | None:
    return None if value is None else number(value)


def to_json(before: Ledger, after: Ledger) -> dict[str, Any]:
    """The `sharding-lab/diff/1` object; totals are of one step of one device."""
    ends = {
        name: {"source": ledger.source, "target": ledger.target, "totals": ledger.totals().to_json()}
        for name, ledger in (("before", before), ("after", after))
    }
    along = {row.axes: row.to_json() for row in by_axes(before, after)}
    return (
        {"schema": SCHEMA}
        | ends
        | {"by_axes": along, "changes": [change.to_json() for change in changes(before, after)]}
    )
