"""`lab list`."""

from __future__ import annotations

from dataclasses import dataclass

import click

from lab.cli import options
from lab.cli.output import print_json, print_text
from lab.harness import suite
from lab.report import tables


@dataclass(frozen=True)
class ExperimentJson:
    """An experiment, a training or a question (`kind`), with its default targets and styles, and how long it takes; a
    question has no styles."""

    name: str
    chapter: int
    question: str
    targets: tuple[str, ...]
    styles: tuple[str, ...]
    takes: str = ""
    kind: str = ""


@click.command("list")
@options.as_json
def list_experiments(as_json: bool) -> None:
    """List the experiments.

    An experiment compiles and settles one program, a training compares the losses of several layouts, a question is
    answered in numbers. "takes" says how long lab run takes on two cores.
    """
    entries = suite.load()
    if as_json:
        print_json(
            [
                ExperimentJson(e.name, e.chapter, e.question, e.targets, e.styles, suite.takes(e), suite.kind(e))
                for e in entries
            ]
        )
    else:
        rows = [(e.name, str(e.chapter), suite.kind(e), suite.takes(e), e.question) for e in entries]
        print_text(tables.rows_text(("name", "chapter", "kind", "takes", "question"), rows))
