"""Processes of a training that may be killed at any time: they restore the newest checkpoint, go on, and say what they
do.

Processes are forked from one that has imported JAX and has not started it, so that a life costs what its own work does.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from lab.meshes.axes import Axes
from lab.meshes.backends import skip_code_optimization
from lab.resilience.checkpoints import DamagedCheckpoint, checkpoints, restore_newest, save
from lab.resilience.training import SMALL, ResumableTraining

UNSAVED = OSError, ValueError
"""What Orbax and TensorStore raise where they cannot write."""
CLOCK_S = 60.0
"""A life that says nothing for so long hangs."""


def decoder(mesh: Mesh) -> ResumableTraining:
    """A small one, whose steps take milliseconds."""
    return ResumableTraining(SMALL, mesh)


@dataclass(frozen=True)
class Work:
    """A training and where it runs.

    Attributes:
      folder: of its checkpoints.
      axes: of the mesh over the devices of all processes, as text.
      every: steps between two saves.
      cache: where what was compiled is kept for the next start.
      make: what is trained on a mesh: `start`, `like` and `steps` as of a `ResumableTraining`.
      heartbeat_s: without a sign for so long a process is taken for dead by the others.
    """

    folder: Path
    axes: str = "fsdp=2"
    processes: int = 1
    steps: int = 40
    every: int = 2
    heartbeat_s: int = 10
    cache: Path | None = None
    make: Callable[[Mesh], Any] = decoder


class Event(NamedTuple):
    """What a process says.

    Attributes:
      what: "restored" (the step), "step" (its number and loss), "saving", "unsaved" (what stopped it), "damaged" or
        "done".
      at: seconds of the machine's monotonic clock.
    """

    what: str
    step: int
    said: Any
    at: float


def train(work: Work, rank: int, port: int, events: Connection, prepare: Callable[[], None] | None = None) -> None:
    """Runs one process from the newest checkpoint to the last step."""

    def say(what: str, step: int = -1, said: Any = None) -> None:
        events.send(Event(what, step, said, time.monotonic()))

    axes = Axes.parse(work.axes)
    _start_jax(work, axes.size // work.processes, rank, port)
    training = work.make(Mesh(np.array(jax.devices()).reshape(axes.sizes), axes.names))
    if prepare:
        prepare()
    try:
        snapshot = restore_newest(work.folder, training.like)
    except DamagedCheckpoint as damaged:
        say("damaged", said=str(damaged))
        return
    say("restored", snapshot.step if snapshot else 0)
    try:
        with checkpoints(work.folder) as manager:
            begun = snapshot or training.start()
            for after, loss in training.steps(begun) if begun.step < work.steps else ():
                say("step", after.step, loss)
                if after.step % work.every == 0:
                    say("saving", after.step)
                    try:
                        save(manager, after)
                    except UNSAVED as refused:
                        say("unsaved", after.step, str(refused))
                if after.step >= work.steps:
                    break
    except UNSAVED as refused:  # The last save, which is waited for here.
        say("unsaved", after.step, str(refused))
    say("done")


def _start_jax(work: Work, devices: int, rank: int, port: int) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    skip_code_optimization()
    jax.config.update("jax_platforms", "cpu")
    if work.cache:
        jax.config.update("jax_compilation_cache_dir", str(work.cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if work.processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            f"127.0.0.1:{port}", work.processes, rank, heartbeat_timeout_seconds=work.heartbeat_s
        )


@dataclass(frozen=True)
class Started:
    """A process that runs, and the end of its pipe."""

    process: BaseProcess
    events: Connection


def start(work: Work, prepare: Callable[[], None] | None = None) -> tuple[Started, ...]:
    """Starts all processes of a training.

    Args:
      prepare: called in each of them before anything is restored; to be found by its name.
    """
    context = get_context("forkserver")
    # JAX would import its plugins and what lowers a program in each process.
    late = [*(each.value for each in entry_points(group="jax_plugins")), "jaxlib.mlir.dialects.mhlo"]
    context.set_forkserver_preload([__name__, work.make.__module__, *late])
    port, started = free_port(), list[Started]()
    for rank in range(work.processes):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=train, args=(work, rank, port, there, prepare), daemon=True)
        process.start()
        there.close()
        started.append(Started(process, here))
    return tuple(started)


def listen(one: Started, until: Callable[[Event], bool], clock_s: float = CLOCK_S) -> tuple[list[Event], bool]:
    """What a process says until that is enough, it ends, or its time is over; and whether the time was over."""
    heard, limit = list[Event](), time.monotonic() + clock_s
    while one.events.poll(max(0.0, limit - time.monotonic())):
        try:
            heard.append(one.events.recv())
        except EOFError:
            return heard, False
        if until(heard[-1]):
            return heard, False
    return heard, True


def kill(started: Iterable[Started]) -> None:
    """SIGKILL to each, which none can put off, and waits until they are gone."""
    for one in started:
        one.process.kill()
    for one in started:
        one.process.join()


def never(event: Event) -> bool:
    return False


def free_port() -> int:
    """Of the loopback; whoever asks must use it soon."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
