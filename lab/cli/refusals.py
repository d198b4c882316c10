"""What is printed of input that cannot be used."""

from __future__ import annotations

import os
import sys
import traceback

import click

from lab.core.printable import printable
from lab.meshes.errors import UsageError

UNUSABLE = 2
JAX_NOTE = "-----"
"""How a note begins that JAX adds to every error of a traced function."""


def refuse(error: click.ClickException | UsageError) -> int:
    """Says in a line what is wrong with the input, after the frames of the user's files that raised it."""
    if wants_traceback():
        traceback.print_exception(error)
    else:
        for note in getattr(error, "__notes__", ()):
            if not note.startswith(JAX_NOTE):
                print(note, file=sys.stderr)
    print(printable(f"lab: {said(error)}"), file=sys.stderr)
    return UNUSABLE


def wants_traceback() -> bool:
    """Told of options that could not be read, too."""
    return "--traceback" in sys.argv[1:] or os.environ.get("LAB_TRACEBACK", "0") not in ("", "0")


def said(error: click.ClickException | UsageError) -> str:
    if isinstance(error, UsageError):
        return " ".join(str(error).split())
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "lab"
    if isinstance(error, click.MissingParameter) and error.param:
        return (
            f"{command}: {getattr(error.param, 'metavar', None) or error.param.name} is missing; see {command} --help"
        )
    return f"{error.format_message().rstrip('.')}; see {command} --help"
