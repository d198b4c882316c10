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
from lab.report.panel import empty_panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Panel
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

# From dark to light, so that they differ on paper too; of Okabe and Ito.
COLOURS = {Work.FORWARD: ("#0072B2", "white"), Work.BACKWARD: ("#E69F00", "black"), Work.WEIGHT: ("#F0E442", "black")}
LIGHTEST = 0.5
HEIGHT, INCHES_A_LETTER, LEAST_INCHES, MOST_INCHES = 0.84, 0.085, 7, 17
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


def gantt(timeline: Timeline) -> Figure:
    """A schedule as it runs; in a box of two halves a forward and a backward overlap, and lighter ones belong to later
    chunks or to the other direction."""
    schedule = timeline.schedule
    figure, panel = empty_panel(_title(timeline), "time", "stage")
    inches, numbered = _width(timeline)
    figure.set_size_inches(1 + inches, 1.7 + 0.33 * schedule.stages)
    panel.set(xlim=(0, timeline.makespan), ylim=(schedule.stages - 0.5, -0.5), yticks=range(schedule.stages))
    panel.grid(visible=False)
    for stage, row in enumerate(timeline.rows):
        for span in row:
            _draw(panel, schedule, stage, span, is_numbered=span.end - span.start >= numbered)
    figure.legend(
        handles=_legend(schedule),
        frameon=False,
        ncols=2 if schedule.splits_backward and schedule.chunks > 1 else 3,
        loc="outside lower center",
    )
    return figure


def _width(timeline: Timeline) -> tuple[float, float]:
    """Of the panel in inches: every box is to have its number, if that makes it no wider than a page; and the shortest
    time that then has one."""
    spans = [span for row in timeline.rows for span in row if span.end > span.start]
    number = INCHES_A_LETTER * max(len(_label(timeline.schedule, part)) for span in spans for part in span.task.parts)
    wanted = number * timeline.makespan / min(span.end - span.start for span in spans)
    inches = min(max(LEAST_INCHES, wanted), MOST_INCHES)
    # Rounding is not to cost the shortest box its number.
    return inches, 0.999 * number * timeline.makespan / inches


def _title(timeline: Timeline) -> str:
    schedule = timeline.schedule
    of_chunks = f", {schedule.chunks} chunks a stage" if schedule.visits > 1 else ""
    sizes = f"{schedule.stages} stages, {schedule.micro_batches} micro-batches{of_chunks}"
    return f"{schedule.name}: {sizes}; idle {100 * timeline.idle_share:.1f} %"


def _draw(panel: Panel, schedule: Schedule, stage: int, span: Span, is_numbered: bool) -> None:
    parts, width = span.task.parts, span.end - span.start
    for turn, part in enumerate(parts):
        (colour, ink), white = COLOURS[part.work], _white(part.chunk, schedule)
        height = HEIGHT / len(parts)
        top = stage - HEIGHT / 2 + turn * height
        panel.broken_barh(
            [(span.start, width)], (top, height), facecolor=_lighter(colour, white), edgecolor="white", linewidth=0.5
        )
        if is_numbered:
            ink, size = "black" if 2 * white >= LIGHTEST else ink, 7 if len(parts) == 1 else 5
            panel.text(
                span.start + width / 2,
                top + height / 2,
                _label(schedule, part),
                color=ink,
                size=size,
                ha="center",
                va="center",
            )


def _white(chunk: int, schedule: Schedule) -> float:
    """The share of white in a chunk's colours, in equal steps from none in chunk 0's."""
    return LIGHTEST * chunk / max(1, schedule.chunks - 1)


def _lighter(colour: str, white: float) -> str:
    mixed = (round(int(colour[at : at + 2], 16) * (1 - white) + 255 * white) for at in (1, 3, 5))
    return "#" + "".join(f"{part:02X}" for part in mixed)


def _label(schedule: Schedule, task: Task) -> str:
    return f"{task.micro_batch}.{task.chunk}" if task.chunk and schedule.visits > 1 else f"{task.micro_batch}"


def _legend(schedule: Schedule) -> list[Patch]:
    from matplotlib.patches import Patch

    names = {Work.FORWARD: "forward", Work.BACKWARD: "backward"}
    if schedule.splits_backward:
        of_which = "backward, whole or to the input" if schedule.is_two_way else "backward to the input"
        names |= {Work.BACKWARD: of_which, Work.WEIGHT: "backward to the weights"}
    patches = [Patch(color=COLOURS[work][0], label=name) for work, name in names.items()]
    if schedule.chunks == 1:
        return patches
    lighter = "the same, from the last stage to the first" if schedule.is_two_way else "the same, by later chunks"
    return [*patches, Patch(color=_lighter(COLOURS[Work.FORWARD][0], LIGHTEST), label=lighter)]
