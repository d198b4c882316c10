"""Calls in several processes at a time. Imports no JAX."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from typing import Protocol, TypeVar

from lab.compile.other_process import Call, Python, other_process

S = TypeVar("S")
T = TypeVar("T")
MOST_PROCESSES = 4


class Each(Protocol):
    """What a function of a process and of one of some values gives for each of them, in their order."""

    def __call__(self, function: Callable[[Call, S], T], some: Sequence[S]) -> list[T]: ...


@contextmanager
def several_processes(before_forks: Callable[[], None] | None = None, python: Python | None = None) -> Iterator[Each]:
    """As many processes as there are processors, four at most; each starts when it is first called.

    Args:
      before_forks, python: see `other_process`.
    """
    count = max(1, min(MOST_PROCESSES, os.cpu_count() or 1))
    free: SimpleQueue[Call] = SimpleQueue()
    with ExitStack() as stack:
        calls = [stack.enter_context(other_process(python=python, before_forks=before_forks)) for _ in range(count)]
        workers = stack.enter_context(ThreadPoolExecutor(count))
        for call in calls:
            free.put(call)

        def each(function: Callable[[Call, S], T], some: Sequence[S]) -> list[T]:
            def one(value: S) -> T:
                call = free.get()
                try:
                    return function(call, value)
                finally:
                    free.put(call)

            return list(workers.map(one, some))

        yield each
