"""The processes of one program on this machine: started together, and ended together.

Each gets what `jax.distributed.initialize()` asks for: the coordinator, how many there are, and which one it is.
JAX reads the last two from no variables of its own, so that they stand in those of Open MPI, which it looks for first.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import IO, Any, Final, Literal

from lab.core.known import known
from lab.meshes.errors import UsageError
from lab.meshes.processes import COORDINATOR, COUNT, INDEX

SCHEMA: Final = "sharding-lab/launch/1"
GRACE_S = 5.0
"""How long processes have to end that are asked to: JAX takes SIGTERM for a notice of preemption, and one that waits in
a collective for another that has ended may wait for ever."""
SIGNALLED = 128
LOOPBACK = "127.0.0.1"
_REAPER = 'while read group; do groups="$groups -$group"; done; kill -s KILL -- $groups'
"""Kills groups of processes, a line each, as soon as nobody can name more of them: however this process ends."""


@dataclass(frozen=True)
class ProcessEnd:
    """How a process ended.

    Attributes:
      status: its exit status, or 128 and the signal that ended it.
      seconds: from its start.
      log: the file with what it printed; None of the first, which prints where the launcher does.
    """

    index: int
    status: int
    seconds: float
    log: str | None

    @property
    def how(self) -> str:
        if self.status <= SIGNALLED:
            return f"exited with status {self.status}"
        number = self.status - SIGNALLED
        return f"was ended by signal {number} ({signal.strsignal(number)})"


@dataclass(frozen=True)
class Launched:
    """What `lab launch --json` prints.

    Attributes:
      status: that of the first process that failed; 0 where none did.
      failed: this process, which ended all; None where all succeeded.
    """

    schema: Literal["sharding-lab/launch/1"]
    command: tuple[str, ...]
    status: int
    failed: int | None
    seconds: float
    devices: int
    processes: tuple[ProcessEnd, ...]


def environments(
    count: int, devices: int, gpus: Sequence[str], port: int, environ: Mapping[str, str]
) -> list[dict[str, str]]:
    """The variables of each process.

    Args:
      gpus: what `CUDA_VISIBLE_DEVICES` calls those of this machine, `devices` for each process; none: fake CPU devices.
    """
    address = f"{LOOPBACK}:{port}"
    shared = dict(environ) | {
        COORDINATOR: address,
        "JAX_COORDINATOR_BIND_ADDRESS": address,
        "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(devices))),
        COUNT: str(count),
        "OMPI_COMM_WORLD_SIZE": str(count),
        "OMPI_MCA_orte_hnp_uri": f"0.0;tcp://{address}",
    }
    if not gpus:
        flag = f"--xla_force_host_platform_device_count={devices}"
        flags = re.sub(r"--xla_force_host_platform_device_count=\S*", "", shared.get("XLA_FLAGS", ""))
        shared |= {"JAX_PLATFORMS": "cpu", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}
        shared["XLA_FLAGS"] = " ".join([*flags.split(), flag])
    own = [
        {INDEX: str(i), "OMPI_COMM_WORLD_RANK": str(i), "OMPI_COMM_WORLD_LOCAL_RANK": str(i)}
        | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus[i * devices : (i + 1) * devices])} if gpus else {})
        for i in range(count)
    ]
    return [shared | each for each in own]


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """GPUs as `CUDA_VISIBLE_DEVICES` names them; none where JAX is to use CPUs."""
    if environ.get("JAX_PLATFORMS", "").startswith("cpu"):
        return []
    if (visible := environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in visible.split(",") if name not in ("", "-1", "NoDevFiles")]
    return [str(number) for number, _ in enumerate(Path("/proc/driver/nvidia/gpus").glob("*"))]


def devices_each(count: int, devices: int | None, gpus: Sequence[str]) -> int:
    """How many devices a process has: by default an equal share of the GPUs, or one fake CPU device.

    Raises:
      UsageError: there are fewer GPUs.
    """
    each = devices or (len(gpus) // count if gpus else 1)
    if gpus and not 0 < each * count <= len(gpus):
        raise UsageError(
            f"{count} processes of {max(each, 1)} GPUs: found {len(gpus)} GPUs, expected {max(each, 1) * count}; start "
            "fewer, or set JAX_PLATFORMS=cpu for fake CPU devices"
        )
    return each


def launch(
    command: Sequence[str], count: int, devices: int | None, logs: Path, output: IO[Any] | None = None
) -> Launched:
    """Runs a command in processes of one program until all have ended, or one has failed, which ends the others: they
    are asked to by SIGTERM, by SIGINT where this process is interrupted, and killed `GRACE_S` later, with all that they
    have started.

    The first one prints where this process does, or into `output`, the others into `logs`, `process-1.log` and so on.

    Raises:
      UsageError: there is no such command, or there are too few GPUs.
    """
    if shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]}: no such command; expected a program, as in lab launch -n 2 -- python train.py")
    gpus = visible_gpus(os.environ)
    each = devices_each(count, devices, gpus)
    variables = environments(count, each, gpus, _free_port(), os.environ)
    files = [logs / f"process-{index}.log" if index else None for index in range(count)]
    ended: Queue[ProcessEnd] = Queue()
    ends: list[ProcessEnd] = []
    running: list[subprocess.Popen[bytes]] = []
    reaper = subprocess.Popen(
        ["sh", "-c", _REAPER], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    request, began = signal.SIGTERM, time.monotonic()
    try:
        for index, (own, file) in enumerate(zip(variables, files, strict=True)):
            running.append(_started(command, own, file, output))
            os.write(known(reaper.stdin).fileno(), b"%d\n" % running[-1].pid)
            Thread(target=_await, args=(index, running[-1], file, ended), daemon=True).start()
        while len(ends) < count and not (ends and ends[-1].status):
            ends.append(ended.get())
    except KeyboardInterrupt:
        request = signal.SIGINT
        raise
    finally:
        _ask(running, request)
        known(reaper.stdin).close()
        for process in (reaper, *running):
            process.wait()
    failed = ends[-1] if ends[-1].status else None
    ends += [ended.get() for _ in range(count - len(ends))]
    return Launched(
        SCHEMA,
        tuple(command),
        failed.status if failed else 0,
        failed.index if failed else None,
        time.monotonic() - began,
        each,
        tuple(sorted(ends, key=lambda end: end.index)),
    )


def _started(
    command: Sequence[str], environment: Mapping[str, str], log: Path | None, output: IO[Any] | None
) -> subprocess.Popen[bytes]:
    with log.open("wb") if log else nullcontext(output) as printed:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT if log else None,
            start_new_session=True,
        )


def _await(index: int, process: subprocess.Popen[bytes], log: Path | None, ended: Queue[ProcessEnd]) -> None:
    """A thread each, so that what failed first is known: the others are often aborted in the same moment."""
    began = time.monotonic()
    status = process.wait()
    seconds = time.monotonic() - began
    ended.put(ProcessEnd(index, SIGNALLED - status if status < 0 else status, seconds, str(log) if log else None))


def _ask(running: Sequence[subprocess.Popen[bytes]], request: signal.Signals) -> None:
    """Asks the processes to end, and gives them time to."""
    until = time.monotonic() + GRACE_S
    for process in running:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, request)
    for process in running:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
