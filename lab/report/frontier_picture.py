"""A step's variants as a picture: memory across, seconds up; without seconds, bytes that are sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from lab.core.units import bytes_text, seconds_text
from lab.frontier.frontier import Frontier, Row
from lab.frontier.intervention import text
from lab.frontier.outcome import Outcome
from lab.report.drawing import BAD, BLUE, GREEN, INK, ORANGE, RULE, SOFT, Box, Dot, Drawing, Label, Line, Shape

LEFT, RIGHT, TOP, WIDTH, HEIGHT = 76, 44, 40, 760, 380
ROW, FOOT = 18, 44
_TICKS = 5
_MARGIN = 0.08
_FARTHEST = 1.25
"""Times the memory that fits: as far as the picture goes where something does."""
_LONGEST = 100
"""Letters of a name under the picture."""


@dataclass(frozen=True)
class _Linear:
    """A scale onto pixels with room on both sides."""

    least: float
    most: float
    start: float
    end: float

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float) -> _Linear:
        room = _MARGIN * (max(values) - min(values)) or 0.1 * max(values) or 1.0
        return cls(max(0.0, min(values) - room), max(values) + room, start, end)

    def __call__(self, value: float) -> float:
        return self.start + (value - self.least) / (self.most - self.least) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Whole multiples of 1, 2 or 5 times a power of ten, at most so many apart."""
        least = (self.most - self.least) / _TICKS
        tenth = 10.0 ** floor(log10(least))
        step = next(tenth * times for times in (1, 2, 5, 10) if tenth * times >= least)
        return [step * at for at in range(ceil(self.least / step), floor(self.most / step) + 1)]


def drawing(found: Frontier) -> Drawing:
    """What each variant holds and how long it takes; those on the front are numbered, and named below."""
    has_seconds = found.asked.step is not None
    rows = [(row, row.outcome) for row in found.rows if row.outcome and row.same_as is None and not row.mathematics]
    x = _Linear.around([_held(found, one) for _, one in rows], LEFT, WIDTH - RIGHT)
    y = _Linear.around([_height(one, has_seconds) for _, one in rows], HEIGHT - FOOT, TOP)
    shapes: list[Shape] = [*_frame(x, y, has_seconds), *_limit(found, x, y)]
    front = found.front
    places = sorted(
        (x(_held(found, row.outcome)), y(_height(row.outcome, has_seconds))) for row in front if row.outcome
    )
    shapes.append(Line(tuple(_lowest(places)), BLUE, 1.5, (5, 4)))
    # The step as it is lies over others, and the front over both.
    for row, one in sorted(rows, key=lambda each: (each[0] in front, not each[0].variant)):
        at = x(_held(found, one)), y(_height(one, has_seconds))
        shapes.append(
            Dot(*at, 6 if row in front else 4 + (not row.variant), _colour(found, row, front), _told(row, one))
        )
    foot = HEIGHT + ROW / 2
    for number, row in enumerate(front, 1):
        if row.outcome:
            at = x(_held(found, row.outcome)), y(_height(row.outcome, has_seconds))
            shapes.append(Label(at[0] + 8, at[1] - 6, str(number)))
            name = _name(found, row)
            shapes += [
                Dot(LEFT + 6, foot - 4, 5, _colour(found, row, front)),
                Label(LEFT + 18, foot, f"{number}: {name}"),
            ]
            foot += ROW
    keys = ((GREEN, "pick"), (ORANGE, "as it is"), (BLUE, "front"), (SOFT, "others"), (BAD, "does not fit"))
    for place, (colour, name) in enumerate(keys):
        shapes += [Dot(LEFT + 6 + 110 * place, 16, 5, colour), Label(LEFT + 16 + 110 * place, 20, name, SOFT)]
    return Drawing(f"Memory and time of {found.source} under each change", WIDTH, foot, tuple(shapes))


def _held(found: Frontier, one: Outcome) -> float:
    """What holds far too much stands at the edge."""
    most = _FARTHEST * found.usable_bytes if found.usable_bytes and found.pick else float("inf")
    return min(float(one.peak or 0), most)


def _height(one: Outcome, has_seconds: bool) -> float:
    return (one.step or 0.0) if has_seconds else float(one.wire_bytes)


def _lowest(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those from the left of which each is faster than all before it, as a stair; down the page y grows."""
    kept: list[tuple[float, float]] = []
    for at, height in places:
        if not kept or height > kept[-1][1]:
            kept += [(at, kept[-1][1]), (at, height)] if kept else [(at, height)]
    return kept


def _colour(found: Frontier, row: Row, front: Sequence[Row]) -> str:
    if row.outcome and row.outcome.fits is False:
        return BAD
    if row is found.pick:
        return GREEN
    return ORANGE if not row.variant else BLUE if row in front else SOFT


def _told(row: Row, one: Outcome) -> str:
    step = f", {seconds_text(one.step)}" if one.step is not None else ""
    return f"{text(row.variant)}: {bytes_text(one.peak or 0)}{step}, {bytes_text(one.wire_bytes)} sent"


def _name(found: Frontier, row: Row) -> str:
    name = text(row.variant) + ", the pick" * (row is found.pick)
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}..."


def _frame(x: _Linear, y: _Linear, has_seconds: bool) -> list[Shape]:
    shapes: list[Shape] = [Line(((x(at), y.start), (x(at), y.end)), RULE) for at in x.ticks]
    shapes += [Line(((x.start, y(at)), (x.end, y(at))), RULE) for at in y.ticks]
    shapes.append(Line(((x.start, y.end), (x.start, y.start), (x.end, y.start)), SOFT))
    shapes += [Label(x(at), y.start + 15, bytes_text(round(at)), SOFT, "middle") for at in x.ticks]
    named = seconds_text if has_seconds else lambda value: bytes_text(round(value))
    shapes += [Label(x.start - 6, y(at) + 4, named(at), SOFT, "end") for at in y.ticks]
    across = "peak memory of a device"
    return [
        *shapes,
        Label(x.end, y.start + 32, across, INK, "end"),
        Label(4, y.end - 12, "step" if has_seconds else "sent"),
    ]


def _limit(found: Frontier, x: _Linear, y: _Linear) -> list[Shape]:
    """From where on nothing fits."""
    if not found.usable_bytes or not x.least < found.usable_bytes < x.most:
        return []
    at = x(found.usable_bytes)
    return [
        Box(at, y.end, x.end - at, y.start - y.end, BAD, opacity=0.08),
        Label(at + 4, y.end + 14, f"does not fit: more than {bytes_text(found.usable_bytes)}", BAD),
    ]
