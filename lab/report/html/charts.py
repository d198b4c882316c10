"""Charts as SVG, with their numbers in a table beside them wherever they stand."""

from __future__ import annotations

from markupsafe import Markup

from lab.report.drawing import ON_A_PAGE, Drawing, shapes_svg
from lab.report.html.markup import element


def scrolling(label: str, drawn: Markup) -> Markup:
    """In a frame that scrolls where it is too wide."""
    return element("div", drawn, class_="scroll", role="region", tabindex=0, aria_label=label)


def picture(drawing: Drawing, kind: str = "") -> Markup:
    """A drawing in the colours of the page, of fixed size."""
    width, height = float(drawing.width), float(drawing.height)
    size = {"viewBox": f"0 0 {width:g} {height:g}", "width": width, "height": height}
    shapes, class_ = shapes_svg(drawing.shapes, ON_A_PAGE), f"chart {kind}".strip()
    drawn = element("svg", shapes, role="img", aria_label=drawing.title, class_=class_, **size)
    return scrolling(drawing.title, drawn)
