"""`lab plot`."""

from __future__ import annotations

from pathlib import Path

import click

from lab.cli import options
from lab.cli.output import print_json, print_text
from lab.meshes.errors import UsageError


@click.command()
@click.argument("name", metavar="[PLOT]", required=False, type=options.PLOT)
@options.settings("What to draw: chip=h200, ranks=256.")
@click.option("--save", metavar="FILE", type=options.OUTPUT_FILE, help="The file to write: .png, .svg or .pdf.")
@options.as_json
def plot(name: str | None, settings: tuple[tuple[str, str], ...], save: Path | None, as_json: bool) -> None:
    """List the plots, or draw one into a file.

    Roofline and traffic show a compiled program: --set source=step.hlo --set mesh=data=2,tensor=8 --set
    target=gpu:h100:2x8, or --set source=step.json, which lab inspect --json wrote. The plot of a training shows the
    result of a run: lab run ch14_training --json > training.json, then --set source=training.json.
    """
    from lab.report import plots

    if name and save:
        plots.save(name, dict(settings), save)
    elif name:
        plots.check_name(name)
        raise UsageError(f"plot {name} needs a file: lab plot {name} --save {name}.png")
    elif save or settings:
        raise UsageError("a plot needs its name: lab plot roofline --save roofline.png; lab plot lists them")
    elif as_json:
        print_json(plots.listed())
    else:
        print_text(plots.listed_text())
