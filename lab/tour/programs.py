"""Every experiment as it runs here, and beside it the same program compiled ahead of time for the same card."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import changes
from lab.inspection import inspect_program
from lab.ledger import Ledger, Memory
from lab.run import Result, compiled_step, run
from lab.suite import Run
from meshes.targets import Target, make_mesh

DESCRIBED = "*.gpu_target_config.pbtxt"
TINY = "import jax; jax.jit(lambda x: x + 1)(1.0).block_until_ready()"


@dataclass(frozen=True)
class Compared:
    """One program here and ahead of time.

    Attributes:
      changes: transfers that differ, as `lab.changes` has them.
      failure: why there is nothing ahead of time to compare with.
    """

    run: Run
    result: Result
    ahead: Ledger | None
    failure: str | None = None

    @property
    def changes(self) -> tuple[changes.Change, ...]:
        return changes.changes(self.ahead, self.result.measured) if self.ahead and self.result.measured else ()

    @property
    def is_same(self) -> bool:
        """Transfers and peak memory are equal."""
        return bool(self.ahead and self.result.measured) and not self.changes and _peak(self.ahead) == _peak(self.result.measured)

    def to_json(self) -> dict[str, Any]:
        ahead = {"failure": self.failure, "peak": _peak(self.ahead), "attached_peak": _peak(self.result.measured), "same": self.is_same}
        return self.result.to_json() | {"ahead_of_time": ahead | {"changes": [change.to_json() for change in self.changes]}}


def _peak(ledger: Ledger | None) -> int | None:
    memory: Memory | None = ledger.memory if ledger else None
    return memory.peak if memory else None


def compared(runs: Sequence[Run], ahead: Target, chip_text: str | None, watch: Callable[[Sequence[Run]], Iterable[Run]] = iter, compilers: int = 8) -> list[Compared]:
    """Runs each, with numbers, one after the other; what is compiled ahead of time is compiled meanwhile."""
    with ThreadPoolExecutor(compilers) as pool:
        waiting = {each: pool.submit(_ahead, each, ahead, chip_text) for each in runs}
        return [_compared(each, waiting.pop(each)) for each in watch(runs)]


def _compared(each: Run, waiting: Any) -> Compared:
    result = run(each.experiment, target=each.target, style=each.style)
    try:
        return Compared(each, result, waiting.result())
    except Exception as failure:  # One program that the compiler refuses must not end the tour.
        return Compared(each, result, None, str(failure).strip().partition("\n")[0])


def _ahead(each: Run, ahead: Target, chip_text: str | None) -> Ledger:
    """The same program on the same mesh, with a description of the card in place of the card."""
    experiment = each.experiment
    mesh = make_mesh(ahead, experiment.axes(each.target), chip_text)
    return inspect_program(compiled_step(experiment, each.style, experiment.parameters, mesh), (), mesh, ahead, source=experiment.name)


def own_chip_text() -> str | None:
    """How XLA describes this machine's GPU, from a process of its own; None where it has none."""
    with tempfile.TemporaryDirectory() as folder:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={folder}"
        subprocess.run([sys.executable, "-c", TINY], env=os.environ | {"XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, capture_output=True, timeout=300)
        return next((path.read_text() for path in sorted(Path(folder).glob(DESCRIBED))), None)
