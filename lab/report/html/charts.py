"""Charts as SVG, with their numbers in a table beside them wherever they stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from typing import NamedTuple

from markupsafe import Markup

from lab.book.roofline import attainable_flops_per_s
from lab.core.units import bytes_text, scaled
from lab.meshes.hardware import Chip
from lab.programs.pipelines.simulation import Timeline
from lab.report.html.markup import element, joined
from lab.report.traffic import Traffic

LEFT, BOTTOM = 52, 34
WIDTH, HEIGHT = 430, 300
CELL, MOST_LABELS = 20, 16
LEAST_BOX, WIDEST, ROW = 17, 1400, 26


def chart(label: str, width: float, height: float, *parts: Markup, kind: str = "") -> Markup:
    """A picture of fixed size, in a frame that scrolls where it is too wide."""
    size = {"viewBox": f"0 0 {width:g} {height:g}", "width": float(width), "height": float(height)}
    drawn = element("svg", *parts, role="img", aria_label=label, class_=f"chart {kind}".strip(), **size)
    return scrolling(label, drawn)


def scrolling(label: str, drawn: Markup) -> Markup:
    return element("div", drawn, class_="scroll", role="region", tabindex=0, aria_label=label)


def text(x: float, y: float, said: str, anchor: str = "start", class_: str | None = None) -> Markup:
    return element("text", said, x=float(x), y=float(y), text_anchor=anchor, class_=class_)


class Decades(NamedTuple):
    """A logarithmic scale of whole decades onto pixels."""

    first: int
    last: int
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (log10(value) - self.first) / (self.last - self.first) * (self.end - self.start)

    @property
    def ticks(self) -> range:
        return range(self.first, self.last + 1)


COLOURS = ("var(--blue)", "var(--green)", "var(--orange)")


def roofline(of: Chip, peak: float, points: Mapping[str, tuple[float, float]]) -> Markup:
    """The roofs of a chip's memory and links, and a program's place on those of the links that it uses.

    Args:
      peak: FLOP/s.
      points: link to (FLOPs for each byte that crosses it, its bytes a second).
    """
    rates = {"memory": of.memory_bytes_per_s.value, of.fast.name: of.fast.value, of.slow.name: of.slow.value}
    intensities = [at for at, _ in points.values()]
    x = Decades(
        min(0, floor(log10(min([1, *intensities])))),
        ceil(log10(max([10 * peak / of.slow.value, *intensities]))),
        LEFT,
        WIDTH - 12,
    )
    lowest = min([rates[of.slow.name] * 10.0**x.first, *rates.values()])
    y = Decades(floor(log10(lowest)), ceil(log10(2 * peak)), HEIGHT - BOTTOM, 12)
    colours = dict(zip(rates, COLOURS, strict=False))
    parts = [*_frame(x, y), *(_roof(x, y, peak, rate, name, colours[name]) for name, rate in rates.items())]
    for name, (at, rate) in points.items():
        bound = attainable_flops_per_s(peak, rate, at)
        told = element(
            "title", f"this program over {name}: {scaled(at, 'FLOP/B')}, at most {100 * bound / peak:.3g} % of peak"
        )
        parts.append(
            element(
                "circle",
                told,
                cx=float(x(at)),
                cy=float(y(bound)),
                r=6,
                style=f"fill:{colours[name]};stroke:var(--ink);stroke-width:1.5",
            )
        )
    return chart(
        f"Roofline of {of.name}: FLOP/s at most over FLOPs for each byte that crosses",
        WIDTH,
        HEIGHT,
        *parts,
        kind="roofline",
    )


def _frame(x: Decades, y: Decades) -> list[Markup]:
    """Rules and numbers at decades, every other one where they are many."""

    def rule(**ends: float) -> Markup:
        return element("line", class_="rule", **ends)

    across = [rule(x1=float(x(10.0**p)), x2=float(x(10.0**p)), y1=float(y.start), y2=float(y.end)) for p in x.ticks]
    along = [rule(x1=float(x.start), x2=float(x.end), y1=float(y(10.0**p)), y2=float(y(10.0**p))) for p in y.ticks]
    step = 1 + (len(x.ticks) > 7)
    below = [
        text(x(10.0**p), y.start + 15, scaled(10**p, "").strip() if p >= 0 else f"{10.0**p:g}", "middle", "soft")
        for p in x.ticks[::step]
    ]
    beside = [text(x.start - 5, y(10.0**p) + 4, scaled(10**p, "").strip(), "end", "soft") for p in y.ticks]
    return [
        *across,
        *along,
        *below,
        *beside,
        text(x.end, y.start + 30, "FLOP for each byte", "end", "soft"),
        text(x.start + 4, y.end + 10, "FLOP/s", class_="soft"),
    ]


def _roof(x: Decades, y: Decades, peak: float, rate: float, name: str, colour: str) -> Markup:
    """From the left edge, or from the floor, to the ridge, and on along the peak."""
    left = max(10.0**x.first, 10.0**y.first / rate)
    ends = [(left, rate * left), (peak / rate, peak), (10.0**x.last, peak)]
    line = element(
        "polyline", points=" ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in ends), class_="roof", style=f"stroke:{colour}"
    )
    label = element("text", name, x=float(x(left) + 10), y=float(y(rate * left) + 15), style=f"fill:{colour}")
    return joined((line, label))


def heat(found: Traffic) -> Markup:
    """Senders down, receivers across; the more bytes, the darker."""
    count, most = found.blocks.count, found.bytes.max() or 1.0
    side = LEFT + CELL * count
    step = ceil(count / MOST_LABELS)
    numbers = [text(LEFT - 6, LEFT + CELL * (i + 0.7), str(i), "end", "soft") for i in range(0, count, step)]
    numbers += [text(LEFT + CELL * (i + 0.5), LEFT - 6, str(i), "middle", "soft") for i in range(0, count, step)]
    words = [text(LEFT, LEFT - 22, "to \N{RIGHTWARDS ARROW}"), text(4, LEFT - 6, "from \N{DOWNWARDS ARROW}")]
    frame = element("rect", x=LEFT, y=LEFT, width=CELL * count, height=CELL * count, class_="frame")
    cells = [_heat_cell(found, sender, receiver, most) for sender, receiver in zip(*found.bytes.nonzero(), strict=True)]
    label = f"Bytes of a step from each {found.blocks.unit} to each other one, {count} by {count}"
    return chart(label, side + 8, side + 8, frame, *cells, *numbers, *words, kind="heat")


def _heat_cell(found: Traffic, sender: int, receiver: int, most: float) -> Markup:
    sent = found.bytes[sender, receiver]
    told = element("title", f"{sender} to {receiver}: {bytes_text(round(sent))}")
    place = {"x": LEFT + CELL * int(receiver) + 1, "y": LEFT + CELL * int(sender) + 1}
    return element(
        "rect", told, width=CELL - 2, height=CELL - 2, fill_opacity=f"{0.1 + 0.9 * (sent / most) ** 0.5:.3f}", **place
    )


def gantt(timeline: Timeline) -> Markup:
    """A row a stage, a box a task, with the micro-batch's number where it fits; lighter for later chunks and for the
    other direction."""
    spans = [(stage, span) for stage, row in enumerate(timeline.rows) for span in row]
    shortest = min(span.end - span.start for _, span in spans)
    scale = min(LEAST_BOX / shortest, WIDEST / timeline.makespan)
    parts = [
        text(LEFT - 8, ROW * (stage + 0.7), str(stage), "end", "soft") for stage in range(timeline.schedule.stages)
    ]
    parts.append(text(LEFT, ROW * (timeline.schedule.stages + 0.7), "time \N{RIGHTWARDS ARROW}", class_="soft"))
    for stage, span in spans:
        for turn, part in enumerate(span.task.parts):
            height = (ROW - 4) / len(span.task.parts)
            box = {
                "x": LEFT + scale * float(span.start),
                "y": ROW * stage + turn * height,
                "width": scale * float(span.end - span.start) - 1.0,
                "height": height,
            }
            shade = f"{1 - 0.5 * part.chunk / max(1, timeline.schedule.chunks - 1):.2f}"
            parts.append(
                element(
                    "rect", element("title", f"stage {stage}: {part}"), class_=str(part.work), fill_opacity=shade, **box
                )
            )
            if box["width"] >= 6.5 * len(str(part.micro_batch)) and height > 12:
                parts.append(
                    text(box["x"] + box["width"] / 2, box["y"] + height / 2 + 4, str(part.micro_batch), "middle")
                )
    label = (
        f"{timeline.schedule.name}: {timeline.schedule.stages} stages, {timeline.schedule.micro_batches} micro-batches"
    )
    return chart(label, LEFT + scale * float(timeline.makespan) + 6, ROW * (timeline.schedule.stages + 1), *parts)


def swatches(entries: Sequence[tuple[str, str]]) -> Markup:
    """A legend: the class of a box, and what it means."""

    def entry(class_: str, said: str) -> Markup:
        box = element(
            "svg",
            element("rect", class_=class_, width=12, height=12),
            class_="chart",
            width=12,
            height=12,
            aria_hidden="true",
            style="display:inline-block",
        )
        return joined((box, f" {said}   "))

    return element("p", *(entry(*one) for one in entries), class_="note")
