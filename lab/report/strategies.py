"""The lattice of strategies as a picture: memory of a device over the bytes that it sends, and which strategy shards
what another replicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import hypot
from typing import TYPE_CHECKING

from lab.core.units import bytes_text, count, scaled
from lab.programs.composed.lattice import Lattice, Point, lattice
from lab.programs.models.shape import DecoderShape
from lab.report.drawing import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PAPER,
    RULE,
    SOFT,
    Dot,
    Drawing,
    Label,
    Line,
    Logarithmic,
    Shape,
    figure,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEFT, RIGHT, TOP, BOTTOM = 64, 700, 44, 560
LIST, WIDTH, ROW = 740, 1130, 17
COLUMNS = (LIST + 235, LIST + 310, LIST + 385)
"""Right ends of what is held, of what is sent, and the list's own."""
RADIUS, NEAR_THE_HEAD = 9, 400


@dataclass(frozen=True)
class Strategies:
    """What each strategy, and each pair of two, holds on a device and sends in a step, and which shards what another
    replicates (Ch. 24).

    Attributes:
      model: of `lab.zoo`, at its real size.
      devices: over which every strategy is spread; pairs as evenly as they allow.
      batch: sequences of one step.
    """

    model: str = "llama3-8b"
    devices: int = 8
    batch: int = 64

    def figure(self) -> Figure:
        return figure(self.drawing())

    def drawing(self) -> Drawing:
        model = replace(DecoderShape.preset(self.model), batch=self.batch)
        title = f"{self.model} on {self.devices:,} devices, {self.batch:,} sequences of {model.length:,} tokens a step"
        return picture(lattice(model, self.devices), title)


def picture(found: Lattice, title: str) -> Drawing:
    """Strategies alone in blue, pairs in green, numbered by what they hold; a line joins those that no other beats."""
    points = sorted(found.points, key=lambda point: point.held)
    sent, held = (
        Logarithmic.around(values, *ends)
        for values, ends in (
            ([point.sent for point in points], (LEFT, RIGHT)),
            ([point.held for point in points], (BOTTOM, TOP)),
        )
    )
    at = {point: (sent(point.sent), held(point.held)) for point in points}
    moves = [(at[a], at[b], what) for a, b, what in found.moves]
    shapes: list[Shape] = [Label(LEFT, 18, title), *_frame(sent, held)]
    shapes += [Line((a, b), RULE) for a, b, what in moves if not what]
    frontier = [at[point] for point in found.frontier]
    shapes.append(Line(tuple(frontier), ORANGE, 2, (6, 4), told="no other strategy holds and sends less"))
    for a, b, what in moves:
        if what:
            shapes += _arrow(a, b, what)
    # Those alone lie on top.
    for number, point in sorted(enumerate(points, 1), key=lambda each: -len(each[1].parts)):
        shapes += _dot(number, point, *at[point], is_best=point in found.frontier)
    shapes += _named(points, at)
    shapes += _list(points, found.frontier)
    if found.refused:
        left_out = f"not shown: {count(len(found.refused), 'choice')} that these sizes do not allow"
        shapes.append(Label(LEFT, BOTTOM + 34, left_out, SOFT))
    foot = max(BOTTOM + 50, TOP + ROW * (len(points) + 5))
    return Drawing(title, WIDTH, foot, tuple(shapes))


def _frame(sent: Logarithmic, held: Logarithmic) -> list[Shape]:
    shapes: list[Shape] = [Line(((sent(tick), BOTTOM), (sent(tick), TOP)), RULE) for tick in sent.ticks]
    shapes += [Line(((LEFT, held(tick)), (RIGHT, held(tick))), RULE) for tick in held.ticks]
    shapes += [Label(sent(tick), BOTTOM + 16, scaled(tick, "B"), SOFT, "middle") for tick in sent.ticks]
    shapes += [Label(LEFT - 6, held(tick) + 4, scaled(tick, "B"), SOFT, "end") for tick in held.ticks]
    return [
        *shapes,
        Label(RIGHT, BOTTOM + 34, "sent by a device in a step", SOFT, "end"),
        Label(LEFT, TOP - 8, "held by a device: state, gradients, activations kept", SOFT),
    ]


