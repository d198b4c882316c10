"""`lab explain`."""

from __future__ import annotations

import click

from lab.cli import options
from lab.cli.output import print_json, print_text
from lab.report import explanations


@click.command()
@click.argument("name", metavar="[KIND|BEHAVIOUR]", required=False, type=options.EXPLAINED)
@options.as_json
def explain(name: str | None, as_json: bool) -> None:
    """Explain a kind of finding or a compiler behaviour.

    KIND is a kind of finding of lab inspect, such as reduced_twice; BEHAVIOUR an id that lab run prints, such as X7.
    Without either: a list of all.
    """
    if name is None and as_json:
        print_json(explanations.listed())
    elif name is None:
        print_text(explanations.listed_text())
    elif as_json:
        print_json(explanations.json_object(explanations.find(name)))
    else:
        print_text(explanations.text(explanations.find(name)))
