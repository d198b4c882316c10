"""A picture of what remains after each loss: devices that work, idle and lost ones, and memory beside its room."""

from __future__ import annotations

from collections.abc import Iterator

from lab.core.room import Room
from lab.core.units import bytes_text, count, share_text
from lab.meshes.targets import parse_target
from lab.report.drawing import BAD, BLUE, GREEN, INK, LETTER, ORANGE, SOFT, Box, Drawing, Label, Line, Shape
from lab.report.restart import mesh_text
from lab.resilience.restart import MeshJson, RestartJson

DEVICES, BETWEEN, MEMORY, RIGHT = 320, 40, 180, 210
LETTER_WIDTH = 0.58 * LETTER
ROW, BAR, TOP = 26, 14, 46


def drawing(found: RestartJson) -> Drawing:
    """A row for the mesh before a failure, and for each that compiles after one."""
    rows = [("before", 0, found.before)]
    rows += [(loss.loss, loss.lost, one) for loss in found.losses for one in loss.meshes if not one.refused]
    rooms = [has.usable_bytes if (has := Room.of(parse_target(one.target))) else 0 for _, _, one in rows]
    most = max([*rooms, *(peak for _, _, row in rows for peak in _peaks(row))], default=0)
    names = [f"{name}: {mesh_text(one)}" for name, _, one in rows]
    left = LETTER_WIDTH * max(map(len, names)) + 10
    memory = left + DEVICES + BETWEEN
    shapes = [Label(left, 16, "devices"), *_legend(left, 32)]
    if most:
        shapes += [
            Label(memory, 16, "peak memory of a device"),
            Label(memory, 32, "line: its room", SOFT, size=LETTER - 1),
        ]
    for number, ((_, lost, one), name, room) in enumerate(zip(rows, names, rooms, strict=True)):
        y = TOP + number * ROW
        shapes.append(Label(left - 10, y + BAR - 2, name, anchor="end"))
        shapes += _devices(one, lost, found.before.devices, left, y)
        if one.peak is not None and most:
            shapes += _memory(one, room, most, memory, y)
    width = left + DEVICES + (BETWEEN + MEMORY + RIGHT if most else 20)
    return Drawing("what remains after each loss", width, TOP + len(rows) * ROW + 6, tuple(shapes))


def _legend(x: float, y: float) -> Iterator[Shape]:
    for colour, text in ((BLUE, "work"), (ORANGE, "idle"), (BAD, "lost")):
        yield Box(x, y - 9, 10, 10, colour)
        yield Label(x + 14, y, text, SOFT, size=LETTER - 1)
        x += 60


def _devices(one: MeshJson, lost: int, before: int, x: float, y: float) -> Iterator[Shape]:
    for number, colour, state in ((one.devices, BLUE, "work"), (one.idle, ORANGE, "idle"), (lost, BAD, "lost")):
        width = DEVICES * number / before
        if width:
            yield Box(x, y, width, BAR, colour, f"{count(number, 'device')} {state}, {share_text(number / before)}")
        x += width


def _peaks(one: MeshJson) -> list[int]:
    return [peak for peak in (one.peak, *(lever.peak for lever in one.levers)) if peak is not None]


def _memory(one: MeshJson, room: int, most: int, x: float, y: float) -> Iterator[Shape]:
    """The peak as it is; thinner below it, what it is with the lever that fits."""
    fitting, peak = next((lever for lever in one.levers if lever.fits), None), one.peak or 0
    words = bytes_text(peak)
    yield Box(x, y, MEMORY * peak / most, BAR, BAD if one.fits is False else GREEN, bytes_text(peak))
    if fitting and fitting.peak is not None:
        yield Box(x, y + BAR, MEMORY * fitting.peak / most, 4, GREEN, f"{bytes_text(fitting.peak)}: {fitting.change}")
        words += f", {bytes_text(fitting.peak)} with a lever"
    if room:
        at = x + MEMORY * room / most
        yield Line(((at, y - 3), (at, y + BAR + 5)), INK, 1.5, told=f"room: {bytes_text(room)}")
    yield Label(x + MEMORY + 8, y + BAR - 2, words, SOFT)
