"""The entry point, and how it ends.

Exit status: 0 fine, 1 a prediction or claim refuted, a difference, or a finding of `--fail-on`, 2 unusable input, in
one line on stderr, 3 a bug of the lab, with its traceback in a file that the line names, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

import click

from lab.cli import interrupt
from lab.cli.refusals import refuse, wants_traceback
from lab.core.faults import fault_of, written
from lab.core.printable import printable
from lab.meshes import processes
from lab.meshes.errors import UsageError

BUG = 3


def main() -> None:
    """The entry point `lab`."""
    if sys.stderr is None:  # Closed; what goes there is lost, and no file that is opened later takes its place.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        sys.stderr = os.fdopen(2, "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # Lines of tables are in no 8-bit encoding.
    if wants_traceback():
        os.environ.setdefault("JAX_TRACEBACK_FILTERING", "off")
    try:
        if sys.stdout is None:
            raise UsageError("stdout is closed, expected a terminal, a pipe or a file; nothing was done")
        if several := processes.found():
            _print_for_all(several.index == 0)
        with interrupt.ends_at_once():
            from lab.cli.group import cli

            status = cli.main(prog_name="lab", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        status = interrupt.STATUS
    except (click.ClickException, UsageError) as error:
        status = refuse(error)
    except OSError as error:
        status = refuse(UsageError(f"{error.filename or 'output'}: cannot be read or written ({error.strerror})"))
    except Exception as error:
        status = _own_bug(error)
    sys.exit(status)


def _print_for_all(is_first: bool) -> None:
    """Of a program's processes the first prints. What collectives libraries print past Python goes to stderr."""
    own = os.dup(1) if is_first else os.open(os.devnull, os.O_WRONLY)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(own, "w", encoding=sys.stdout.encoding, errors="replace")


def _own_bug(error: Exception) -> int:
    """Nothing that a person gave is to blame."""
    fault = fault_of(error)
    path = written(fault)
    if wants_traceback() or path is None:
        print(fault.stack, file=sys.stderr, end="")
    where = f"its traceback is in {path}; please report it with that file" if path else "please report its traceback"
    print(printable(f"lab: this is a bug of sharding-lab: {fault}; {where}"), file=sys.stderr)
    return BUG
