"""The command line. Exit status: 0 fine, 1 a claim refuted or a budget broken, 2 unusable input, told in one line on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from lab import inspection, sources
from lab.ledger import Ledger
from lab.report import tables
from meshes import targets as meshes_targets
from meshes.axes import Axes
from meshes.errors import Unusable
from meshes.targets import Target, parse_target

INTERRUPTED, CLOSED_PIPE = 130, 141


def _parsed(parse):
    """Reads an option's value, or each of its values, with `parse`."""

    def callback(_context, _option, value):
        return tuple(map(parse, value)) if isinstance(value, tuple) else value and parse(value)

    return callback


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
mesh_option = click.option("--mesh", metavar="AXES", callback=_parsed(Axes.parse), help="Axes in the order of mesh.devices: data=2,tensor=8.")
_TARGET_HELP = "What to compile for: cpu:8, gpu:h100:2x8, tpu:v5p:2x2x4, attached."


@click.group(no_args_is_help=False)
def cli() -> None:
    """What a sharded JAX program communicates: predicted by theory, read from the compiled program, settled to the byte."""


@cli.command()
@click.argument("given", metavar="SOURCE...", nargs=-1, required=True)
@mesh_option
@click.option("--target", metavar="TARGET", callback=_parsed(parse_target), help=_TARGET_HELP + " By default fake CPU devices, as many as the mesh has.")
@as_json
def inspect(given: tuple[str, ...], mesh: Axes | None, target: Target | None, as_json: bool) -> None:
    """Lists what a compiled program communicates.

    SOURCE is a compiled text (.hlo, .txt, .gz), the folder of an XLA dump, or file.py:build or package.module:build, where
    build(mesh) returns (function, args) with args as arrays or ShapeDtypeStructs with shardings.
    """
    if any(map(sources.is_program, given)):
        target = _prepared(mesh, target)
    ledgers = [ledger for source in given for ledger in _ledgers(source, mesh, target)]
    if as_json:
        _print_json([ledger.to_json() for ledger in ledgers] if len(ledgers) > 1 else ledgers[0].to_json())
    else:
        _print("\n\n".join(map(tables.ledger_text, ledgers)))


def _prepared(mesh: Axes | None, target: Target | None) -> Target:
    """The target of a program, with JAX made ready for it before the user's code imports JAX."""
    if mesh is None:
        raise Unusable("a program needs a mesh; name its axes in the order of mesh.devices, such as --mesh data=2,tensor=4")
    target = target or parse_target(f"cpu:{mesh.size}")
    meshes_targets.prepare([target])
    return target


def _ledgers(source: str, mesh: Axes | None, target: Target | None) -> list[Ledger]:
    if not sources.is_program(source):
        return inspection.inspect_texts(Path(source), mesh, target)
    with _working(f"compiling {source} for {target}"):
        build = sources.builder(source)
        devices = meshes_targets.make_mesh(target, mesh)
        function, args = sources.program(source, build, devices)
        with sources.own_words(source):
            return [inspection.inspect_program(function, args, devices, target, source=source)]


@contextmanager
def _working(on: str) -> Iterator[None]:
    """Says on a terminal what takes its time."""
    with Console(stderr=True).status(on):
        yield


def _print_json(value: Any) -> None:
    _print(json.dumps(value, indent=2))


def _print(text: str) -> None:
    """Prints a whole answer at once; a reader that went away, such as `head`, is no error."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still in the buffer would be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(CLOSED_PIPE)


def main() -> None:
    """The entry point `lab`."""
    try:
        status = cli.main(prog_name="lab", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except (click.ClickException, Unusable) as error:
        status = _refuse(error)
    sys.exit(status)


def _refuse(error: click.ClickException | Unusable) -> int:
    for note in getattr(error, "__notes__", ()):
        print(note, file=sys.stderr)
    print(f"lab: {_said(error)}", file=sys.stderr)
    return 2


def _said(error: click.ClickException | Unusable) -> str:
    if isinstance(error, Unusable):
        return " ".join(str(error).split())
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "lab"
    return f"{error.format_message().rstrip('.')}; see {command} --help"


if __name__ == "__main__":
    main()
