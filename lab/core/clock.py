"""Wall time."""

from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What it returns, and the seconds that it takes."""
    start = perf_counter()
    return work(), perf_counter() - start
