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
    """List the experiments."""
    experiments = suite.load()
    if as_json:
        names = ("name", "chapter", "question", "targets", "styles")
        print_json([{name: getattr(experiment, name) for name in names} for experiment in experiments])
    else:
        print_text(
            tables.rows_text(
                ("experiment", "chapter", "question"), [(e.name, str(e.chapter), e.question) for e in experiments]
            )
        )
