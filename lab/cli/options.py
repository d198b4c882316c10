"""What options and arguments of several commands are, and the types of their values."""

from __future__ import annotations

import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from lab.diagnosis import KINDS
from lab.measure.bench.sizes import parse_sizes
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target


class Parsed(click.ParamType):
    """A value that a function reads from text; what that raises is the whole error."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._parse(value) if isinstance(value, str) else value


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--set {text}: expected NAME=VALUE, such as --set layers=4")
    return name, value


def _share(text: str) -> Fraction:
    number, percent, rest = text.partition("%")
    try:
        share = Fraction(number) / 100
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if share < 0 or not percent or rest:
        raise UsageError(f"--allow {text}: expected a percentage of the bytes, such as 1%")
    return share


def _writable(text: str) -> Path:
    """Refused before the work is done, not after it."""
    path = Path(text)
    if path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise UsageError(f"{path}: cannot be written; name a file in a folder of yours that exists")
    return path


AXES = Parsed("axes", Axes.parse)
TARGET = Parsed("target", parse_target)
SETTING = Parsed("setting", _setting)
SHARE = Parsed("share", _share)
SIZES = Parsed("sizes", parse_sizes)
OUTPUT_FILE = Parsed("file", _writable)
KIND = click.Choice(["any", *(kind.name for kind in KINDS)])

TARGET_FORMS = "cpu:8, gpu:h100:2x8, tpu:v5p:2x2x4 or attached"

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
mesh = click.option("--mesh", metavar="AXES", type=AXES, help="In the order of mesh.devices: data=2,tensor=8.")
html = click.option(
    "--html",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="Also write a report to open in a browser; it needs no network.",
)
save = click.option("--save", metavar="FILE", type=OUTPUT_FILE, help="Also write the JSON to a file.")


def target(help_text: str, *names: str, **attributes: Any) -> Callable[..., Any]:
    """`--target`."""
    return click.option("--target", *names, metavar="TARGET", type=TARGET, help=help_text, **attributes)


def settings(help_text: str) -> Callable[..., Any]:
    """`--set NAME=VALUE`, as often as wanted."""
    return click.option("--set", "settings", metavar="NAME=VALUE", multiple=True, type=SETTING, help=help_text)
