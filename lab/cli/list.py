"""`lab list`."""

from __future__ import annotations

import click

from lab.cli import options
from lab.cli.output import print_json, print_text
from lab.harness import suite
from lab.report import tables


@click.command("list")
@options.as_json
def list_experiments(as_json: bool) -> None:
    """List the experiments.

    "takes" says how long lab run takes on two cores.
    """
    entries = suite.load()
    if as_json:
        names = ("name", "chapter", "question", "targets", "styles")
        print_json([{name: getattr(e, name) for name in names} | {"takes": suite.takes(e)} for e in entries])
    else:
        rows = [(e.name, str(e.chapter), suite.takes(e), e.question) for e in entries]
        print_text(tables.rows_text(("experiment", "chapter", "takes", "question"), rows))
