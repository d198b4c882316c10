"""What changed between two ledgers: transfers that appeared, vanished, grew, shrank or moved to another place of the
program; and how much, by axes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from msgspec import UNSET, UnsetType

from lab.core import display
from lab.core.ledger import Kind, Ledger, SubAxis, Totals, TotalsJson, Transfer, span_text

SCHEMA: Final = "sharding-lab/diff/1"
Place = tuple[Kind, str, int | None, int | None, str, str]
Content = tuple[str, int, int | None, bool]
"""Dtype, payload bytes of one execution, devices in a group, and whether the number of executions is unknown."""


@dataclass(frozen=True)
class Row:
    """All transfers of one kind, over the same axes, at one place of the program; operands of combined ones count
    each.

    Attributes:
      function: that all of them are written in, "" where they are not, or where the text does not tell.
    """

    kind: Kind
    axes: tuple[str, ...] | None
    sub_axes: tuple[SubAxis, ...] | None
    phase: str
    scope: str
    origin: str | None
    dtype: str
    totals: Totals
    function: str = ""

    @property
    def scope_or_function(self) -> str:
        """See `Transfer`."""
        return self.scope or (f"{self.function}()" if self.function else "")

    @property
    def span(self) -> str:
        """The axes, or parts of axes, for people."""
        return span_text(self.axes, self.sub_axes)

    def json_object(self) -> RowJson:
        totals = self.totals
        return RowJson(
            self.kind,
            self.axes,
            self.phase,
            self.scope,
            self.origin,
            self.dtype,
            totals.sites,
            totals.executions,
            totals.payload_bytes,
            totals.wire_bytes,
            totals.arrays,
            self.sub_axes,
            self.function or UNSET,
        )


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

    def json_object(self) -> ChangeJson:
        before, after = (None if row is None else row.json_object() for row in (self.before, self.after))
        return ChangeJson(self.what, before, after)


@dataclass(frozen=True)
class RowJson:
    """All transfers of one kind over the same axes at one place of the program; totals of one step of one device, each
    array of a combined transfer counted as one site and execution, since arrays of other places may be among them."""

    kind: Kind
    axes: tuple[str, ...] | None
    phase: str
    scope: str
    origin: str | None
    dtype: str
    sites: int
    executions: int
    payload_bytes: int
    wire_bytes: Fraction
    arrays: int | UnsetType = UNSET
    sub_axes: tuple[SubAxis, ...] | UnsetType | None = UNSET
    function: str | UnsetType = UNSET


@dataclass(frozen=True)
class ChangeJson:
    what: str
    before: RowJson | None
    after: RowJson | None


@dataclass(frozen=True)
class Along:
    """What changed along the same axes.

    Attributes:
      axes: as `lab.core.ledger.span_text` joins them and parts of them; `?` where neither is known.
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

    def json_object(self) -> AlongJson:
        return AlongJson(self.before, self.after, self.changed, self.came, self.went, self.net)


@dataclass(frozen=True)
class AlongJson:
    """Wire bytes of one step of one device; null where the texts do not tell."""

    before: Fraction
    after: Fraction
    changed: Fraction | None
    came: Fraction | UnsetType | None = UNSET
    went: Fraction | UnsetType | None = UNSET
    net: Fraction | UnsetType | None = UNSET


@dataclass(frozen=True)
class Difference:
    """Two ledgers, to be compared; prints as the table of `lab diff`."""

    before: Ledger
    after: Ledger

    @property
    def changes(self) -> tuple[Change, ...]:
        return changes(self.before, self.after)

    def json_object(self) -> DifferenceJson:
        return DifferenceJson(
            schema=SCHEMA,
            before=_end(self.before),
            after=_end(self.after),
            by_axes={row.axes: row.json_object() for row in by_axes(self.before, self.after)},
            changes=tuple(change.json_object() for change in self.changes),
        )

    def __str__(self) -> str:
        return display.text(self)


@dataclass(frozen=True)
class EndJson:
    source: str
    target: str | None
    totals: TotalsJson


@dataclass(frozen=True)
class DifferenceJson:
    """What one program communicates otherwise than another, as `lab diff --json` prints it."""

    schema: Literal["sharding-lab/diff/1"]
    before: EndJson
    after: EndJson
    by_axes: Mapping[str, AlongJson]
    changes: tuple[ChangeJson, ...]


def _end(ledger: Ledger) -> EndJson:
    return EndJson(ledger.source, ledger.target, ledger.totals().json_object())


def by_axes(before: Ledger, after: Ledger) -> tuple[Along, ...]:
    """The axes along which something changed, the largest change first; changes that the texts do not tell the size of
    stand before all."""
    found: dict[str, list[Change]] = defaultdict(list)
    for change in changes(before, after):
        found[change.rows[0].span].append(change)
    old, new = before.totals_by(lambda t: t.span), after.totals_by(lambda t: t.span)
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


def changes(before: Ledger, after: Ledger) -> tuple[Change, ...]:
    """The largest first. Lines of source and names of instructions are not compared: they change with every edit."""
    old, new = _by_place(before), _by_place(after)
    appeared = {place: new[place] for place in new if place not in old}
    found = [_moved_or_vanished(place, old[place], appeared) for place in old if place not in new]
    found += [Change("appeared", None, _row(transfers)) for transfers in appeared.values()]
    for place in old.keys() & new.keys():
        if _content(old[place]) != _content(new[place]):
            found.append(_grown(_row(old[place], new[place]), _row(new[place], old[place])))
    return tuple(sorted(found, key=lambda change: (-abs(change.added_wire_bytes), change.what, str(change))))


def _by_place(ledger: Ledger) -> dict[Place, list[Transfer]]:
    places = defaultdict(list)
    for t in ledger.split().transfers:
        if t.group_size != 1:
            places[t.kind, t.span, None if t.axes else t.group_size, t.shift, t.phase or "", t.scope].append(t)
    return dict(places)


def _content(transfers: Iterable[Transfer]) -> Counter[Content]:
    """Executions by what is sent."""
    counts: Counter[Content] = Counter()
    for t in transfers:
        counts[t.dtype, t.payload_bytes, t.group_size, t.executions is None] += t.executions or 1
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


def _row(transfers: list[Transfer], others: Iterable[Transfer] = ()) -> Row:
    """Its line is that of the first transfer that is not among the others, function by function."""
    theirs = {_identity(t) for t in others}
    first = next((t for t in transfers if _identity(t) not in theirs), transfers[0])
    dtype = "+".join(sorted({t.dtype for t in transfers}))
    where = first.phase or "", first.scope, first.origin
    functions = {t.function for t in transfers}
    function = functions.pop() if len(functions) == 1 else ""
    return Row(first.kind, first.axes, first.sub_axes, *where, dtype, Totals.of(transfers), function)


def _identity(t: Transfer) -> tuple[object, ...]:
    return t.function, t.dtype, t.payload_bytes, t.group_size, t.executions


def _wire(row: Row | None) -> Fraction:
    return row.totals.wire_bytes if row else Fraction(0)
