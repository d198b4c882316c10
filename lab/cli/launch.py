"""`lab launch`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from lab.cli import options
from lab.cli.output import print_json
from lab.meshes.errors import UsageError
from lab.resilience import launch as processes

LAST_LINES = 20


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("-n", "--processes", "count", metavar="COUNT", required=True, type=click.IntRange(1), help="How many.")
@click.option(
    "--devices",
    metavar="COUNT",
    type=click.IntRange(1),
    help="Of each process: by default an equal share of the GPUs, or one fake CPU device.",
)
@click.option(
    "--logs",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where all processes but the first print, process-1.log and so on; by default a new folder for temporary "
    "files.",
)
@options.as_json
def launch(command: tuple[str, ...], count: int, devices: int | None, logs: Path | None, as_json: bool) -> int:
    """Run a program in several processes on this machine.

    In each, jax.distributed.initialize() finds the others, without arguments; commands of lab on attached devices do so
    themselves. GPUs are divided among the processes, without GPUs each has fake CPU devices.

    Process 0 prints here, with --json on stderr. One that fails ends all, and its exit status is that of lab launch; so
    does Ctrl-C.
    """
    try:
        logs = logs or (Path(tempfile.mkdtemp(prefix="lab-launch-")) if count > 1 else Path())
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--logs {logs}: cannot be made ({error.strerror}); name a folder of yours") from None
    if count > 1:
        others = "process 1 prints" if count == 2 else f"processes 1 to {count - 1} print"
        print(f"lab: {others} into {logs}", file=sys.stderr)
    found = processes.launch(command, count, devices, logs, sys.stderr if as_json else None)
    if found.failed is not None:
        failed = found.processes[found.failed]
        for line in _last_lines(failed.log):
            print(f"{failed.index} | {line}", file=sys.stderr)
        print(f"lab: process {failed.index} of {count} {failed.how}, which ended all", file=sys.stderr)
    if as_json:
        print_json(found)
    return found.status


def _last_lines(log: str | None) -> list[str]:
    """Of what the process printed; none of the first, which printed here."""
    return Path(log).read_text(errors="replace").splitlines()[-LAST_LINES:] if log else []
