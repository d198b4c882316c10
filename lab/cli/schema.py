"""`lab schema`: JSON Schema of what the other commands print."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import click

from lab.cli import options
from lab.cli.output import print_json, print_text
from lab.core import codec
from lab.meshes.errors import no_such
from lab.report.tables import rows_text

_COMMAND = re.compile(r"lab (\w+) --json")


class Described(NamedTuple):
    """One JSON value by its name: the type that describes it, and what prints it."""

    name: str
    type: Any
    printed_by: str


def described() -> tuple[Described, ...]:
    """All of them; a type stands beside the code that fills it, and some of that imports JAX."""
    from lab.cli.list import ExperimentJson
    from lab.cli.studies import InspectionJson
    from lab.core.changes import DifferenceJson
    from lab.frontier.frontier import FrontierJson
    from lab.guard.upgrade import UpgradeJson
    from lab.harness.fit.schemas import FitJson
    from lab.harness.schemas import RunJson
    from lab.laws.answer import Answer
    from lab.measure.accuracy import Accuracy
    from lab.measure.bench.record import BenchJson
    from lab.measure.prediction import PredictionJson
    from lab.measure.rates.table import ChipRates
    from lab.measure.redistribution.table import TableJson
    from lab.measure.tour.ahead import AheadJson
    from lab.measure.tour.tour import TourJson
    from lab.meshes.availability import Available
    from lab.report.book_schema import BookJson
    from lab.report.explanations import ExplanationJson
    from lab.report.plots import PlotJson
    from lab.resilience.launch import Launched
    from lab.resilience.restart import RestartJson

    return (
        Described("ledger", InspectionJson, "lab inspect --json (of several programs, a list of them)"),
        Described("time", PredictionJson, "lab time --json (of several programs, a list of them)"),
        Described("accuracy", Accuracy, "lab time --accuracy --json"),
        Described("diff", DifferenceJson, "lab diff --json"),
        Described("upgrade", UpgradeJson, "lab upgrade --json"),
        Described("frontier", FrontierJson, "lab frontier --json"),
        Described("run", RunJson, "lab run --json, lab verify --json"),
        Described("fit", FitJson, "lab fit --json"),
        Described("law", Answer, "lab law --json"),
        Described("restart", RestartJson, "lab restart --json"),
        Described("launch", Launched, "lab launch --json"),
        Described("bench", BenchJson, "lab bench --json"),
        Described("rates", ChipRates, "lab bench rates --json"),
        Described("tour", TourJson, "lab tour --json"),
        Described("ahead", AheadJson, "python -m lab.tour.ahead RECORD"),
        Described("redistribution", TableJson, "python -m lab.redistribution.table PATH"),
        Described("book", BookJson, "lab book --json"),
        Described("explanation", ExplanationJson, "lab explain --json"),
        Described("targets", list[Available], "lab targets --json"),
        Described("list", list[ExperimentJson], "lab list --json"),
        Described("plot", list[PlotJson], "lab plot --json"),
    )


def _by_command() -> dict[str, Described]:
    return {command: each for each in described() for command in _COMMAND.findall(each.printed_by)}


def _names() -> list[str]:
    """What `lab schema` takes."""
    return list(dict.fromkeys([*(each.name for each in described()), *_by_command()]))


def schema_text(of: Described) -> str:
    return codec.to_text(codec.schema(of.type))


@click.command()
@click.argument("name", metavar="[NAME]", required=False, type=options.Parsed("schema", known=_names))
@options.as_json
def schema(name: str | None, as_json: bool) -> None:
    """Print the JSON Schema of what a command prints, or list them.

    NAME is that of a schema, or of the command.

    Keys are only added, so that what was printed before stays valid: a key that came later is not among those required.
    """
    known = {each.name: each for each in described()}
    by_command = _by_command()
    if name is None:
        rows = [(each.name, each.printed_by) for each in known.values()]
        if as_json:
            print_json([{"name": name, "printed_by": printed_by} for name, printed_by in rows])
        else:
            print_text(rows_text(("name", "printed by"), rows))
    elif found := known.get(name) or by_command.get(name):
        print_text(schema_text(found))
    else:
        raise no_such("schema", name, known)
