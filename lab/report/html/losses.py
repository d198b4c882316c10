"""A training as a picture: every curve over one device's, and below how far each is from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil, floor, isfinite, log10
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from lab.report.drawing import Decades
from lab.report.html.charts import chart, text
from lab.report.html.markup import element

if TYPE_CHECKING:
    from lab.harness.decoder.training import Curve, TrainingResult

LEFT, RIGHT, WIDTH = 44, 448, 460
ABOVE, BELOW, HEIGHT = (22, 220), (262, 380), 416
SMALLEST = 1e-8
"""Below the rounding of a float32: here lie equal losses."""
FITS, LEAVES = "var(--blue)", "var(--bad)"
BROAD, THIN, DASHED = "stroke-width:7;stroke-linejoin:round", "stroke-width:1", "stroke-width:1;stroke-dasharray:5 3"
Scale = Callable[[float], float]


@dataclass(frozen=True)
class Linear:
    """A scale of whole numbers onto pixels."""

    first: int
    last: int
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.first) / (self.last - self.first) * (self.end - self.start)

    @property
    def ticks(self) -> range:
        """Eight at most."""
        step = next(m * 10**p for p in count() for m in (1, 2, 5) if m * 10**p * 7 >= self.last - self.first)
        return range(self.first, self.last + 1, step)


def picture(trained: TrainingResult) -> Markup:
    """Curves that fit in one colour, those that do not in another, each with its name to point at."""
    curves = [curve for curve in trained.curves if curve.losses.size]
    x = Linear(0, len(trained.reference.losses) - 1, LEFT, RIGHT)
    parts = [*_losses(trained, curves, x), *_errors(trained, curves, x), *_steps(x)]
    return chart(
        f"Losses of {len(curves)} trainings over one device's, and their relative errors",
        WIDTH,
        HEIGHT,
        *parts,
        kind="losses",
    )


def _losses(trained: TrainingResult, curves: Sequence[Curve], x: Linear) -> Iterator[Markup]:
    alone, known = (
        trained.reference.losses,
        (
            trained.guessing,
            *_finite(trained.reference.losses),
            *(loss for curve in curves for loss in _finite(curve.losses)),
        ),
    )
    y = Linear(floor(min(known)), ceil(max(known)), *reversed(ABOVE))
    yield from _frame(y, "loss [nats a byte]", str)
    yield _line(x, y, alone, "var(--line)", BROAD, "one device")
    yield _line(x, y, [trained.guessing] * len(alone), "var(--soft)", DASHED, "guessing by frequency")
    yield from (_line(x, y, curve.losses, _colour(trained, curve), THIN, _name(curve)) for curve in curves)
    yield from _legend(Counter(_colour(trained, curve) for curve in curves))


def _legend(counts: Counter[str]) -> Iterator[Markup]:
    """At the right, from which a loss falls away."""
    entries = [("var(--line)", BROAD, "one device"), ("var(--soft)", DASHED, "guessing by frequency")]
    entries += [
        (colour, THIN, f"{counts[colour]} {said}")
        for colour, said in ((FITS, "trainings on its curve"), (LEAVES, "off it"))
        if counts[colour]
    ]
    for row, (colour, style, said) in enumerate(entries):
        at = ABOVE[0] + 18 * row + 10
        yield element("line", x1=270, x2=296, y1=at, y2=at, style=f"stroke:{colour};{style}")
        yield text(304, at + 4, said)


def _errors(trained: TrainingResult, curves: Sequence[Curve], x: Linear) -> Iterator[Markup]:
    tolerances, errors = (
        trained.reference.tolerances,
        [np.abs(curve.losses / (curve.expected or trained.reference).losses - 1) for curve in curves],
    )
    largest = max([trained.reference.tolerance, *(error for some in errors for error in _finite(some))])
    y = Decades(round(log10(SMALLEST)), ceil(log10(1.5 * largest)), *reversed(BELOW))
    yield from _frame(y, "relative error", lambda power: f"1e{power}", lambda power: 10.0**power)
    yield _line(x, y, tolerances, LEAVES, DASHED, "tolerance")
    # It rises alone: above its end a word has room.
    yield text(x.start + 4, y(tolerances[len(tolerances) // 7]) - 5, "tolerance")
    for curve, some in zip(curves, errors, strict=True):
        yield _line(x, y, np.maximum(some, SMALLEST), _colour(trained, curve), THIN, _name(curve))


def _frame(
    y: Linear | Decades, said: str, label: Callable[[int], str], value: Callable[[int], float] = float
) -> Iterator[Markup]:
    """Rules and numbers of one half."""
    for tick in y.ticks:
        at = float(y(value(tick)))
        yield element("line", class_="rule", x1=LEFT, x2=RIGHT, y1=at, y2=at)
        yield text(LEFT - 6, at + 4, label(tick), "end", "soft")
    yield text(LEFT, y.end - 8, said, class_="soft")


def _steps(x: Linear) -> Iterator[Markup]:
    yield from (text(x(step), BELOW[1] + 18, str(step), "middle", "soft") for step in x.ticks)
    yield text(RIGHT, BELOW[1] + 34, "step", "end", "soft")


def _line(x: Scale, y: Scale, values: Iterable[float], colour: str, style: str, name: str) -> Markup:
    """What is no number is left out."""
    points = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in enumerate(values) if isfinite(value))
    return element("polyline", element("title", name), points=points, style=f"fill:none;stroke:{colour};{style}")


def _finite(values: np.ndarray) -> np.ndarray:
    finite: np.ndarray = values[np.isfinite(values)]
    return finite


def _colour(trained: TrainingResult, curve: Curve) -> str:
    return FITS if trained.is_on_curve(curve) else LEAVES


def _name(curve: Curve) -> str:
    return f"{curve.layout}, {curve.style}"