def _arrow(a: tuple[float, float], b: tuple[float, float], what: str) -> list[Shape]:
    """From dot to dot, with its name beside the middle."""
    length = hypot(b[0] - a[0], b[1] - a[1])
    if length < 3 * RADIUS:
        return []
    x, y = (b[0] - a[0]) / length, (b[1] - a[1]) / length
    tail, head = (a[0] + RADIUS * x, a[1] + RADIUS * y), (b[0] - (RADIUS + 2) * x, b[1] - (RADIUS + 2) * y)
    wings = [(head[0] - 7 * x + side * 4 * y, head[1] - 7 * y - side * 4 * x) for side in (1, -1)]
    # Names of long flat arrows stand near the head, apart from others; at the right edge and along a slant to the left
    # they end at the arrow.
    along = 0.75 if abs(b[0] - a[0]) > NEAR_THE_HEAD else 0.5
    middle = a[0] + along * (b[0] - a[0]), a[1] + along * (b[1] - a[1]) - 4
    is_left = b[0] < a[0] - 1 or middle[0] > RIGHT - 150
    name = Label(middle[0] + (-8 if is_left else 8), middle[1], what, SOFT, "end" if is_left else "start", 11)
    return [
        Line((tail, head), INK, 1.2),
        Line((wings[0], head, wings[1]), INK, 1.2),
        name,
    ]


def _dot(number: int, point: Point, x: float, y: float, *, is_best: bool) -> list[Shape]:
    colour = BLUE if len(point.parts) == 1 else GREEN
    ring = [Dot(x, y, RADIUS + 2, ORANGE)] if is_best else []
    return [*ring, Dot(x, y, RADIUS, colour, point.name), Label(x, y + 4, str(number), PAPER, "middle", 10)]


def _named(points: Sequence[Point], at: dict[Point, tuple[float, float]]) -> list[Shape]:
    """Those alone, above their dots, or beside them where another dot is there."""
    shapes: list[Shape] = []
    for point in points:
        if len(point.parts) == 1:
            x, y = at[point]
            is_taken = any(0 < left - x < 60 and -2 * RADIUS < top - y < 0 for left, top in at.values())
            place = (x + RADIUS + 4, y + 4) if is_taken else (x + RADIUS, y - RADIUS)
            shapes.append(Label(*place, point.parts[0]))
    return shapes


def _list(points: Sequence[Point], frontier: Sequence[Point]) -> list[Shape]:
    shapes: list[Shape] = [
        Label(COLUMNS[0], TOP - 8, "held", SOFT, "end"),
        Label(COLUMNS[1], TOP - 8, "sent", SOFT, "end"),
    ]
    for number, point in enumerate(points, 1):
        foot, colour = TOP + ROW * number - 6, BLUE if len(point.parts) == 1 else GREEN
        shapes += [
            Label(LIST + 16, foot, str(number), colour, "end"),
            Label(LIST + 24, foot, point.name),
            Label(COLUMNS[0], foot, bytes_text(point.held), INK, "end"),
            Label(COLUMNS[1], foot, bytes_text(round(point.sent)), INK, "end"),
        ]
        if point in frontier:
            shapes.append(Dot(COLUMNS[1] + 12, foot - 4, 4, ORANGE))
    foot = TOP + ROW * (len(points) + 1)
    return [
        *shapes,
        Dot(LIST + 12, foot - 4, 4, ORANGE),
        Label(LIST + 24, foot, "no other holds and sends less", SOFT),
        Line(((LIST + 2, foot + ROW - 4), (LIST + 20, foot + ROW - 4)), INK, 1.2),
        Label(LIST + 24, foot + ROW, "what the second one shards", SOFT),
        Line(((LIST + 2, foot + 2 * ROW - 4), (LIST + 20, foot + 2 * ROW - 4)), RULE, 2),
        Label(LIST + 24, foot + 2 * ROW, "two strategies and their pair", SOFT),
    ]
