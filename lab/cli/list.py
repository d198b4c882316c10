"""`lab list`."""

from __future__ import annotations

from dataclasses import dataclass

import click

from lab.cli import options
from lab.cli.output import print_json, print_text
from lab.harness import suite
from lab.harness.registry import Entry
from lab.harness.settings import Setting, explained, listed
from lab.report import tables


@dataclass(frozen=True)
class ExperimentJson:
    """An experiment, a training or a question (`kind`), with its default targets and styles, how long it takes, and its
    parameters; a question has no styles."""

    name: str
    chapter: int
    question: str
    targets: tuple[str, ...]
    styles: tuple[str, ...]
    takes: str = ""
    kind: str = ""
    parameters: tuple[Setting, ...] = ()


@click.command("list")
@click.argument("names", metavar="[EXPERIMENT]...", nargs=-1, type=options.EXPERIMENT)
@options.as_json
def list_experiments(names: tuple[str, ...], as_json: bool) -> None:
    """List the experiments, or the parameters of some.

    An experiment compiles and settles one program, a training compares the losses of several layouts, a question is
    answered in numbers. "takes" says how long lab run takes on two cores.
    """
    entries = suite.load(names)
    if as_json:
        print_json(list(map(_object, entries)))
    elif names:
        print_text("\n\n".join(map(_parameters_text, entries)))
    else:
        rows = [(e.name, str(e.chapter), suite.kind(e), suite.takes(e), e.question) for e in entries]
        print_text(tables.rows_text(("name", "chapter", "kind", "takes", "question"), rows))


def _object(entry: Entry) -> ExperimentJson:
    of, settings = entry, tuple(listed(entry.parameters))
    return ExperimentJson(
        of.name, of.chapter, of.question, of.targets, of.styles, suite.takes(of), suite.kind(of), settings
    )


def _parameters_text(entry: Entry) -> str:
    """What `--set` takes, a row each."""
    rows = [(each.name, _default(each), each.meaning) for each in listed(entry.parameters)]
    head = f"{entry.name}: {entry.question}", explained(entry.parameters)
    return "\n\n".join([*head, tables.rows_text(("--set", "default", "what it is"), rows)])


def _default(setting: Setting) -> str:
    """As `--set` takes it."""
    default = setting.default
    return "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
