"""`lab plot`."""

from __future__ import annotations

from pathlib import Path

import click

from lab.cli import options
from lab.cli.output import print_json, print_text
from lab.meshes.errors import UsageError


@click.command()
@click.argument("name", metavar="[PLOT]", required=False)
@options.settings("What it shows: chip=h200, ranks=256.")
@click.option("--save", metavar="FILE", type=options.OUTPUT_FILE, help="A .png, .svg or .pdf file.")
@options.as_json
def plot(name: str | None, settings: tuple[tuple[str, str], ...], save: Path | None, as_json: bool) -> None:
    """Lists the pictures, or draws one into a file.

    The roofline takes a program's compiled text: --set source=step.hlo --set mesh=data=2,tensor=8. The training takes
    what a run of it printed: lab run ch14_training --json > training.json, then --set source=training.json.
    """
    from lab.report import plots

    if name and save:
        plots.save(name, dict(settings), save)
    elif name or save or settings:
        raise UsageError(
            "a picture takes its name and a file: lab plot roofline --save roofline.png; lab plot lists them"
        )
    elif as_json:
        print_json(plots.listed())
    else:
        print_text(plots.listed_text())
