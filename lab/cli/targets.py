"""`lab targets`."""

from __future__ import annotations

import click

from lab.cli import options
from lab.cli.output import print_json, print_text
from lab.meshes.availability import availability
from lab.report import tables


@click.command()
@options.as_json
def targets(as_json: bool) -> None:
    """List what this machine can compile for.

    Where a plugin is missing, the command that installs it.
    """
    rows = availability()
    if as_json:
        print_json(rows)
    else:
        cells = [(row.target, row.name, "no" if row.install else "yes", row.install or row.how) for row in rows]
        print_text(tables.rows_text(("target", "chip", "compiles here", "how"), cells))
