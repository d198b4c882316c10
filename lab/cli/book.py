"""`lab book`."""

from __future__ import annotations

import click

from lab.cli import options
from lab.cli.output import print_json, print_text


@click.command()
@click.argument("what", metavar="[CHAPTER|ID|WORDS]", nargs=-1)
@options.settings("Evaluate: n=10GB, parameters=70B, flops_per_s=h100; p=2,4,8 gives a table.")
@click.option("--errata", is_flag=True, help="What is wrong in the book, worst first.")
@click.option(
    "--coverage",
    is_flag=True,
    help="How many entries compiling, numerics, timers or calculation decide, and which are open.",
)
@options.as_json
def book(
    what: tuple[str, ...], settings: tuple[tuple[str, str], ...], errata: bool, coverage: bool, as_json: bool
) -> None:
    """Lists the book's chapters, a chapter's formulas, those that have some words, or all about one; evaluates it with
    --set."""
    from lab.report import book as pages

    page = pages.page(" ".join(what) or None, settings, errata, coverage)
    if as_json:
        print_json(page.to_json())
    else:
        print_text(page.text)
