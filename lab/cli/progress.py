"""What a terminal shows while work is under way, on stderr; a pipe sees nothing of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

T = TypeVar("T")


def watched(runs: Sequence[T]) -> Iterator[T]:
    """The same runs; a terminal shows which one is under way and how many are done."""
    columns = SpinnerColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("", total=len(runs))
        for run in runs:
            progress.update(task, description=str(run))
            yield run
            progress.advance(task)


@contextmanager
def working(on: str) -> Iterator[None]:
    """Says on a terminal what takes its time."""
    with Console(stderr=True).status(on):
        yield
