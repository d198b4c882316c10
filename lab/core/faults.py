"""Faults of the lab itself: what they come to in a line, and a file that says where."""

from __future__ import annotations

import shlex
import sys
import traceback
from importlib.metadata import PackageNotFoundError, version
from tempfile import NamedTemporaryFile

from lab.meshes.errors import one_line

_PACKAGES = {"lab": "sharding-lab", "jax": "jax", "jaxlib": "jaxlib"}


class Fault(Exception):
    """One that another process met: its line, and its traceback as text."""

    def __init__(self, line: str, stack: str) -> None:
        super().__init__(line, stack)
        self.stack = stack

    def __str__(self) -> str:
        return str(self.args[0])


def fault_of(error: BaseException) -> Fault:
    """`ValueError in lab.hlo.read, line 12: no such field`, by the innermost frame of the lab."""
    if isinstance(error, Fault):
        return error
    frames = [(frame.f_globals.get("__name__") or "", line) for frame, line in traceback.walk_tb(error.__traceback__)]
    ours = [f" in {name}, line {line}" for name, line in frames if f"{name}.".startswith("lab.")]
    line = f"{type(error).__name__}{''.join(ours[-1:])}: {one_line(error)}"
    return Fault(line, "".join(traceback.format_exception(error)))


def written(fault: Fault) -> str | None:
    """The name of a new file with the command, versions and the traceback; None where there is no folder to write
    into."""
    try:
        with NamedTemporaryFile("w", prefix="lab-fault-", suffix=".txt", delete=False, errors="replace") as file:
            file.write(f"{shlex.join(sys.argv)}\n{versions_text()}\n\n{fault.stack}")
        return file.name
    except OSError:
        return None


def versions_text() -> str:
    """`lab 0.1.0, jax 0.10.2, jaxlib 0.10.2`."""
    return ", ".join(f"{label} {_version(name)}" for label, name in _PACKAGES.items())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
