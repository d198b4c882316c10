"""Compiles at several sizes at a time, each in a process of its own. Imports no JAX."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from lab.compile.other_process import Call, ProcessEnded, Python, Stage
from lab.compile.several_processes import Each, several_processes
from lab.core.faults import versions_text
from lab.harness import registry
from lab.laws.compiled import measured
from lab.laws.derive import Measure
from lab.laws.family import Family, sizes_of
from lab.laws.measurement import Measurement, Refusal
from lab.meshes.backends import prepare, skip_code_optimization


@dataclass(frozen=True)
class Pool:
    """Processes that build and compile."""

    each: Each
    stage: Stage

    def compiler(self) -> str:
        """`jax 0.10.2, jaxlib 0.10.2`."""
        (found,) = self.each(lambda call, _: call(_compiler), [None])
        return found

    def sizes(self, family: Family) -> dict[str, int]:
        """See `sizes_of`: a builder may do anything.

        Raises:
          UsageError: there is no such program, or none with sizes.
        """
        (found,) = self.each(lambda call, one: call(sizes_of, one), [family])
        return found

    def measure(self, family: Family) -> Measure:
        """Measures a family's programs, as many at a time as there are processes."""

        def some(asked: Sequence[Mapping[str, int]]) -> list[Measurement | Refusal]:
            return self.each(lambda call, sizes: self._one(call, family, sizes), asked)

        return some

    def _one(self, call: Call, family: Family, sizes: Mapping[str, int]) -> Measurement | Refusal:
        shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
        try:
            with self.stage(f"{family.source} at {shown}"):
                return call(measured, family, sizes)
        except ProcessEnded as how:
            return Refusal(f"its process {how}")


def _ready(source: str) -> None:
    """What takes seconds to import, once for all forks. Each compile is one: a builder may keep what it built before,
    and machine code is still made when the text was read."""
    skip_code_optimization()
    prepare([])
    if source in registry.names():
        registry.experiment(source)
    import lab.compile.inspection
    import lab.compile.shapes_only
    import lab.compile.xla_dump
    import lab.laws.splits  # noqa: F401


def _compiler(_: Stage) -> str:
    return versions_text().partition(", ")[2]


@contextmanager
def pool(source: str, stage: Stage, python: Python | None) -> Iterator[Pool]:
    """See `several_processes`.

    Args:
      source: of the programs.
      python: what runs them; None for this Python.
    """
    with several_processes(partial(_ready, source), python) as each:
        yield Pool(each, stage)
