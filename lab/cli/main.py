"""The command line: one module a command. Exit status: 0 fine, 1 a claim refuted or a budget broken, 2 unusable input,
in one line on stderr."""

from __future__ import annotations

import sys
from io import TextIOWrapper

import click

from lab.cli.bench import bench
from lab.cli.book import book
from lab.cli.diff import diff
from lab.cli.inspect import inspect
from lab.cli.list import list_experiments
from lab.cli.plot import plot
from lab.cli.run import run
from lab.cli.targets import targets
from lab.cli.tour import tour
from lab.cli.verify import verify
from lab.meshes.errors import UsageError

INTERRUPTED = 130
JAX_NOTE = "-----"
"""How a note begins that JAX adds to every error of a traced function."""


@click.group(no_args_is_help=False)
def cli() -> None:
    """What a sharded JAX program communicates: predicted by theory, read from the compiled program, settled to the
    byte."""


for _command in (inspect, diff, targets, list_experiments, run, verify, bench, tour, book, plot):
    cli.add_command(_command)


def main() -> None:
    """The entry point `lab`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # Lines of tables are in no 8-bit encoding.
    try:
        status = cli.main(prog_name="lab", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except (click.ClickException, UsageError) as error:
        status = refuse(error)
    except OSError as error:
        status = refuse(UsageError(f"{error.filename or 'output'}: cannot be read or written ({error.strerror})"))
    sys.exit(status)


def refuse(error: click.ClickException | UsageError) -> int:
    for note in getattr(error, "__notes__", ()):
        if not note.startswith(JAX_NOTE):
            print(note, file=sys.stderr)
    print(f"lab: {_said(error)}", file=sys.stderr)
    return 2


def _said(error: click.ClickException | UsageError) -> str:
    if isinstance(error, UsageError):
        return " ".join(str(error).split())
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "lab"
    return f"{error.format_message().rstrip('.')}; see {command} --help"
