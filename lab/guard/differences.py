"""What one compilation of a program has otherwise than another, on which instruction and line: transfers, how they are
scheduled, FLOPs, memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from lab.core import changes
from lab.core.changes import Row
from lab.core.ledger import Ledger, Memory, Overlap, Transfer
from lab.core.units import exact
from lab.diagnosis.program import Program
from lab.hlo.collectives import in_its_loops
from lab.hlo.names import phase, scope

_NAMED = 3
"""Temporaries that came or went."""
_UNKNOWN_MEMORY = Memory(0, 0, 0, 0, None)


class About(StrEnum):
    TRANSFERS = "transfers"
    SCHEDULE = "schedule"
    FLOPS = "FLOPs"
    MEMORY = "memory"


@dataclass(frozen=True)
class Site:
    """A product with its FLOPs of a step, or a temporary of the fullest moment with its bytes."""

    amount: int
    place: str
    line: str | None
    instruction: str


@dataclass(frozen=True)
class Sites:
    """What a program communicates, multiplies and holds.

    Attributes:
      held: the temporaries of the fullest moment; () where XLA was not asked for them, and on CPUs, where it does not
        tell them.
    """

    ledger: Ledger
    products: tuple[Site, ...] = ()
    held: tuple[Site, ...] = ()

    @classmethod
    def of(cls, program: Program, is_held_told: bool) -> Sites:
        return cls(program.ledger, tuple(_products(program)), tuple(_held(program)) if is_held_told else ())

    @property
    def schedule(self) -> Mapping[str, int]:
        """Executions of transfers in a step: `blocking`, and those that are awaited later, `hidden` where products run
        beside them, else `exposed`; `async` where the text does not tell."""
        found = Counter[str]()
        for transfer in self.ledger.transfers:
            if transfer.group_size != 1 and transfer.overlap is not None:
                found[_scheduled(transfer)] += transfer.executions or 1
        return dict(sorted(found.items()))


@dataclass(frozen=True)
class Difference:
    """Attributes:
    what: `grew`, `vanished`, and so on; of memory the part.
    places: of the program that it concerns; of memory the part.
    before, after: what stands there; "" where there is nothing.
    lines: before and after; the same once.
    instructions: before and after.
    """

    about: About
    what: str
    places: tuple[str, ...]
    before: str
    after: str
    lines: tuple[str, ...] = field(default=(), compare=False)
    instructions: tuple[tuple[str, ...], tuple[str, ...]] = field(default=((), ()), compare=False)

    def is_undone(self, left: Iterable[Difference]) -> bool:
        """None of those that are left is at its places."""
        return all(set(each.places).isdisjoint(self.places) for each in left)


def differences(before: Sites, after: Sites) -> tuple[Difference, ...]:
    """Transfers first, then what they are scheduled like, FLOPs, memory."""
    return (*_transfers(before, after), *_schedules(before, after), *_flops(before, after), *_memory(before, after))


def _products(program: Program) -> Iterator[Site]:
    for visit, work in program.reading.products:
        if work.flops and visit.executions:
            i = visit.instruction
            name = in_its_loops(i.op_name or "", visit)
            parts = phase(name or None, program.is_differentiated) or "", scope(name)
            yield Site(work.flops * visit.executions, _joined(*parts), program.origin(i), i.name)


def _held(program: Program) -> Iterator[Site]:
    held = program.held()
    names = {buffer.op_name for buffer in held if buffer.op_name}
    made = {i.op_name: i for c in program.module.computations.values() for i in c.instructions if i.op_name in names}
    for buffer in held:
        i = made.get(buffer.op_name)
        yield Site(buffer.size, scope(buffer.op_name), program.origin(i) if i else None, i.name if i else "")


def _transfers(before: Sites, after: Sites) -> Iterator[Difference]:
    old, new = _by_place(before.ledger), _by_place(after.ledger)
    for change in changes.changes(before.ledger, after.ledger):
        places = tuple(None if row is None else _place(row) for row in (change.before, change.after))
        named = tuple(_names(of.get(place or "", ())) for of, place in zip((old, new), places, strict=True))
        yield Difference(
            About.TRANSFERS,
            change.what,
            tuple(dict.fromkeys(filter(None, places))),
            _row_text(change.before),
            _row_text(change.after),
            lines=_once(row.origin for row in change.rows),
            instructions=(named[0], named[1]),
        )


def _schedules(before: Sites, after: Sites) -> Iterator[Difference]:
    """Of places that send the same: how their transfers are started and awaited."""
    old, new = _by_place(before.ledger), _by_place(after.ledger)
    moved = {_place(row) for change in changes.changes(before.ledger, after.ledger) for row in change.rows}
    for place, some in old.items():
        others = new.get(place, ())
        texts = _schedule_text(some), _schedule_text(others)
        if place not in moved and texts[0] != texts[1]:
            lines = _once(t.origin for t in (*some, *others))
            yield Difference(
                About.SCHEDULE,
                "rescheduled",
                (place,),
                *texts,
                lines=lines,
                instructions=(_names(some), _names(others)),
            )


def _flops(before: Sites, after: Sites) -> Iterator[Difference]:
    """By place where the sum differs."""
    if before.ledger.flops == after.ledger.flops:
        return
    old, new = (_sites_by_place(sites.products) for sites in (before, after))
    for place in dict.fromkeys((*old, *new)):
        some, others = old.get(place, ()), new.get(place, ())
        amounts = [sum(site.amount for site in those) for those in (some, others)]
        if amounts[0] != amounts[1]:
            yield Difference(
                About.FLOPS,
                _trend(*amounts),
                (place,),
                _amount_text(amounts[0], "FLOPs"),
                _amount_text(amounts[1], "FLOPs"),
                lines=_once(site.line for site in (*some, *others)),
                instructions=(_instructions(some), _instructions(others)),
            )


def _memory(before: Sites, after: Sites) -> Iterator[Difference]:
    """By part; of temporaries and the peak those that came and went, where XLA tells them."""
    old, new = (asdict(sites.ledger.memory or _UNKNOWN_MEMORY) for sites in (before, after))
    went, came = _only(before.held, after.held), _only(after.held, before.held)
    for part, was in old.items():
        amounts = was or 0, new[part] or 0
        if amounts[0] == amounts[1]:
            continue
        shown = (went, came) if part in ("peak", "temporaries") else ((), ())
        yield Difference(
            About.MEMORY,
            _trend(*amounts),
            (part,),
            _amount_text(amounts[0], "B"),
            _amount_text(amounts[1], "B"),
            lines=_once(site.line for some in shown for site in some),
            instructions=(_instructions(shown[0]), _instructions(shown[1])),
        )


def _only(some: Sequence[Site], others: Sequence[Site]) -> tuple[Site, ...]:
    """The largest of what the others do not have."""
    theirs = Counter((site.amount, site.place) for site in others)
    found = []
    for site in some:
        key = site.amount, site.place
        if theirs[key]:
            theirs[key] -= 1
        else:
            found.append(site)
    return tuple(sorted(found, key=lambda site: -site.amount)[:_NAMED])


def _by_place(ledger: Ledger) -> dict[str, list[Transfer]]:
    found: dict[str, list[Transfer]] = defaultdict(list)
    for t in ledger.split().transfers:
        if t.group_size != 1:
            found[_joined(f"{t.kind} over {t.span}", t.phase or "", t.scope)].append(t)
    return found


def _place(row: Row) -> str:
    return _joined(f"{row.kind} over {row.span}", row.phase, row.scope)


def _joined(*words: str) -> str:
    return ", ".join(filter(None, words))


def _row_text(row: Row | None) -> str:
    """What one device sends: `4 x f32, 1,048,576 B`."""
    if row is None:
        return ""
    totals = row.totals
    least = "at least " * totals.lower_bound
    return f"{least}{totals.executions:,} x {row.dtype}, {exact(totals.wire_bytes)} B"


def _scheduled(transfer: Transfer) -> str:
    if transfer.overlap is Overlap.SYNC:
        return "blocking"
    return {True: "hidden", False: "exposed", None: "async"}[transfer.is_over_products]


def _schedule_text(some: Iterable[Transfer]) -> str:
    found = Counter[str]()
    for t in some:
        if t.overlap is not None:
            found[_scheduled(t)] += t.executions or 1
    return ", ".join(f"{often:,} {how}" for how, often in sorted(found.items()))


def _sites_by_place(some: Iterable[Site]) -> dict[str, list[Site]]:
    found: dict[str, list[Site]] = defaultdict(list)
    for site in some:
        found[site.place].append(site)
    return found


def _amount_text(amount: int, unit: str) -> str:
    return f"{exact(amount)} {unit}" if amount else ""


def _trend(before: int, after: int) -> str:
    if not before or not after:
        return "vanished" if before else "appeared"
    return "grew" if after > before else "shrank"


def _names(some: Iterable[Transfer]) -> tuple[str, ...]:
    return _once(t.instruction for t in some)


def _instructions(some: Iterable[Site]) -> tuple[str, ...]:
    return _once(site.instruction for site in some)


def _once(words: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, words)))
