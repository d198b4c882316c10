"""The Gantt chart of a pipeline's schedule: a row a stage, a box a task, with its micro-batch's number where that
fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lab.book.checks import not_negative, positive
from lab.meshes.errors import UsageError
from lab.programs.pipelines.orders import named
from lab.programs.pipelines.schedule import Schedule, Span, Task, Work
from lab.programs.pipelines.simulation import Durations, Timeline, simulate
from lab.report.drawing import INK, LETTER, SOFT, Box, Drawing, Label, Shape, figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# From dark to light, so that they differ on paper too; of Okabe and Ito.
COLOURS = {Work.FORWARD: ("#0072B2", "white"), Work.BACKWARD: ("#E69F00", "black"), Work.WEIGHT: ("#F0E442", "black")}
LIGHTEST = 0.5
LEFT, TOP, ROW, FOOT = 52, 30, 28, 84
PIXELS_A_LETTER, LEAST_WIDTH, MOST_WIDTH, ENTRY = 8, 640, 1400, 250
MOST_BOXES = 4096
"""What is drawn in seconds, and still told apart."""


@dataclass(frozen=True)
class Gantt:
    """When each stage works on which micro-batch, and what it idles (Ch. 16).

    Attributes:
      schedule: gpipe, 1f1b, interleaved, zb_h1, zb_h2 or dual_pipe.
      chunks: of a stage, where the schedule is interleaved; a later chunk's boxes are lighter, and say which after a
        point.
      forward, backward, weight, transfer: times of one chunk of one micro-batch, `backward` to the input's gradient.
    """

    schedule: str = "1f1b"
    stages: int = 4
    micro_batches: int = 8
    chunks: int = 2
    forward: float = 1.0
    backward: float = 1.0
    weight: float = 1.0
    transfer: float = 0.0

    def figure(self) -> Figure:
        return figure(self.drawing())

    def drawing(self) -> Drawing:
        positive(forward=self.forward, backward=self.backward)
        not_negative(weight=self.weight, transfer=self.transfer)
        schedule = named(self.schedule, self.stages, self.micro_batches, self.chunks)
        _check_boxes(schedule)
        return gantt(simulate(schedule, Durations(self.forward, self.backward, self.weight, transfer=self.transfer)))


def _check_boxes(schedule: Schedule) -> None:
    """Raises UsageError for more than can be drawn."""
    if (boxes := sum(len(task.parts) for order in schedule.orders for task in order)) > MOST_BOXES:
        found = (
            f"stages={schedule.stages}, micro_batches={schedule.micro_batches} and {schedule.chunks} chunks are "
            f"{boxes:,} boxes"
        )
        raise UsageError(f"{schedule.name}: {found}; expected {MOST_BOXES:,} at most, to be drawn in seconds")


def gantt(timeline: Timeline) -> Drawing:
    """A schedule as it runs; in a box of two halves a forward and a backward overlap, and lighter ones belong to later
    chunks or to the other direction."""
    schedule = timeline.schedule
    width, numbered = _width(timeline)
    scale = width / float(timeline.makespan)
    shapes: list[Shape] = [Label(LEFT, 16, _title(timeline))]
    for stage, row in enumerate(timeline.rows):
        top = TOP + ROW * stage
        shapes.append(Label(LEFT - 8, top + 0.65 * ROW, str(stage), SOFT, "end"))
        for span in row:
            shapes += _boxes(schedule, stage, span, top, scale, is_numbered=span.end - span.start >= numbered)
    foot = TOP + ROW * schedule.stages
    shapes += [
        Label(LEFT - 8, TOP - 8, "stage", SOFT, "end"),
        Label(LEFT, foot + 14, "time \N{RIGHTWARDS ARROW}", SOFT),
        *_legend(schedule, foot + 34, LEFT + width),
    ]
    return Drawing(_title(timeline), LEFT + width + 8, foot + FOOT, tuple(shapes))


def _width(timeline: Timeline) -> tuple[float, float]:
    """In pixels: every box is to have its number, if that makes the chart no wider than a page; and the shortest time
    that then has one."""
    spans = [span for row in timeline.rows for span in row if span.end > span.start]
    number = PIXELS_A_LETTER * max(len(_label(timeline.schedule, part)) for span in spans for part in span.task.parts)
    wanted = number * timeline.makespan / min(span.end - span.start for span in spans)
    width = float(min(max(LEAST_WIDTH, wanted), MOST_WIDTH))
    # Rounding is not to cost the shortest box its number.
    return width, 0.999 * number * float(timeline.makespan) / width


def _title(timeline: Timeline) -> str:
    schedule = timeline.schedule
    of_chunks = f", {schedule.chunks} chunks a stage" if schedule.visits > 1 else ""
    sizes = f"{schedule.stages} stages, {schedule.micro_batches} micro-batches{of_chunks}"
    return f"{schedule.name}: {sizes}; idle {100 * timeline.idle_share:.1f} %"


def _boxes(schedule: Schedule, stage: int, span: Span, top: float, scale: float, is_numbered: bool) -> list[Shape]:
    """One, or two of half the height for a forward and a backward that overlap."""
    shapes: list[Shape] = []
    parts, left, width = span.task.parts, LEFT + scale * float(span.start), scale * float(span.end - span.start)
    height = (ROW - 4) / len(parts)
    for turn, part in enumerate(parts):
        (colour, ink), white, upper = COLOURS[part.work], _white(part.chunk, schedule), top + turn * height
        shade = _lighter(colour, white)
        shapes.append(Box(left, upper, max(0.5, width - 1), height, shade, told=f"stage {stage}: {part}"))
        if is_numbered:
            ink = "black" if 2 * white >= LIGHTEST else ink
            size = LETTER if len(parts) == 1 else LETTER - 2
            middle = left + width / 2, upper + height / 2 + 0.35 * size
            shapes.append(Label(*middle, _label(schedule, part), ink, "middle", size))
    return shapes


def _white(chunk: int, schedule: Schedule) -> float:
    """The share of white in a chunk's colours, in equal steps from none in chunk 0's."""
    return LIGHTEST * chunk / max(1, schedule.chunks - 1)


def _lighter(colour: str, white: float) -> str:
    mixed = (round(int(colour[at : at + 2], 16) * (1 - white) + 255 * white) for at in (1, 3, 5))
    return "#" + "".join(f"{part:02X}" for part in mixed)


def _label(schedule: Schedule, task: Task) -> str:
    return f"{task.micro_batch}.{task.chunk}" if task.chunk and schedule.visits > 1 else f"{task.micro_batch}"


def _legend(schedule: Schedule, top: float, right: float) -> list[Shape]:
    """What the colours mean, in as many rows as it takes."""
    names = {Work.FORWARD: "forward", Work.BACKWARD: "backward"}
    if schedule.splits_backward:
        of_which = "backward, whole or to the input" if schedule.is_two_way else "backward to the input"
        names |= {Work.BACKWARD: of_which, Work.WEIGHT: "backward to the weights"}
    entries = [(COLOURS[work][0], name) for work, name in names.items()]
    if schedule.chunks > 1:
        lighter = "the same, from the last stage to the first" if schedule.is_two_way else "the same, by later chunks"
        entries.append((_lighter(COLOURS[Work.FORWARD][0], LIGHTEST), lighter))
    a_row = max(1, int((right - LEFT) // ENTRY))
    shapes: list[Shape] = []
    for number, (colour, name) in enumerate(entries):
        x, y = LEFT + ENTRY * (number % a_row), top + 20 * (number // a_row)
        shapes += [Box(x, y, 12, 12, colour), Label(x + 18, y + 11, name, INK)]
    return shapes
