"""What XLA plans for a TPU: the program, its schedule and its memory, without the machine code.

These three are settled after a few per cent of a compilation; nothing after changes them, and a ledger needs no more. So an experiment's
program is compiled in a process of its own, which ends as soon as XLA has written its plan down (`--xla_dump_to`).
"""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
from jax.sharding import Mesh

from lab.harness import experiment
from lab.harness.experiment import Experiment
from lab.hlo.buffers import read_buffers
from lab.hlo.padding import argument_padding
from lab.hlo.shapes import arrays
from lab.core.ledger import Memory
from lab.meshes.axes import Axes
from lab.meshes.errors import Unusable
from lab.meshes.targets import Target, make_mesh, prepare

# Buffers are written before the text, which is the last before machine code is made.
BUFFERS, TEXT = "after_optimizations.hlo.pb", "after_optimizations_after_buffer_assignment.txt"
ORDER, SAID, REFUSAL = "order", "said", "refusal"
# Dumps of newer versions write `%x#1` for an element of a tuple, where older ones, and `compiled.as_text()`, have an instruction.
AS_COMPILED = {"xla_dump_compact_gte": False}
LOOK_S = 0.1
_NEXT_ATTRIBUTE = re.compile(r"\}, \w+=")


class Refused(Exception):
    """XLA's own sentence on why it does not compile a program."""


@dataclass(frozen=True)
class Order:
    """The program to plan: that of an experiment, by its name."""

    experiment: str
    style: str
    parameters: Any
    target: Target
    axes: Axes


@dataclass(frozen=True)
class Plan:
    """The text that a whole compilation ends with, and the memory that it reports; of temporaries those that are values of the program.

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


def can_plan(of: Experiment, target: Target) -> bool:
    """It is for TPUs, and another process finds the same program by the experiment's name."""
    return target.platform == "tpu" and of.name in experiment.names() and experiment.load(of.name).build is of.build


def plan(order: Order) -> Plan:
    """Plans a program for a TPU target.

    Raises:
      Refused: XLA does not compile it.
      Unusable: the experiment cannot build it.
    """
    with TemporaryDirectory(prefix="lab-plan-") as name:
        folder = Path(name)
        (folder / ORDER).write_bytes(pickle.dumps(order))
        with open(folder / SAID, "wb") as said:
            compiler = subprocess.Popen([sys.executable, "-m", "lab.compile.xla_dump", name], stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            text = _awaited(compiler, folder)
        finally:
            compiler.kill()
            compiler.wait()
        return Plan(text, _memory(_dumped(folder, BUFFERS).read_bytes(), text))


def _awaited(compiler: subprocess.Popen, folder: Path) -> str:
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
        return pickle.loads(refusal.read_bytes())
    return Refused(f"the compiler ended without a plan: {(folder / SAID).read_text(errors='replace').strip()[-300:]}")


def _memory(buffers: bytes, text: str) -> Memory:
    held = read_buffers(buffers)
    return Memory(held.arguments, held.outputs, held.temporaries, held.aliased, held.peak, argument_padding(text))


def compile_into(folder: Path) -> None:
    """Compiles the order in `folder`, and has XLA write there what it comes to; or leaves the reason why not."""
    order: Order = pickle.loads((folder / ORDER).read_bytes())
    try:
        prepare([order.target])
        lowered = lower(experiment.load(order.experiment), order.style, order.parameters, make_mesh(order.target, order.axes))
        _compile(lowered, {"xla_dump_to": str(folder), "xla_dump_hlo_as_text": True, "xla_dump_hlo_as_proto": True})
    except Exception as failure:
        told = failure if isinstance(failure, Unusable) else Refused(str(failure))
        (folder / REFUSAL).write_bytes(pickle.dumps(told))


def _compile(lowered: jax.stages.Lowered, options: dict[str, str | bool]) -> None:
    try:
        lowered.compile(compiler_options=options | AS_COMPILED)
    except jax.errors.JaxRuntimeError as failure:
        if "No such compile option" not in str(failure):
            raise
        lowered.compile(compiler_options=options)


def lower(of: Experiment, style: str, parameters: Any, mesh: Mesh) -> jax.stages.Lowered:
    function, args = of.build(style, parameters, mesh)
    return function.lower(*args)


if __name__ == "__main__":
    from lab.compile import xla_dump as planning  # Its own classes, not those of __main__: what it raises is read elsewhere.

    planning.compile_into(Path(sys.argv[1]))
