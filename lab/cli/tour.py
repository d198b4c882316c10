"""`lab tour`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from lab.cli import options
from lab.cli.output import print_json, print_text
from lab.cli.progress import watched
from lab.core.codec import to_text
from lab.core.files import write_whole


@click.command()
@click.argument("parts", metavar="[PART]...", nargs=-1, type=options.TOUR_PART)
@options.save
@options.as_json
def tour(parts: tuple[str, ...], save: Path | None, as_json: bool) -> int:
    """Check the lab's predictions on the attached GPUs.

    PART is collectives (lab bench of all), times (predicts steps from compiled text and measured rates, and times
    them), programs (compiles every single-program experiment here and ahead of time) or losses (trains a small decoder
    under every layout and compares it with one CPU); by default all. --save writes the JSON after each part.
    """
    from lab.measure.tour import tour as tours
    from lab.report.tour import tour_text

    for found in tours.tour(parts or tours.PARTS, shlex.join(["lab", *sys.argv[1:]]), watched):
        if save:
            write_whole(save, to_text(found) + "\n")
    if as_json:
        print_json(found)
    else:
        print_text(tour_text(found))
    return 1 if found.failures else 0
