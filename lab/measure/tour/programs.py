"""Every experiment as it runs here, and beside it the same program compiled ahead of time for the same card."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import UNSET, UnsetType

from lab.compile.inspection import inspect_program
from lab.core import changes
from lab.core.ledger import Ledger, Memory
from lab.harness.experiment import Experiment, Run
from lab.harness.result import Result
from lab.harness.run import run
from lab.harness.schemas import RunResultJson
from lab.measure.bench.rates import UNTUNED
from lab.measure.tour.apart import apart, compiled
from lab.meshes.axes import Axes
from lab.meshes.errors import one_line
from lab.meshes.targets import Target

DESCRIBED = "*.gpu_target_config.pbtxt"
TINY = "import jax; jax.jit(lambda x: x + 1)(1.0).block_until_ready()"


@dataclass(frozen=True)
class Compared:
    """One program here and ahead of time.

    Attributes:
      untuned: compiled here, but without trying kernels on the card.
      changes: transfers that differ, as `lab.core.changes` has them.
      failure: why there is nothing to compare with.
    """

    run: Run[Experiment]
    result: Result
    ahead: Ledger | None
    untuned: Ledger | None = None
    failure: str | None = None

    @property
    def changes(self) -> tuple[changes.Change, ...]:
        return changes.changes(self.ahead, self.result.measured) if self.ahead and self.result.measured else ()

    @property
    def is_same(self) -> bool:
        """Transfers and peak memory are equal."""
        return _are_same(self.ahead, self.result.measured)

    @property
    def is_same_untuned(self) -> bool:
        return _are_same(self.ahead, self.untuned)

    @property
    def has_failed(self) -> bool:
        return self.failure is not None or not self.result.is_fine

    def json_object(self) -> ComparedJson:
        ahead = AheadOfTimeJson(
            failure=self.failure,
            same=self.is_same,
            same_untuned=self.is_same_untuned,
            peak=_peak(self.ahead),
            untuned_peak=_peak(self.untuned),
            attached_peak=_peak(self.result.measured),
            changes=tuple(change.json_object() for change in self.changes),
        )
        return ComparedJson(**vars(self.result.json_object()), ahead_of_time=ahead)


@dataclass(frozen=True)
class AheadOfTimeJson:
    """Whether transfers and peaks are those of the compile here; `untuned`: here without trying kernels."""

    failure: str | None
    same: bool
    peak: int | None
    attached_peak: int | None
    changes: tuple[changes.ChangeJson, ...]
    same_untuned: bool | UnsetType = UNSET
    untuned_peak: int | UnsetType | None = UNSET


@dataclass(frozen=True)
class ComparedJson(RunResultJson):
    """An experiment as it ran here, with the same program compiled ahead of time."""

    ahead_of_time: AheadOfTimeJson = field(kw_only=True)


def _are_same(one: Ledger | None, other: Ledger | None) -> bool:
    if one is None or other is None:
        return False
    return not changes.changes(one, other) and _peak(one) == _peak(other)


def _peak(ledger: Ledger | None) -> int | None:
    memory: Memory | None = ledger.memory if ledger else None
    return memory.peak if memory else None


def compared(
    runs: Sequence[Run[Experiment]],
    ahead: Target,
    chip_text: str | None,
    watch: Callable[[Sequence[Run[Experiment]]], Iterable[Run[Experiment]]] = iter,
) -> list[Compared]:
    """Runs each, with numbers, one after the other; what it is compared with is compiled meanwhile, apart."""
    with apart({ahead, *(each.target for each in runs)}) as pool:
        waiting = {
            each: (
                pool.submit(_ledger, *_named(each), ahead, chip_text),
                pool.submit(_ledger, *_named(each), each.target, None, UNTUNED),
            )
            for each in runs
        }
        return [_compared(each, *waiting.pop(each)) for each in watch(runs)]


def _named(run: Run[Experiment]) -> tuple[str, str, Any, Axes]:
    """What another process can load it by."""
    return run.experiment.name, run.style, run.experiment.parameters, run.experiment.axes(run.target)


def _compared(each: Run[Experiment], ahead: Future[Ledger], untuned: Future[Ledger]) -> Compared:
    result = run(each.experiment, target=each.target, style=each.style)
    try:
        return Compared(each, result, ahead.result(), untuned.result())
    except Exception as failure:  # One program that the compiler refuses must not end the tour.
        return Compared(each, result, None, failure=one_line(failure))


def _ledger(
    name: str,
    style: str,
    parameters: Any,
    axes: Axes,
    target: Target,
    chip_text: str | None = None,
    options: dict[str, str | bool] | None = None,
) -> Ledger:
    program, _, mesh = compiled(name, style, parameters, axes, target, chip_text, options)
    return inspect_program(program, (), mesh, target, source=name)


def own_chip_text() -> str | None:
    """How XLA describes this machine's GPU, from a process of its own; None where it has none."""
    with tempfile.TemporaryDirectory() as folder:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={folder}"
        subprocess.run(
            [sys.executable, "-c", TINY],
            env=os.environ | {"XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
            capture_output=True,
            timeout=300,
        )
        return next((path.read_text() for path in sorted(Path(folder).glob(DESCRIBED))), None)
