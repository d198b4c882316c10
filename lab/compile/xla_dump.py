"""What XLA compiles a program for TPUs to, without the machine code: the optimized text, its schedule and its memory.

These three are settled after a few per cent of a compilation; nothing after changes them, and a ledger needs no more.
So a program is compiled in a process of its own, which ends as soon as XLA has dumped them (`--xla_dump_to`).
"""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
from jax.sharding import Mesh

from lab.compile.build import Build
from lab.core.known import known
from lab.core.ledger import Memory
from lab.hlo.buffers import read_buffers
from lab.hlo.padding import argument_padding
from lab.hlo.shapes import arrays
from lab.meshes.axes import Axes
from lab.meshes.targets import Target

# Buffers are written before the text, which is the last before machine code is made.
BUFFERS, TEXT = "after_optimizations.hlo.pb", "after_optimizations_after_buffer_assignment.txt"
REQUEST, LOG, REFUSAL = "request", "log", "refusal"
LOOK_S = 0.1
# With this process' own path: a module `lab` in the folder that it runs in must not come first.
COMPILE = "import sys; sys.path[:] = {path!r}; from lab.compile.xla_dump_process import main; main()"
_ABORT = re.compile(r"^F\d{4} .*", re.MULTILINE)
"""How XLA says why it aborts, before it prints its stack."""
_NEXT_ATTRIBUTE = re.compile(r"\}, \w+=")


class Refused(Exception):
    """XLA's own sentence on why it does not compile a program."""


@dataclass(frozen=True)
class CompileRequest:
    """A program to compile in another process.

    Attributes:
      find_build: gives what builds it; pickled by reference.
    """

    find_build: Callable[[], Build]
    style: str
    parameters: Any
    target: Target
    axes: Axes


@dataclass(frozen=True)
class CompilerDump:
    """The text that a whole compilation ends with, and the memory that it reports; of temporaries those that are values
    of the program.

    Attributes:
      text: as `compiled.as_text()`.
    """

    text: str
    memory: Memory

    @property
    def taken(self) -> tuple[int, ...]:
        """Entries that one device holds of each array that the program takes."""
        return _entries(self._layouts.partition(")->")[0])

    @property
    def given_back(self) -> tuple[int, ...]:
        return _entries(_NEXT_ATTRIBUTE.split(self._layouts.partition(")->")[2], maxsplit=1)[0])

    @property
    def _layouts(self) -> str:
        return self.text.partition("\n")[0].partition("entry_computation_layout={")[2]


def _entries(types: str) -> tuple[int, ...]:
    return tuple(prod(array.dims) for array in arrays(types))


def dump(request: CompileRequest) -> CompilerDump:
    """Compiles a program for a TPU target up to machine code.

    Raises:
      Refused: XLA does not compile it.
      UsageError: it cannot be built with these parameters.
    """
    with TemporaryDirectory(prefix="lab-dump-") as name:
        folder = Path(name)
        (folder / REQUEST).write_bytes(pickle.dumps(request))
        with open(folder / LOG, "wb") as log:
            compiler = subprocess.Popen(
                [sys.executable, "-c", COMPILE.format(path=sys.path), name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            text = _awaited(compiler, folder)
        finally:
            compiler.kill()
            compiler.wait()
        return CompilerDump(text, _memory(known(_dumped(folder, BUFFERS)).read_bytes(), text))


def _awaited(compiler: subprocess.Popen[bytes], folder: Path) -> str:
    """The text as soon as it is whole."""
    while True:
        has_ended = compiler.poll() is not None
        found = _dumped(folder, TEXT)
        text = found.read_text() if found else ""
        if "\nENTRY " in text and text.rstrip().endswith("}"):
            return text
        if has_ended:
            raise _refusal(folder)
        time.sleep(LOOK_S)


def _dumped(folder: Path, name: str) -> Path | None:
    return next(folder.glob(f"*.{name}"), None)


def _refusal(folder: Path) -> Exception:
    refusal = folder / REFUSAL
    if refusal.exists():
        reason: Exception = pickle.loads(refusal.read_bytes())
        return reason
    log = (folder / LOG).read_text(errors="replace").strip()
    aborts = _ABORT.findall(log)
    return Refused(f"the compiler exited without a dump: {aborts[-1] if aborts else log[-300:]}")


def _memory(buffers: bytes, text: str) -> Memory:
    held = read_buffers(buffers)
    return Memory(held.arguments, held.outputs, held.temporaries, held.aliased, held.peak, argument_padding(text))


def lower(build: Build, style: str, parameters: Any, mesh: Mesh) -> jax.stages.Lowered:
    function, args = build(style, parameters, mesh)
    return function.lower(*args)
