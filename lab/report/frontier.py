"""A step under every intervention, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from lab.core.units import bytes_text, count, seconds_text, share_text
from lab.frontier.frontier import Frontier, Refusal, Row, certainty, how
from lab.frontier.intervention import text
from lab.frontier.outcome import Outcome
from lab.meshes.platforms import Platform
from lab.meshes.targets import parse_target
from lab.report.fitted import Column
from lab.report.tables import columns_text


def frontier_text(found: Frontier) -> str:
    """The pick and its reason; what is on the front; what each intervention changes; what changes nothing or was
    refused."""
    parts = [
        "\n".join(headlines(found)),
        f"on the front: no other sends less, takes less time or holds less without more of another\n\n"
        f"{columns_text(columns(found, found.front))}",
    ]
    if rows := effects(found):
        parts.append(f"what each changes\n\n{columns_text(columns(found, rows))}")
    if rows := other_mathematics(found):
        parts.append(f"with other mathematics, which no pick has\n\n{columns_text(columns(found, rows))}")
    return "\n\n".join([*parts, "\n".join(notes(found))])


def headlines(found: Frontier) -> list[str]:
    compiled = [row for row in found.rows if row.outcome]
    tried = f"{count(len(compiled), 'variant')} compiled in {seconds_text(found.seconds)}"
    pick = found.pick
    if pick is None:
        return [f"{found.source} on {found.target}: {tried}; none fits"]
    told = [f"{found.source} on {found.target}: {tried}; take: {text(pick.variant)}", found.why()]
    if made := how(pick.variant):
        told.append(f"made by: {made}")
    if pick.outcome and (rests := certainty(pick.outcome)):
        told.append(f"its seconds: {rests}")
    return told


def effects(found: Frontier) -> list[Row]:
    """Those that change something, the fastest first."""
    rows = [row for row in found.rows[1:] if row.outcome and row.same_as is None and not row.mathematics]
    return sorted(rows, key=_speed)


def other_mathematics(found: Frontier) -> list[Row]:
    return sorted((row for row in found.rows[1:] if row.outcome and row.mathematics), key=_speed)


def _speed(row: Row) -> tuple[float, float]:
    return (row.outcome.step or 0.0, float(row.outcome.wire_bytes)) if row.outcome else (0.0, 0.0)


def columns(found: Frontier, rows: Sequence[Row]) -> list[Column]:
    """Of variants that were compiled; in brackets what is otherwise than of the step as it is. Empty ones are left
    out."""
    some = [(row, row.outcome) for row in rows if row.outcome]
    asked = found.asked
    axes: dict[frozenset[str], str] = {}  # Crossed ones, by the name that they have in the mesh as it is.
    for outcome in (asked, *(one for _, one in some)):
        for name in outcome.wire:
            axes.setdefault(_crossed(name), name)
    by_axes = [
        Column(f"sent over\n{name}", tuple(_changed(_sent(asked, names), _sent(one, names)) for _, one in some), True)
        for names, name in axes.items()
    ]
    made = [
        Column("variant", tuple(_name(row) for row, _ in some)),
        *by_axes,
        Column("exposed", tuple(seconds_text(one.seconds.exposed) if one.seconds else "" for _, one in some), True),
        Column("step", tuple(_step(asked, one) for _, one in some), True),
        Column("peak", tuple(_changed(asked.peak, one.peak) for _, one in some), True),
        Column("fits", tuple({True: "yes", False: "no", None: ""}[one.fits] for _, one in some)),
        Column("FLOPs", tuple(_flops(asked, one) for _, one in some), True),
        Column("", tuple(_marks(found, row) for row, _ in some)),
    ]
    return [column for column in made if any(column.cells)]


def _crossed(name: str) -> frozenset[str]:
    return frozenset(name.split("+"))


def _sent(one: Outcome, names: frozenset[str]) -> Fraction:
    return sum((sent for name, sent in one.wire.items() if _crossed(name) == names), Fraction(0))


def _name(row: Row) -> str:
    return text(row.variant) + f" ({row.mathematics})" * bool(row.mathematics)


def _changed(asked: Fraction | int | None, found: Fraction | int | None) -> str:
    """`1.35 GB (-3.2 %)`."""
    if found is None:
        return ""
    return bytes_text(found) + _relative(asked, found)


def _relative(asked: Fraction | float | None, found: Fraction | float) -> str:
    if not asked or asked == found:
        return ""
    change = float(found / asked) - 1
    return f" ({'+' if change > 0 else '-'}{share_text(abs(change))})"


def _step(asked: Outcome, one: Outcome) -> str:
    if one.step is None:
        return ""
    at_least = "" if one.is_known else ">= "
    return at_least + seconds_text(one.step) + _relative(asked.step, one.step)


def _flops(asked: Outcome, one: Outcome) -> str:
    if one.flops is None:
        return ""
    return f"{one.flops / 1e12:,.4g} T" + _relative(asked.flops, one.flops)


def _marks(found: Frontier, row: Row) -> str:
    pick = "pick" * (row is found.pick)
    return ", ".join(filter(None, (pick, "front" * (row in found.front))))


def notes(found: Frontier) -> Iterator[str]:
    """What changes nothing by itself, what was refused, and what does not apply."""
    alone = [row for row in found.rows if len(row.variant) == 1]
    same = [(text(row.same_as), text(row.variant)) for row in alone if row.same_as is not None]
    for first in dict.fromkeys(first for first, _ in same):
        names = ", ".join(name for of, name in same if of == first)
        yield f"changes nothing: {names}" if first == "as it is" else f"the same as {first}: {names}"
    refused = [(row.found, text(row.variant)) for row in found.rows if isinstance(row.found, Refusal)]
    for why, name in refused:
        if not why.is_none:
            yield f"refused: {name}: {why.why}"
    idle = [name for why, name in refused if why.is_none]
    if idle:
        yield f"does not apply: {', '.join(idle)}"
    if any(row.outcome.lower_bound for row in found.rows if row.outcome):
        yield "note: bytes sent are lower bounds: the text does not tell how often some transfers run"
    if any(row.outcome.upper_bound for row in found.rows if row.outcome):
        yield "note: bytes sent are the most there may be: data decide how many a ragged exchange sends"
    if parse_target(found.target).platform is Platform.CPU:
        yield "note: XLA reports no peak on CPUs: arguments, results and temporaries together stand in its place"
    if found.asked.seconds is None:
        yield "note: no seconds: the target has no chip with rates, or the text does not tell how often a loop runs"
    elif not found.asked.is_known:
        yield "note: seconds are lower bounds: rates cover too little of the step"
