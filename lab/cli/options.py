"""What options and arguments of several commands are, and the types of their values."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from lab.compile.environment import Requirement
from lab.diagnosis import KINDS
from lab.harness import registry
from lab.measure.bench.sizes import parse_sizes
from lab.meshes import processes
from lab.meshes.availability import availability
from lab.meshes.axes import Axes, TypedAxes
from lab.meshes.errors import UsageError, no_such
from lab.meshes.targets import parse_target

STYLES = {
    "declared": "the compiler inserts the collectives",
    "typed": "it does so by the shardings in arrays' types",
    "explicit": "they are written out",
}
TARGET_FORMS = "cpu:8, gpu:h100:2x8, tpu:v5p:2x2x4 or attached"


class Parsed(click.ParamType):  # type: ignore[type-arg]  # Generic since click 8.5 alone.
    """A value that a function reads from text; what it raises is the whole error. A shell completes the known ones."""

    def __init__(
        self, name: str, parse: Callable[[str], Any] = str, known: Callable[[], Iterable[str]] = tuple
    ) -> None:
        self.name, self._parse, self._known = name, parse, known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._parse(value) if isinstance(value, str) else value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in self._known() if name.startswith(incomplete)]


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--set {text}: expected NAME=VALUE, such as --set layers=4")
    return name, value


def names(text: str) -> tuple[str, ...]:
    """Of a list with commas."""
    return tuple(name for name in text.replace(" ", "").split(",") if name)


def _share(text: str) -> Fraction:
    number = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?|\.\d{1,9})\s*%\s*", text)
    if not number:
        raise UsageError(f"--allow {text}: expected a percentage of the bytes, such as 1%")
    return Fraction(number[1]) / 100


def _xla_flags(text: str) -> dict[str, str]:
    """By name; a flag without a value is on."""
    found = {}
    for word in shlex.split(text):
        flag = re.fullmatch(r"(?:--)?(xla_\w+)(?:=(.*))?", word)
        if flag is None:
            raise UsageError(f"--flags {word}: expected flags of XLA, such as '--xla_a=true --xla_b=2'")
        value = "true" if flag[2] is None else flag[2]
        found[flag[1]] = value.capitalize() if value in ("true", "false") else value  # As options of a compile are.
    return found


def _writable(text: str) -> Path:
    """Refused before the work is done, not after it. Of a program's processes the first writes."""
    if not processes.is_first():
        return Path(os.devnull)
    path = Path(text)
    target = Path(os.path.realpath(path))
    # A new file takes the place of an old one; into a pipe is written.
    places = [path] if path.exists() and not path.is_file() else [target.parent, *[target] * target.exists()]
    if path.is_dir() or not all(os.access(place, os.W_OK) for place in places):
        raise UsageError(f"{path}: cannot be written; name a file in a folder of yours that exists")
    return path


def _kinds() -> list[str]:
    return ["any", *(kind.name for kind in KINDS)]


def _kind(text: str) -> str:
    if text not in _kinds():
        raise no_such("kind of finding", text, _kinds(), shown_by="lab explain")
    return text


def _explained() -> list[str]:
    from lab.settle import CATALOGUE, NOTES

    return [kind.name for kind in KINDS] + [entry.id for entry in (*CATALOGUE, *NOTES)]


def _book() -> list[str]:
    from lab.book.register import CHAPTERS, load

    return [f"ch{chapter}" for chapter in CHAPTERS] + [formula.id for part in load() for formula in part.formulas]


def _plots() -> Iterable[str]:
    from lab.report.plots import PLOTS

    return PLOTS


def _tour_parts() -> Iterable[str]:
    from lab.measure.tour.tour import PARTS

    return PARTS


def _primitives() -> Iterable[str]:
    from lab.collectives import ALGORITHMS

    return [*ALGORITHMS, "rates"]


def _algorithms() -> Iterable[str]:
    from lab.collectives import ALGORITHMS

    return dict.fromkeys(name for algorithms in ALGORITHMS.values() for name in algorithms)


AXES = Parsed("axes", Axes.parse)
TYPED_AXES = Parsed("axes", TypedAxes.parse)
TARGET = Parsed("target", parse_target, lambda: [row.target for row in availability()])
SETTING = Parsed("setting", _setting)
SHARE = Parsed("share", _share)
XLA_FLAGS = Parsed("flags", _xla_flags)
REQUIREMENT = Parsed("requirement", Requirement.parse)
SIZES = Parsed("sizes", parse_sizes)
KIND = Parsed("kind", _kind, _kinds)
EXPLAINED = Parsed("name", known=_explained)
STYLE = Parsed("style", known=lambda: STYLES)
EXPERIMENT = Parsed("experiment", known=registry.names)
PLOT = Parsed("plot", known=_plots)
BOOK = Parsed("formula", known=_book)
TOUR_PART = Parsed("part", known=_tour_parts)
PRIMITIVE = Parsed("primitive", known=_primitives)
ALGORITHM = Parsed("algorithm", known=_algorithms)


class OutputFile(click.Path):
    """A file to write, which a shell completes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return _writable(value)


OUTPUT_FILE = OutputFile()

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
mesh = click.option(
    "--mesh", metavar="AXES", type=AXES, help="The mesh's axes in the order of mesh.devices: data=2,tensor=8."
)
typed_mesh = click.option(
    "--mesh",
    metavar="AXES",
    type=TYPED_AXES,
    help="The mesh's axes in the order of mesh.devices: data=2,tensor=8; an axis of type Explicit is data=2:explicit.",
)
html = click.option(
    "--html",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="Also write a report for a browser, in one file that needs no network.",
)
prove = click.option(
    "--prove/--no-prove",
    default=True,
    help="Whether to try what findings advise, by compiling the changed program: in at most the time of the compile.",
)
functions = click.option(
    "--function",
    "functions",
    metavar="NAME",
    multiple=True,
    help="Of a script: the function to look at, of those that it calls on several devices; by default the one that "
    "computes most.",
)
calls = click.option(
    "--calls",
    metavar="COUNT",
    type=click.IntRange(1),
    default=100,
    help="Of a script: how many calls on several devices to follow, 100 by default.",
)
save = click.option("--save", metavar="FILE", type=OUTPUT_FILE, help="Also write the JSON to a file.")


def target(help_text: str, *names: str, **attributes: Any) -> Callable[..., Any]:
    """`--target`."""
    return click.option("--target", *names, metavar="TARGET", type=TARGET, help=help_text, **attributes)


def settings(help_text: str) -> Callable[..., Any]:
    """`--set NAME=VALUE`, as often as wanted."""
    return click.option("--set", "settings", metavar="NAME=VALUE", multiple=True, type=SETTING, help=help_text)


def vary(help_text: str) -> Callable[..., Any]:
    """`--vary NAMES`."""
    return click.option("--vary", metavar="NAMES", type=Parsed("names", names), default="", help=help_text)


ARGUMENTS = "script's arguments"


class OfScripts(click.Command):
    """What comes after `--` are a script's own arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[ARGUMENTS] = tuple(args[end + 1 :])
        try:
            return super().parse_args(ctx, args[:end])
        except click.NoSuchOption as error:
            script = next((part for part in args[:end] if part.endswith(".py")), None)
            if script is None:
                raise
            raise UsageError(
                f"lab {ctx.info_name} has no option {error.option_name}; arguments of {script} itself go after --: "
                f"lab {ctx.info_name} {script} ... -- {error.option_name} ..."
            ) from None
