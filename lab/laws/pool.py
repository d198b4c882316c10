"""Compiles at several sizes at a time, each in a process of its own. Imports no JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from lab.compile.other_process import Call, ProcessEnded, other_process
from lab.compile.several_processes import Each, several_processes
from lab.laws.compiled import measured
from lab.laws.derive import Measure
from lab.laws.family import Family, sizes_of
from lab.laws.measurement import Measurement, Refusal
from lab.meshes.platforms import Platform

Stage = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Pool:
    """Processes that build and compile."""

    each: Each
    stage: Stage

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
        # Machine code is still made when the text was read, for four fifths of the time: the process is ended.
        is_alone = family.target.platform != Platform.CPU
        with other_process() if is_alone else nullcontext(call) as compiles:
            try:
                with self.stage(f"{family.source} at {shown}"):
                    return compiles(measured, family, sizes)
            except ProcessEnded as how:
                return Refusal(f"its process {how}")


@contextmanager
def pool(stage: Stage = lambda _: nullcontext()) -> Iterator[Pool]:
    """See `several_processes`."""
    with several_processes() as each:
        yield Pool(each, stage)
