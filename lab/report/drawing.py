"""A picture as shapes in pixels, drawn once: pages and .svg files show it as SVG, other files by matplotlib."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import TYPE_CHECKING

from markupsafe import Markup

from lab.report.html.markup import element, joined
from lab.report.panel import blank

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Panel
    from matplotlib.figure import Figure

INK, SOFT, RULE, PAPER, BLUE, GREEN, ORANGE, BAD = "ink", "soft", "line", "paper", "blue", "green", "orange", "bad"
ON_PAPER = {
    INK: "#1b1f24",
    SOFT: "#57606a",
    RULE: "#d5dae0",
    PAPER: "#ffffff",
    BLUE: "#0062a3",
    GREEN: "#007a59",
    ORANGE: "#8f5600",
    BAD: "#b3261e",
}
ON_A_PAGE = {name: f"var(--{name})" for name in ON_PAPER}
"""The style sheet's, light or dark."""
LETTER = 12
"""Height of letters in pixels."""


@dataclass(frozen=True)
class Line:
    """Attributes: dashes: lengths of a dash and of the gap after it; told: what a reader sees who points at it."""

    points: tuple[tuple[float, float], ...]
    colour: str
    width: float = 1
    dashes: tuple[float, ...] = ()
    told: str = ""


@dataclass(frozen=True)
class Box:
    """Attributes: told: what a reader sees who points at it."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    told: str = ""
    opacity: float = 1


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    radius: float
    colour: str
    told: str = ""


@dataclass(frozen=True)
class Label:
    """Attributes: anchor: "start", "middle" or "end", where x is; y is the foot of the letters."""

    x: float
    y: float
    text: str
    colour: str = INK
    anchor: str = "start"
    size: float = LETTER


Shape = Line | Box | Dot | Label


@dataclass(frozen=True)
class Decades:
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


@dataclass(frozen=True)
class Logarithmic:
    """A logarithmic scale onto pixels that ends where its values do."""

    least: float
    most: float
    start: float
    end: float

    @classmethod
    def around(cls, values: Collection[float], start: float, end: float) -> Logarithmic:
        """With room on both sides."""
        return cls(min(values) / 1.3, 1.3 * max(values), start, end)

    def __call__(self, value: float) -> float:
        return self.start + log10(value / self.least) / log10(self.most / self.least) * (self.end - self.start)

    @property
    def ticks(self) -> list[int]:
        """1, 2 and 5 times powers of ten, as whole numbers."""
        powers = range(max(0, floor(log10(self.least))), ceil(log10(self.most)) + 1)
        return [m * 10**p for p in powers for m in (1, 2, 5) if self.least <= m * 10**p <= self.most]


@dataclass(frozen=True)
class Drawing:
    """Shapes from back to front, y downwards. Colours are the names above, or what CSS and matplotlib both know."""

    title: str
    width: float
    height: float
    shapes: tuple[Shape, ...]


def svg_text(drawing: Drawing) -> str:
    """A file of its own."""
    paper = element("rect", width=drawing.width, height=drawing.height, fill=ON_PAPER[PAPER])
    return str(
        element(
            "svg",
            paper,
            shapes_svg(drawing.shapes, ON_PAPER),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {drawing.width:g} {drawing.height:g}",
            width=float(drawing.width),
            height=float(drawing.height),
            font_family="sans-serif",
            role="img",
            aria_label=drawing.title,
        )
    )


def shapes_svg(shapes: Iterable[Shape], colours: Mapping[str, str]) -> Markup:
    """Args: colours: what the names of colours stand for; others stand for themselves."""
    return joined(_svg(shape, colours.get(shape.colour, shape.colour)) for shape in shapes)


def _svg(shape: Shape, colour: str) -> Markup:
    match shape:
        case Line(points, _, width, dashes, told):
            ends = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            style = f"fill:none;stroke:{colour};stroke-width:{width:g};stroke-linejoin:round"
            if dashes:
                style += f";stroke-dasharray:{' '.join(map('{:g}'.format, dashes))}"
            return element("polyline", *_told(told), points=ends, style=style)
        case Box(x, y, width, height, _, told, opacity):
            at = {"x": float(x), "y": float(y), "width": float(width), "height": float(height)}
            style = f"fill:{colour}" + (f";fill-opacity:{opacity:g}" if opacity < 1 else "")
            return element("rect", *_told(told), style=style, **at)
        case Dot(x, y, radius, _, told):
            at = {"cx": float(x), "cy": float(y), "r": float(radius)}
            return element("circle", *_told(told), style=f"fill:{colour}", **at)
        case Label(x, y, text, _, anchor, size):
            said = {"style": f"fill:{colour}", "text_anchor": anchor, "font_size": f"{size:g}"}
            return element("text", text, x=float(x), y=float(y), **said)


def _told(text: str) -> tuple[Markup, ...]:
    return (element("title", text),) if text else ()


def figure(drawing: Drawing) -> Figure:
    """The same as a matplotlib figure, for notebooks and for files of other kinds.

    Raises:
      UsageError: matplotlib is not installed.
    """
    made, panel = blank(drawing.width, drawing.height)
    for shape in drawing.shapes:
        _draw(panel, shape, ON_PAPER.get(shape.colour, shape.colour))
    return made


def _draw(panel: Panel, shape: Shape, colour: str) -> None:
    from matplotlib.patches import Circle, Rectangle

    match shape:
        case Line(points, _, width, dashes):
            xs, ys = [x for x, _ in points], [y for _, y in points]
            (line,) = panel.plot(xs, ys, color=colour, linewidth=0.75 * width, solid_joinstyle="round")
            if dashes:
                line.set_dashes([0.75 * length for length in dashes])
        case Box(x, y, width, height, _, _, opacity):
            panel.add_patch(Rectangle((x, y), width, height, color=colour, linewidth=0, alpha=opacity))
        case Dot(x, y, radius):
            panel.add_patch(Circle((x, y), radius, color=colour, linewidth=0, zorder=3))
        case Label(x, y, text, _, anchor, size):
            side = {"start": "left", "middle": "center", "end": "right"}[anchor]
            panel.text(x, y, text, color=colour, size=0.75 * size, ha=side, va="baseline")
