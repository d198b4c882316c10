"""What a GPU did with the time of a step, as the profiler saw it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax

GPU, STREAM, COLLECTIVE = "/device:GPU:", "Stream", "ncclDevKernel"


class Event(NamedTuple):
    """A kernel on a stream, in seconds.

    Attributes:
      instruction: that launched it, where the profiler tells; of a CUDA graph its call.
    """

    name: str
    start: float
    end: float
    instruction: str = ""


class Spent(NamedTuple):
    """Seconds of a step on one device: with kernels at work, with a collective's kernel on some stream, without any but
    collectives, and of these those with a collective: in the others no kernel ran."""

    kernels: float
    communication: float
    waiting: float
    exposed: float


def profiled(some_steps: Callable[[], Any], count: int) -> Spent | None:
    """Of one of `count` steps, on the GPU that waits least: others wait for it, too, which no communication costs. None
    where the profiler saw no GPU. Profiling costs time itself, so the sum is more than a step takes without."""
    by_gpu = traced(some_steps)
    return min((spent(events, count) for events in by_gpu.values()), key=lambda each: each.waiting, default=None)


def traced(run: Callable[[], Any]) -> dict[str, list[Event]]:
    """What each GPU ran, in its order; nothing of devices that the profiler does not see."""
    with TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run()
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        return _events(jax.profiler.ProfileData.from_file(str(files[0]))) if files else {}


def _events(profile: jax.profiler.ProfileData) -> dict[str, list[Event]]:
    """Of each GPU."""
    found: dict[str, list[Event]] = {}
    for plane in profile.planes:
        for line in plane.lines if plane.name.startswith(GPU) else ():
            if line.name.startswith(STREAM):
                found.setdefault(plane.name, []).extend(map(_event, line.events))
    return {gpu: sorted(events, key=lambda event: event.start) for gpu, events in found.items()}


def _event(e: Any) -> Event:
    return Event(e.name, e.start_ns / 1e9, (e.start_ns + e.duration_ns) / 1e9, str(dict(e.stats).get("hlo_op", "")))


def spent(events: Iterable[Event], count: int) -> Spent:
    events = list(events)
    kernels = _covered(event for event in events if not event.name.startswith(COLLECTIVE))
    communication = _covered(event for event in events if event.name.startswith(COLLECTIVE))
    whole = max(event.end for event in events) - min(event.start for event in events)
    exposed = _covered(events) - kernels
    return Spent(kernels / count, communication / count, (whole - kernels) / count, exposed / count)


def _covered(events: Iterable[Event]) -> float:
    """Seconds in which at least one of them is under way."""
    total, until = 0.0, float("-inf")
    for event in sorted(events, key=lambda event: event.start):
        total += max(0.0, event.end - max(event.start, until))
        until = max(until, event.end)
    return total
