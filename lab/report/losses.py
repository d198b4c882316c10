"""A training as a picture: every loss curve over one device's, and below how far each is from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil, floor, isfinite, log10, nan
from typing import Any

from lab.report.drawing import BAD, BLUE, GREEN, ORANGE, RULE, SOFT, Decades, Drawing, Label, Line, Shape

LEFT, RIGHT, WIDTH = 44, 448, 460
ABOVE, BELOW, HEIGHT, ROW = (22, 220), (262, 380), 416, 16
SMALLEST = 1e-8
"""Below the rounding of a float32: here lie equal losses."""
BROAD, DASHED = {"width": 7}, {"dashes": (5, 3)}
MOST_NAMED = 12
COLOURS, DASHES = (BLUE, GREEN, ORANGE, BAD), ((), (5, 3), (2, 2), (8, 3, 2, 3))
Scale = Callable[[float], float]


@dataclass(frozen=True)
class LossCurve:
    """A training under one layout in one style: its losses and what they should be, nan where a step was not run."""

    name: str
    losses: tuple[float, ...]
    expected: tuple[float, ...]
    is_on_curve: bool

    @property
    def errors(self) -> list[float]:
        return [abs(found / right - 1) for found, right in zip(self.losses, self.expected, strict=True)]


@dataclass(frozen=True)
class Losses:
    """Attributes: tolerances: of each step, the relative error up to which a curve is one device's."""

    one_device: tuple[float, ...]
    tolerances: tuple[float, ...]
    guessing: float
    curves: tuple[LossCurve, ...]


def losses(training: Mapping[str, Any]) -> Losses:
    """Of the JSON of a training, a `lab.harness.schemas.RunResultJson`; curves of which no step was run are left out.

    Raises:
      LookupError, TypeError: it is none.
    """
    alone = _numbers(training["one_device"]["losses"])
    curves = tuple(
        LossCurve(
            f"{curve['layout']}, {curve['style']}",
            _numbers(curve["losses"]),
            _numbers(curve.get("expected_losses") or alone),
            curve.get("is_on_curve", curve.get("failure") is None),
        )
        for curve in training["curves"]
        if curve["losses"]
    )
    return Losses(alone, _numbers(training["one_device"]["tolerances"]), training["guessing_by_frequency"], curves)


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


def picture(found: Losses) -> Drawing:
    """Curves that are on one device's curve in one colour, those that leave it in another and named below."""
    x = Linear(0, len(found.one_device) - 1, LEFT, RIGHT)
    shapes = [*_losses(found, x), *_errors(found, x), *_steps(x)]
    off = [curve.name for curve in found.curves if not curve.is_on_curve]
    named = [*off[:MOST_NAMED], *([f"and {len(off) - MOST_NAMED} more"] if len(off) > MOST_NAMED else [])]
    shapes += [Label(LEFT, HEIGHT + ROW * row, f"off it: {name}", BAD) for row, name in enumerate(named, 1)]
    title = f"Losses of {len(found.curves)} trainings over one device's, and their relative errors"
    return Drawing(title, WIDTH, HEIGHT + ROW * (len(named) + bool(named)), tuple(shapes))


