"""The predicted timeline of a step: kernels and wires as two tracks."""

from __future__ import annotations

from collections.abc import Sequence

from lab.core.units import seconds_text
from lab.measure.prediction import Prediction
from lab.measure.step_time import Event
from lab.report.drawing import BLUE, GREEN, INK, LETTER, ORANGE, RULE, SOFT, Box, Drawing, Label, Line, Shape

LEFT, TOP, WIDTH, ROW, FOOT = 64, 34, 880, 34, 34
TRACKS = {"kernels": BLUE, "wires": ORANGE, "copies": GREEN}
THINNEST = 0.3
"""In pixels; shorter events are drawn together with those beside them."""
TICKS = 5


def timeline(found: Prediction) -> Drawing:
    """Of one step. Trips of a loop that go on like those before are one pale box."""
    end = found.time.total or 1.0
    scale = WIDTH / end
    tracks = [name for name in TRACKS if any(event.track == name for event in found.events)] or ["kernels"]
    shapes: list[Shape] = [Label(LEFT, 16, title(found))]
    foot = TOP + ROW * len(tracks)
    for number in range(TICKS + 1):
        x, at = LEFT + WIDTH * number / TICKS, end * number / TICKS
        shapes += [
            Line(((x, TOP - 4), (x, foot)), RULE),
            Label(x, foot + 16, seconds_text(at) if at else "0", SOFT, "middle"),
        ]
    for number, name in enumerate(tracks):
        top = TOP + ROW * number
        shapes.append(Label(LEFT - 8, top + 0.6 * ROW, name, SOFT, "end"))
        for event in merged([event for event in found.events if event.track == name], THINNEST / scale):
            told = f"{event.name}: {seconds_text(event.end - event.start)} from {seconds_text(event.start)} on"
            x, width = LEFT + scale * event.start, max(THINNEST, scale * (event.end - event.start))
            shapes.append(Box(x, top + 3, width, ROW - 8, TRACKS[name], told))
    for event in found.events:
        if event.track == "loop":
            x, width = LEFT + scale * event.start, scale * (event.end - event.start)
            shapes.append(Box(x, TOP, width, foot - TOP - 2, SOFT, event.name, opacity=0.15))
            if width > LETTER * len(event.name) / 2:
                shapes.append(Label(x + width / 2, (TOP + foot) / 2 + 4, event.name, INK, "middle"))
    return Drawing(title(found), LEFT + WIDTH + 30, foot + FOOT, tuple(shapes))


def title(found: Prediction) -> str:
    return f"{found.source or 'one step'} on {found.target}: {seconds_text(found.time.total)}, predicted"


def merged(events: Sequence[Event], gap: float) -> list[Event]:
    """Events shorter than `gap` and closer than it are one."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if (
            last is not None
            and event.start - last.end < gap
            and min(event.end - event.start, last.end - last.start) < gap
        ):
            name = last.name if last.name.endswith("...") else f"{last.name}..."
            found[-1] = Event(last.track, name, last.start, max(last.end, event.end))
        else:
            found.append(event)
    return found
