"""Who sends to whom as a picture: senders down, receivers across; the more bytes, the darker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from lab.core.units import bytes_text
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.report.drawing import BLUE, INK, PAPER, RULE, SOFT, Box, Drawing, Label, Line, Shape, figure
from lab.report.given import given_ledgers
from lab.report.place import Place
from lab.report.traffic import Traffic, levels, not_placed, traffic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEFT, TOP, RIGHT = 52, 84, 12
CELL, WIDE, MOST_WIDE = 20, 68, 8
"""Pixels of a cell; of one with its bytes in it, where blocks are so few."""
MOST_NUMBERS, LEAST_WIDTH = 16, 430
LINE, PIXELS_A_LETTER = 18, 6.5


@dataclass(frozen=True)
class WhoSends:
    """How many bytes each host sends to each host in a step of a program; each device, where they are of one host.

    Attributes:
      source: a compiled text, or what `lab inspect --json` wrote, which knows the rest.
      mesh: of that program, in the order of `mesh.devices`.
      target: what it was compiled for, which tells the hosts.
    """

    source: str = ""
    mesh: str = ""
    target: str = ""

    def figure(self) -> Figure:
        return figure(self.drawing())

    def drawing(self) -> Drawing:
        if not self.source:
            raise UsageError(
                "the plot of traffic needs a program: lab inspect SOURCE --mesh ... --target ... --json > step.json, "
                "then --set source=step.json"
            )
        target = parse_target(self.target) if self.target else None
        ledger, *others = given_ledgers("the plot of traffic", self.source, self.mesh, target)
        place = Place.of(ledger)
        if others or place.axes is None:
            found = f"{1 + len(others)} modules" if others else "no mesh"
            raise UsageError(
                f"source={self.source}: found {found}, expected one program and its axes, --set mesh=data=2,tensor=8"
            )
        blocks, *_ = levels(place.axes, place.domains, place.domain)
        found_traffic = traffic(ledger, place.axes, blocks)
        return heat(found_traffic, not_placed(ledger, found_traffic))


def title(found: Traffic) -> str:
    return f"Bytes of a step from {found.blocks.unit} to {found.blocks.unit}"


def heat(found: Traffic, notes: Sequence[str] = ()) -> Drawing:
    """Args: notes: sentences below."""
    blocks = found.blocks
    is_wide = blocks.count <= MOST_WIDE
    cell = WIDE if is_wide else CELL
    side, most, step = cell * blocks.count, found.bytes.max() or 1.0, ceil(blocks.count / MOST_NUMBERS)
    shapes: list[Shape] = [
        Label(8, 18, title(found)),
        Label(8, 36, _crossing(found), SOFT),
        Label(LEFT, TOP - 22, "to \N{RIGHTWARDS ARROW}", SOFT),
        Label(6, TOP - 6, "from \N{DOWNWARDS ARROW}", SOFT),
        *_frame(side),
    ]
    for i in range(0, blocks.count, step):
        middle = cell * (i + 0.5)
        shapes += [Label(LEFT - 6, TOP + middle + 4, str(i), SOFT, "end")]
        shapes += [Label(LEFT + middle, TOP - 6, str(i), SOFT, "middle")]
    for sender, receiver in zip(*found.bytes.nonzero(), strict=True):
        sent, x, y = float(found.bytes[sender, receiver]), LEFT + cell * int(receiver), TOP + cell * int(sender)
        dark = 0.1 + 0.9 * (sent / most) ** 0.5
        told = f"{sender} to {receiver}: {bytes_text(round(sent))}"
        shapes.append(Box(x + 1, y + 1, cell - 2, cell - 2, BLUE, told, opacity=round(dark, 3)))
        if is_wide:
            ink = PAPER if dark > 0.6 else INK
            shapes.append(Label(x + cell / 2, y + cell / 2 + 4, bytes_text(round(sent)), ink, "middle", 11))
    foot = TOP + side + RIGHT
    shapes += [Label(8, foot + LINE * row - 4, note, SOFT) for row, note in enumerate(notes, 1)]
    width = max(LEAST_WIDTH, LEFT + side + RIGHT, *(PIXELS_A_LETTER * len(note) for note in notes))
    return Drawing(title(found), width, foot + LINE * len(notes), tuple(shapes))


def _crossing(found: Traffic) -> str:
    whole, inside = float(found.bytes.sum()), float(found.bytes.trace())
    if found.blocks.unit == "device":
        return f"{bytes_text(round(whole))} in all"
    return f"{bytes_text(round(whole - inside))} of {bytes_text(round(whole))} leave their {found.blocks.unit}"


def _frame(side: float) -> list[Shape]:
    corners = ((LEFT, TOP), (LEFT + side, TOP), (LEFT + side, TOP + side), (LEFT, TOP + side), (LEFT, TOP))
    return [Line(corners, RULE)]
