"""Charts as SVG, with their numbers in a table beside them wherever they stand."""

from __future__ import annotations

from math import ceil

from markupsafe import Markup

from lab.core.units import bytes_text
from lab.report.drawing import ON_A_PAGE, Drawing, shapes_svg
from lab.report.html.markup import element
from lab.report.traffic import Traffic

LEFT = 52
CELL, MOST_LABELS = 20, 16


def chart(label: str, width: float, height: float, *parts: Markup, kind: str = "") -> Markup:
    """A picture of fixed size, in a frame that scrolls where it is too wide."""
    size = {"viewBox": f"0 0 {width:g} {height:g}", "width": float(width), "height": float(height)}
    drawn = element("svg", *parts, role="img", aria_label=label, class_=f"chart {kind}".strip(), **size)
    return scrolling(label, drawn)


def scrolling(label: str, drawn: Markup) -> Markup:
    return element("div", drawn, class_="scroll", role="region", tabindex=0, aria_label=label)


def text(x: float, y: float, said: str, anchor: str = "start", class_: str | None = None) -> Markup:
    return element("text", said, x=float(x), y=float(y), text_anchor=anchor, class_=class_)


def picture(drawing: Drawing, kind: str = "") -> Markup:
    """A drawing in the colours of the page."""
    return chart(drawing.title, drawing.width, drawing.height, shapes_svg(drawing.shapes, ON_A_PAGE), kind=kind)


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
