"""What XLA compiles a program for TPUs or GPUs to, without the machine code: the optimized text, its schedule and its
memory.

These three are settled after a few per cent of a compilation; nothing after changes them, and a ledger needs no more.
So a program is compiled in a process that ends as soon as XLA has dumped them (`--xla_dump_to`).
"""

from __future__ import annotations

import gzip
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import jax
from jax.sharding import Mesh

from lab.compile.build import Build
from lab.compile.kept import place
from lab.core.files import write_whole
from lab.core.ledger import Memory
from lab.hlo.buffers import Buffers, LiveBuffer, read_buffers
from lab.hlo.padding import argument_padding
from lab.hlo.shapes import arrays
from lab.meshes.axes import Axes
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target

BUFFERS = "after_optimizations.hlo.pb"
REQUEST, ANSWER = "request", "answer"
LOOK_S = 0.1
COMPILER = "lab compiler"
"""The name of a thread that makes machine code for as long as its process lives: one that goes on waits for it."""
# Dumps of newer versions write `%x#1` for an element of a tuple, where older ones, and `compiled.as_text()`, have an
# instruction; those for GPUs have an `async-start` of a computation of its own for `reduce-scatter-start`.
AS_COMPILED: Mapping[str, str | bool] = {"xla_dump_compact_gte": False}
ON_GPU: Mapping[str, str | bool] = {"xla_syntax_sugar_async_ops": True, "xla_gpu_force_compilation_parallelism": "1"}
# With this process' own path: a module `lab` in the folder that it runs in must not come first.
COMPILE = "import sys; sys.path[:] = {path!r}; from lab.compile.xla_dump_process import main; main()"
_ABORT = re.compile(r"^F\d{4} .*", re.MULTILINE)
"""How XLA says why it aborts, before it prints its stack."""
_NEXT_ATTRIBUTE = re.compile(r"\}, \w+=")


@dataclass(frozen=True)
class _Files:
    """Of a dump, as patterns.

    Attributes:
      options: of the compiler, where it knows them.
    """

    text: str
    buffers: str
    options: Mapping[str, str | bool]


