"""The roofline of a chip: what bounds the FLOP/s of a program by the FLOPs that it does for each byte that crosses
memory or a link (Ch. 2; Williams, Waterman & Patterson 2009)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from pathlib import Path

from lab.book.roofline import attainable_flops_per_s
from lab.core.ledger import Ledger, Totals
from lab.core.units import scaled, share_text
from lab.meshes.errors import UsageError, no_such
from lab.meshes.hardware import Chip, Link
from lab.meshes.platforms import LinkName
from lab.report.drawing import BLUE, GREEN, INK, ORANGE, RULE, SOFT, Decades, Dot, Drawing, Label, Line, Shape

LEFT, RIGHT, TOP, WIDTH, HEIGHT = 56, 14, 44, 540, 330
ROW = 18
SLOW_LINKS = (LinkName.NETWORK, LinkName.DCN)


@dataclass(frozen=True)
class Point:
    """A program's use of one link.

    Attributes:
      flops_per_byte: FLOPs of one device for each byte that it sends over the link.
    """

    program: str
    link: Link
    flops_per_byte: float

    def share_of(self, peak: float) -> float:
        """What of the peak the link allows at most."""
        return float(attainable_flops_per_s(peak, self.link.value, self.flops_per_byte)) / peak


def points(of: Chip, ledger: Ledger) -> tuple[Point, ...]:
    """One for each link that a program uses, the chip's names for them.

    Raises:
      UsageError: the ledger counts no FLOPs, or does not say over which links its transfers go.
    """
    name = ledger.source or "this program"
    if not ledger.flops:
        raise UsageError(f"{name} counts no FLOPs, so it has no place on a roofline; it needs a matrix product")
    sent = [t for t in ledger.transfers if t.wire_bytes]
    if any(t.link is None for t in sent):
        raise UsageError(
            f"{name}: which transfers leave a host is not known of a text alone; say what it was compiled for, such as "
            "--set target=gpu:h100:16x8"
        )
    totals = {
        link: Totals.of(t for t in sent if (t.link in SLOW_LINKS) == is_slow)
        for is_slow, link in ((False, of.fast), (True, of.slow))
    }
    return tuple(
        Point(Path(name).name, link, ledger.flops / float(total.wire_bytes))
        for link, total in totals.items()
        if total.wire_bytes
    )


def peak(of: Chip, dtype: str) -> float:
    """FLOP/s of dense products.

    Raises:
      UsageError: the chip has no rate for the dtype.
    """
    if dtype not in of.flops_per_s:
        raise UsageError(f"{of.name}: {no_such('rate for dtype', dtype, of.flops_per_s)}")
    return of.flops_per_s[dtype].value


def roofline(of: Chip, found: Sequence[Point] = (), dtype: str = "bf16") -> Drawing:
    """The roofs of a chip's memory and links, and on them the programs.

    Raises:
      UsageError: the chip has no rate for the dtype.
    """
    top = peak(of, dtype)
    roofs = {
        "memory": (of.memory_bytes_per_s.value, BLUE),
        of.fast.name: (of.fast.value, GREEN),
        of.slow.name: (of.slow.value, ORANGE),
    }
    intensities = [point.flops_per_byte for point in found]
    widest = max([10 * top / of.slow.value, *(2 * at for at in intensities)])
    x = Decades(min(0, *(floor(log10(at)) for at in intensities), 0), ceil(log10(widest)), LEFT, WIDTH - RIGHT)
    lowest = min(of.slow.value * 10.0**x.first, *(rate for rate, _ in roofs.values()))
    y = Decades(floor(log10(lowest)), ceil(log10(2 * top)), HEIGHT - ROW * 2, TOP)
    shapes: list[Shape] = [Label(LEFT, 16, f"{of.name}, {dtype}: {scaled(round(top), 'FLOP/s')} at most")]
    shapes += _frame(x, y)
    # Below the slower link's roof, at the right, nothing is ever drawn.
    for row, (name, (rate, colour)) in enumerate(roofs.items()):
        at = x.end - 200, y.start - 12 - ROW * (len(roofs) - 1 - row)
        shapes += [_roof(x, y, top, rate, colour), Line(((at[0], at[1] - 4), (at[0] + 20, at[1] - 4)), colour, 2)]
        shapes.append(Label(at[0] + 28, at[1], f"{name}, {scaled(round(rate), 'B/s')}", colour))
    foot, program = HEIGHT, ""
    for number, point in enumerate(found, 1):
        if point.program != program:
            program, foot = point.program, foot + ROW
            shapes.append(Label(LEFT, foot, program, SOFT))
        foot += ROW
        said = (
            f"{point.link.name}: {scaled(point.flops_per_byte, 'FLOP/B')}, at most {share_text(point.share_of(top))} "
            "of the peak"
        )
        at, colour = (x(point.flops_per_byte), y(point.share_of(top) * top)), roofs[point.link.name][1]
        shapes += [Dot(*at, 7, INK, said), Dot(*at, 5.5, colour, said), Label(at[0] + 9, at[1] + 14, str(number))]
        shapes += [Dot(LEFT + 6, foot - 4, 5.5, colour), Label(LEFT + 18, foot, f"{number}: {said}")]
    return Drawing(f"Roofline of {of.name}", WIDTH, foot + ROW / 2, tuple(shapes))


def _frame(x: Decades, y: Decades) -> list[Shape]:
    """Rules and numbers at decades, every other one where they are many."""
    shapes: list[Shape] = [Line(((x(10.0**p), y.start), (x(10.0**p), y.end)), RULE) for p in x.ticks]
    shapes += [Line(((x.start, y(10.0**p)), (x.end, y(10.0**p))), RULE) for p in y.ticks]
    shapes += [
        Label(x(10.0**p), y.start + 15, scaled(10**p, "").strip() if p >= 0 else f"{10.0**p:g}", SOFT, "middle")
        for p in list(x.ticks)[:: 1 + (len(x.ticks) > 7)]
    ]
    shapes += [Label(x.start - 5, y(10.0**p) + 4, scaled(10**p, "").strip(), SOFT, "end") for p in y.ticks]
    shapes += [
        Label(x.end, y.start + 32, "FLOP for each byte that crosses", SOFT, "end"),
        Label(x.start, y.end - 7, "FLOP/s", SOFT),
    ]
    return shapes


def _roof(x: Decades, y: Decades, top: float, rate: float, colour: str) -> Line:
    """From the left edge, or from the floor, to the ridge, and on along the peak."""
    left = max(10.0**x.first, 10.0**y.first / rate)
    ends = [(left, rate * left), (top / rate, top), (10.0**x.last, top)]
    return Line(tuple((x(a), y(b)) for a, b in ends), colour, 2)
