"""What a terminal shows while work is under way, on stderr; a pipe sees nothing of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column
from rich.text import Text

T = TypeVar("T")
Stage = Callable[[str], AbstractContextManager[None]]
MOST_SHOWN = 8
"""Stages that are over."""


class _Seconds(ProgressColumn):
    """How long a stage takes, or took."""

    def render(self, task: Task) -> Text:
        elapsed = task.finished_time if task.finished else task.elapsed
        return Text(f"{elapsed or 0:3.0f} s")


@contextmanager
def stages() -> Iterator[Stage]:
    """Gives a context for each stage of the work: its name and its seconds are shown until all stages are over."""
    with _progress(SpinnerColumn(finished_text=" "), _Seconds(), _description()) as progress:

        @contextmanager
        def stage(name: str) -> Iterator[None]:
            task = progress.add_task(name, total=1)
            _say_on_dumb(progress, name)
            try:
                yield
            finally:
                progress.update(task, completed=1)
            over = [each.id for each in progress.tasks if each.finished]
            for earlier in over[:-MOST_SHOWN]:
                progress.remove_task(earlier)

        yield stage


def watched(runs: Sequence[T], describe: Callable[[T], str] = str) -> Iterator[T]:
    """The same runs; a terminal shows which one is under way, how many are done, and since when."""
    with _progress(SpinnerColumn(), MofNCompleteColumn(), TimeElapsedColumn(), _description()) as progress:
        task = progress.add_task("", total=len(runs))
        for number, run in enumerate(runs, 1):
            progress.update(task, description=describe(run))
            _say_on_dumb(progress, f"{number}/{len(runs)} {describe(run)}")
            yield run
            progress.advance(task)


def _description() -> TextColumn:
    return TextColumn(
        "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
    )


@contextmanager
def _progress(*columns: ProgressColumn) -> Iterator[Progress]:
    if not sys.stderr.isatty():
        yield Progress(disable=True)
        return
    # While XLA compiles, stderr is listened to (lab.diagnosis.remarks): the terminal itself is another descriptor.
    with (
        open(os.dup(sys.stderr.fileno()), "w", encoding=sys.stderr.encoding, errors="replace") as terminal,
        Progress(*columns, console=Console(file=terminal), transient=True, expand=True) as progress,
    ):
        yield progress


def _say_on_dumb(progress: Progress, line: str) -> None:
    """A terminal that cannot move its cursor gets a line a stage."""
    if not progress.disable and progress.console.is_dumb_terminal:
        progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
