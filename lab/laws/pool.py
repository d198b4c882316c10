"""Compiles at several sizes at a time, each in a process of its own. Imports no JAX."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from queue import SimpleQueue

from lab.compile.other_process import Call, ProcessEnded, other_process
from lab.laws.compiled import measured
from lab.laws.derive import Measure
from lab.laws.family import Family, sizes_of
from lab.laws.measurement import Measurement, Refusal
from lab.meshes.platforms import Platform

MOST_PROCESSES = 4
Stage = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Pool:
    """Processes that build and compile."""

    workers: ThreadPoolExecutor
    stage: Stage
    free: SimpleQueue[Call] = field(default_factory=SimpleQueue)

    def sizes(self, family: Family) -> dict[str, int]:
        """See `sizes_of`: a builder may do anything.

        Raises:
          UsageError: there is no such program, or none with sizes.
        """
        with self._call() as call:
            return call(sizes_of, family)

    def measure(self, family: Family) -> Measure:
        """Measures a family's programs, as many at a time as there are processes."""

        def some(asked: Sequence[Mapping[str, int]]) -> list[Measurement | Refusal]:
            return list(self.workers.map(lambda sizes: self._one(family, sizes), asked))

        return some

    def _one(self, family: Family, sizes: Mapping[str, int]) -> Measurement | Refusal:
        shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
        # Machine code is still made when the text was read, for four fifths of the time: the process is ended.
        is_alone = family.target.platform != Platform.CPU
        with self._call() as call, other_process() if is_alone else nullcontext(call) as compiles:
            try:
                with self.stage(f"{family.source} at {shown}"):
                    return compiles(measured, family, sizes)
            except ProcessEnded as how:
                return Refusal(f"its process {how}")

    @contextmanager
    def _call(self) -> Iterator[Call]:
        call = self.free.get()
        try:
            yield call
        finally:
            self.free.put(call)


@contextmanager
def pool(stage: Stage = lambda _: nullcontext()) -> Iterator[Pool]:
    """As many processes as there are processors, four at most; each starts when it is first called."""
    count = max(1, min(MOST_PROCESSES, os.cpu_count() or 1))
    with ExitStack() as stack:
        calls = [stack.enter_context(other_process()) for _ in range(count)]
        found = Pool(stack.enter_context(ThreadPoolExecutor(count)), stage)
        for call in calls:
            found.free.put(call)
        yield found
