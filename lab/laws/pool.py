"""Compiles at several sizes at a time, each in a process of its own. Imports no JAX."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from queue import SimpleQueue

from lab.compile.other_process import Call, ProcessEnded, Stage, other_process
from lab.laws.compiled import measured
from lab.laws.derive import Measure
from lab.laws.family import Family, sizes_of
from lab.laws.measurement import Measurement, Refusal
from lab.meshes.platforms import Platform

MOST_PROCESSES = 4


@contextmanager
def compiler(family: Family, stage: Stage = lambda _: nullcontext()) -> Iterator[Measure]:
    """Measures a family's programs, as many at a time as there are processors, four at most."""
    count = max(1, min(MOST_PROCESSES, os.cpu_count() or 1))
    # Machine code for TPUs is still made when its text was read: the process is ended.
    once = family.target.platform == Platform.TPU
    with ExitStack() as stack:
        free: SimpleQueue[Call] = SimpleQueue()
        for _ in range(count):
            free.put(stack.enter_context(other_process()))
        workers = stack.enter_context(ThreadPoolExecutor(count))

        def one(sizes: Mapping[str, int]) -> Measurement | Refusal:
            call = free.get()
            try:
                with stage(f"{family.source} at {', '.join(f'{name}={size}' for name, size in sizes.items())}"):
                    if once:
                        with other_process() as alone:
                            return alone(measured, family, sizes)
                    return call(measured, family, sizes)
            except ProcessEnded as how:
                return Refusal(f"its process {how}")
            finally:
                free.put(call)

        def measure(some: Sequence[Mapping[str, int]]) -> list[Measurement | Refusal]:
            return list(workers.map(one, some))

        yield measure


def known_sizes(family: Family) -> dict[str, int]:
    """See `lab.laws.family.sizes_of`; in another process, since a builder may do anything."""
    with other_process() as call:
        return call(sizes_of, family)