def overlaid(losses: Mapping[str, Sequence[float | None]]) -> Drawing:
    """Curves of several trainings, each with its name; the first broad, that of which the others are told apart."""
    steps = max(map(len, losses.values()))
    known = [loss for some in losses.values() for loss in some if loss is not None]
    x, y = Linear(0, steps - 1, LEFT, RIGHT), Linear(floor(min(known)), ceil(max(known)), BELOW[1], ABOVE[0])
    shapes = [*_frame(y, "loss [nats a byte]", str), *_steps(x)]
    for row, (name, some) in enumerate(losses.items()):
        colour, dashes = COLOURS[row % len(COLOURS)], DASHES[row // len(COLOURS) % len(DASHES)]
        style: dict[str, Any] = BROAD if row == 0 else {"dashes": dashes}
        at = ABOVE[0] + 18 * row + 10
        shapes += [
            _line(x, y, _numbers(some), RULE if row == 0 else colour, name, **style),
            Line(((140, at), (166, at)), RULE if row == 0 else colour, **style),
            Label(174, at + 4, name),
        ]
    return Drawing(f"Losses of {len(losses)} trainings", WIDTH, HEIGHT, tuple(shapes))


def _losses(found: Losses, x: Linear) -> list[Shape]:
    known = [found.guessing, *filter(isfinite, found.one_device)]
    known += [loss for curve in found.curves for loss in curve.losses if isfinite(loss)]
    y = Linear(floor(min(known)), ceil(max(known)), *reversed(ABOVE))
    steps = len(found.one_device)
    curves = [_line(x, y, curve.losses, _colour(curve), curve.name) for curve in found.curves]
    return [
        *_frame(y, "loss [nats a byte]", str),
        _line(x, y, found.one_device, RULE, "one device", **BROAD),
        _line(x, y, [found.guessing] * steps, SOFT, "guessing by frequency", **DASHED),
        *curves,
        *_legend(found.curves),
    ]


def _legend(curves: Sequence[LossCurve]) -> list[Shape]:
    """At the right, from which a loss falls away."""
    on = sum(curve.is_on_curve for curve in curves)
    entries: list[tuple[str, str, dict[str, Any]]] = [
        ("one device", RULE, BROAD),
        ("guessing by frequency", SOFT, DASHED),
        *([(f"{on} trainings on its curve", BLUE, {})] if on else []),
        *([(f"{len(curves) - on} off it", BAD, {})] if on < len(curves) else []),
    ]
    shapes: list[Shape] = []
    for row, (said, colour, style) in enumerate(entries):
        at = ABOVE[0] + 18 * row + 10
        shapes += [Line(((270, at), (296, at)), colour, **style), Label(304, at + 4, said)]
    return shapes


def _errors(found: Losses, x: Linear) -> list[Shape]:
    errors = [curve.errors for curve in found.curves]
    largest = max([*found.tolerances, *(error for some in errors for error in some if isfinite(error))])
    y = Decades(round(log10(SMALLEST)), ceil(log10(1.5 * largest)), *reversed(BELOW))
    early = found.tolerances[len(found.tolerances) // 7]
    return [
        *_frame(y, "relative error", lambda power: f"1e{power}", lambda power: 10.0**power),
        _line(x, y, found.tolerances, BAD, "tolerance", **DASHED),
        # The line rises: above its left end there is room for a word.
        Label(x.start + 4, y(early) - 5, "tolerance"),
        *(
            # max keeps its first argument where the second is nan: such a step is left out.
            _line(x, y, [max(error, SMALLEST) for error in some], _colour(curve), curve.name)
            for curve, some in zip(found.curves, errors, strict=True)
        ),
    ]


def _frame(
    y: Linear | Decades, said: str, label: Callable[[int], str], value: Callable[[int], float] = float
) -> list[Shape]:
    """Rules and numbers of one half."""
    at = {tick: float(y(value(tick))) for tick in y.ticks}
    rules: list[Shape] = [Line(((LEFT, height), (RIGHT, height)), RULE) for height in at.values()]
    numbers = [Label(LEFT - 6, height + 4, label(tick), SOFT, "end") for tick, height in at.items()]
    return [*rules, *numbers, Label(LEFT, y.end - 8, said, SOFT)]


def _steps(x: Linear) -> list[Shape]:
    numbers = [Label(x(step), BELOW[1] + 18, str(step), SOFT, "middle") for step in x.ticks]
    return [*numbers, Label(RIGHT, BELOW[1] + 34, "step", SOFT, "end")]


def _line(x: Scale, y: Scale, values: Iterable[float], colour: str, name: str, **style: Any) -> Line:
    """Without the steps whose value is not finite."""
    points = tuple((x(step), y(value)) for step, value in enumerate(values) if isfinite(value))
    return Line(points, colour, told=name, **style)


def _colour(curve: LossCurve) -> str:
    return BLUE if curve.is_on_curve else BAD


def _numbers(values: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(nan if value is None else value for value in values)