_FINAL = "*.after_optimizations_after_buffer_assignment.txt"
_FILES = {
    Platform.TPU: _Files(_FINAL, f"*.{BUFFERS}", AS_COMPILED),
    # The chip stands in the name: `module_0001.jit_step.sm_9.0a_gpu_after_optimizations.txt`.
    Platform.GPU: _Files("*gpu_after_optimizations.txt", f"*gpu_{BUFFERS}", {**AS_COMPILED, **ON_GPU}),
}


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
      at_peak: the temporaries that are held at the fullest moment.
    """

    text: str
    memory: Memory
    at_peak: tuple[LiveBuffer, ...] = ()

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
        (Path(name) / REQUEST).write_bytes(pickle.dumps(request))
        compiler = subprocess.run(
            [sys.executable, "-c", COMPILE.format(path=sys.path), name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        answer = Path(name) / ANSWER
        if not answer.exists():
            said = compiler.stdout.strip()
            aborts = _ABORT.findall(said)
            raise Refused(f"the compiler exited without a dump: {aborts[-1] if aborts else said[-300:]}")
        found: CompilerDump | Exception = pickle.loads(answer.read_bytes())
        if isinstance(found, Exception):
            raise found
        return found


def dumped(
    lowered: jax.stages.Lowered, options: Mapping[str, str | bool] = {}, platform: Platform = Platform.TPU
) -> CompilerDump:
    """What XLA compiles it to, as soon as that is settled; the compilation goes on until this process ends.

    Args:
      options: of the compiler, by name.
    Raises:
      Exception: XLA does not compile it, in the words of JAX.
    """
    if not _WITHOUT_MACHINE_CODE.get():
        return _dumped(lowered, options, platform)
    kept = place("dumps", lowered, str(_FORMAT), str(sorted(options.items())), platform)
    with suppress(OSError, EOFError, pickle.UnpicklingError):
        found: CompilerDump = pickle.loads(gzip.decompress(kept.read_bytes()))
        return found
    found = _dumped(lowered, options, platform)
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, gzip.compress(pickle.dumps(found), _FAST))
    return found


_WITHOUT_MACHINE_CODE = ContextVar("without machine code", default=False)
_FORMAT, _FAST = 1, 1


@contextmanager
def without_machine_code() -> Iterator[None]:
    """Within it GPU programs are dumped as well, and what was dumped is kept on disk: of no program twice."""
    token = _WITHOUT_MACHINE_CODE.set(True)
    try:
        yield
    finally:
        _WITHOUT_MACHINE_CODE.reset(token)


def is_dumped(platform: Platform) -> bool:
    """Whether programs for it are compiled up to machine code alone."""
    return platform == Platform.TPU or (platform == Platform.GPU and _WITHOUT_MACHINE_CODE.get())


def _dumped(lowered: jax.stages.Lowered, options: Mapping[str, str | bool], platform: Platform) -> CompilerDump:
    failures: list[Exception] = []
    files = _FILES[platform]
    with TemporaryDirectory(prefix="lab-dump-", ignore_cleanup_errors=True) as name:
        made = lowered, Path(name), failures, files.options, options
        compiler = Thread(target=_compile, args=made, name=COMPILER, daemon=True)
        compiler.start()
        text, held = _awaited(compiler, Path(name), failures, files)
        return CompilerDump(text, held.memory(argument_padding(text)), held.at_peak)


def _compile(
    lowered: jax.stages.Lowered,
    folder: Path,
    failures: list[Exception],
    form: Mapping[str, str | bool],
    more: Mapping[str, str | bool],
) -> None:
    options: Any = {"xla_dump_to": str(folder), "xla_dump_hlo_as_text": True, "xla_dump_hlo_as_proto": True, **more}
    while True:
        try:
            lowered.compile(compiler_options={**form, **options})
            return
        except Exception as failure:
            unknown = [name for name in form if f"No such compile option: '{name}'" in str(failure)]
            if not unknown:
                failures.append(failure)
                return
            form = {name: value for name, value in form.items() if name not in unknown}


def held_at_peak(lowered: jax.stages.Lowered, options: Mapping[str, str | bool] = {}) -> tuple[LiveBuffer, ...]:
    """The temporaries of a program for GPUs at its fullest moment, from a compilation that dumps them; the largest
    first."""
    with TemporaryDirectory(prefix="lab-dump-") as name:
        lowered.compile(compiler_options={"xla_dump_to": name, "xla_dump_hlo_as_proto": True, **options})
        # The chip stands in the name: `module_0001.jit_step.sm_9.0a_gpu_after_optimizations.hlo.pb`.
        return read_buffers(next(Path(name).glob(f"*{BUFFERS}")).read_bytes()).at_peak


def _awaited(compiler: Thread, folder: Path, failures: list[Exception], files: _Files) -> tuple[str, Buffers]:
    """The text and the buffers as soon as both are whole: several threads write them."""
    while True:
        has_ended = not compiler.is_alive()
        found, planned = _found(folder, files.text), _found(folder, files.buffers)
        text = found.read_text() if found and planned else ""
        if planned and "\nENTRY " in text and text.rstrip().endswith("}"):
            with suppress(ValueError, LookupError):
                return text, read_buffers(planned.read_bytes())
        if has_ended:
            raise failures[0] if failures else Refused("the compiler left no dump")
        time.sleep(LOOK_S)


def _found(folder: Path, pattern: str) -> Path | None:
    return next(folder.glob(pattern), None)


def lower(build: Build, style: str, parameters: Any, mesh: Mesh) -> jax.stages.Lowered:
    function, args = build(style, parameters, mesh)
    return function.lower(*args)
