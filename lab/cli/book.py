"""`lab book`."""

from __future__ import annotations

import click

from lab.cli import options
from lab.cli.output import print_json, print_text


@click.command()
@click.argument("what", metavar="[CHAPTER|ID|WORDS]", nargs=-1, type=options.BOOK)
@options.settings("Evaluate: n=10GB, parameters=70B, flops_per_s=h100; p=2,4,8 gives a table.")
@click.option("--errata", is_flag=True, help="List what is wrong in the book, worst first.")
@click.option(
    "--coverage",
    is_flag=True,
    help="Count what decides the entries (compiling, numerics, timers, calculation), and list the open ones.",
)
@options.as_json
def book(
    what: tuple[str, ...], settings: tuple[tuple[str, str], ...], errata: bool, coverage: bool, as_json: bool
) -> None:
    """Look up the book's formulas, and evaluate one with --set.

    Without an argument: the chapters. With a chapter (12): its formulas; with an id (ch12.ring): all about one formula;
    with words: the formulas that contain them. An entry is right, wrong, or depends (on what its page says); one that
    runs can be evaluated.
    """
    from lab.report import book as pages

    page = pages.page(" ".join(what) or None, settings, errata, coverage)
    if as_json:
        print_json(page.data)
    else:
        print_text(page.text)
