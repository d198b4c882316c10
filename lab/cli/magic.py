"""`%lab` of notebooks: `%lab inspect step(params, batch)` and `%lab time` compile a call in the notebook's own process;
all else is as on the command line."""

from __future__ import annotations

import ast
import re
import shlex
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.cli import options
from lab.cli.output import print_text
from lab.cli.programs import read_built
from lab.cli.refusals import refuse
from lab.cli.studies import studied
from lab.compile import sources
from lab.diagnosis.program import Program
from lab.measure.prediction import predicted, rates_at
from lab.meshes.axes import TypedAxes
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target, parse_target
from lab.report.diagnosis import diagnosis_text
from lab.report.seconds import prediction_text, time_lines

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_FIRST_OPTION = re.compile(r"\s--(?=[a-z])|$")
ATTACHED = parse_target("attached")
_STAGES = "lower", "compile"
_TAKES = "__lab_takes__"


def register(shell: InteractiveShell) -> None:
    function: Any = partial(lab, shell)
    shell.register_magic_function(function, "line", "lab")


def lab(shell: InteractiveShell, line: str) -> None:
    """`%lab inspect step(params, batch) --target gpu:h100:2x8`, `%lab time` of the same, or a command as in a terminal.

    The call is not made: `step` is compiled for its arguments; what it communicates, or how long it takes, is printed,
    and shown as a page. With --target the arguments are shapes, on a mesh of the same axes there.
    """
    command, _, rest = line.strip().partition(" ")
    text = rest[: _first_option(rest)].strip()
    try:
        if command in _OF_CALLS and not Path(text).exists() and _names(text) & set(shell.user_ns):
            options_given = shlex.split(rest[_first_option(rest) :])
            _OF_CALLS[command].main(options_given, "%lab", standalone_mode=False, obj=_Asked(shell, command, text))
        else:
            from lab.cli.group import cli

            cli.main(shlex.split(line), "%lab", standalone_mode=False)
    except (click.ClickException, UsageError) as error:
        refuse(error)


@dataclass(frozen=True)
class _Asked:
    """A call in a cell, for a command."""

    shell: InteractiveShell
    command: str
    text: str


_Called = tuple[str, Any, tuple[Any, ...], dict[str, Any]]
"""The name of a function, the function, and its arguments; what is lowered or compiled already has none."""


@click.command("inspect")
@options.typed_mesh
@options.target(f"What to compile for: {options.TARGET_FORMS}. By default the devices of the arguments.")
@options.prove
@click.pass_obj
def _inspect(asked: _Asked, mesh: TypedAxes | None, target: Target | None, prove: bool) -> None:
    from lab.report.html import reports

    found = studied(_program(_called(asked), mesh, target), prove)
    text = "\n".join([diagnosis_text(found.diagnosis), *time_lines(found.time)])
    _show(text, reports.inspection([found.diagnosis], [found.time]))


@click.command("time")
@options.typed_mesh
@options.target(f"The chips whose rates count: {options.TARGET_FORMS}. By default the devices that JAX has.")
@click.pass_obj
def _time(asked: _Asked, mesh: TypedAxes | None, target: Target | None) -> None:
    from lab.report.html import seconds

    called = _called(asked)
    rates_at(target or ATTACHED)  # Before it is compiled.
    found = predicted(_program(called, mesh, target, ATTACHED))
    _show(prediction_text(found), seconds.page([found]))


_OF_CALLS = {"inspect": _inspect, "time": _time}


def _program(
    called: _Called, mesh: TypedAxes | None, target: Target | None, otherwise: Target | None = None
) -> Program:
    name, program, args, named = called
    on: Any = mesh.axes if mesh else None
    if target:
        from lab.compile.on_target import moved_to

        program, args, on = moved_to(target, mesh, name, program, args, named)
    elif named:
        program = partial(program, **named)
    return read_built(lambda _: nullcontext(), name, program, args, on, target or otherwise)


def _show(text: str, page: str) -> None:
    from IPython.display import display

    from lab.report.html import notebook

    print_text(text)
    display({"text/html": notebook.page_html(page)}, raw=True)  # type: ignore[no-untyped-call]


def _called(asked: _Asked) -> _Called:
    text, names = asked.text, asked.shell.user_ns
    parsed = ast.parse(text, mode="eval")
    called = parsed.body
    with sources.users_code(text):
        if not isinstance(called, ast.Call) or getattr(called.func, "attr", "") in _STAGES:
            found = eval(compile(parsed, "<lab>", "eval"), names)
            if sources.is_staged(found):
                return text, found, (), {}
            raise UsageError(
                f"{text}: found no arguments; expected a call, such as %lab {asked.command} {text}(params, batch)"
            )
        name = ast.unparse(called.func)
        function = eval(compile(ast.Expression(called.func), "<lab>", "eval"), names)
        called.func = ast.copy_location(ast.Name(_TAKES, ast.Load()), called.func)
        args, named = eval(compile(parsed, "<lab>", "eval"), names | {_TAKES: lambda *args, **named: (args, named)})
    return name, function, args, named


def _names(text: str) -> set[str]:
    """Those of an expression; none of the name of a file."""
    try:
        return {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}
    except SyntaxError:
        return set()


def _first_option(text: str) -> int:
    found = _FIRST_OPTION.search(text)
    return found.start() if found else len(text)
