"""What the times belong to: the card, its driver, the versions."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

import jax

from lab.meshes.hardware import Chip, known_chip


@dataclass(frozen=True)
class Machine:
    """One device, and the software under it.

    Attributes:
      card: the device as its runtime names it.
      platform: "cpu", "gpu" or "tpu".
      chip: its key in the table of hardware, None where that lacks it.
      driver: of GPUs, None where no tool tells.
      nccl: its version, None where this process has not loaded it.
      runtime: what the backend of JAX says of itself.
      jax: its version.
      flags: of XLA, as the environment has them.
      environment: what else in it NCCL reads.
    """

    card: str
    platform: str
    chip: str | None
    driver: str | None
    nccl: str | None
    runtime: str
    jax: str
    flags: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


def machine(device: jax.Device) -> Machine:
    chip = known_chip(device.device_kind)
    driver = _driver() if device.platform == "gpu" else None
    runtime = " ".join(device.client.platform_version.split())
    versions = driver, _nccl(), runtime, jax.__version__
    read = {name: value for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")}
    return Machine(
        device.device_kind,
        device.platform,
        chip.key if chip else None,
        *versions,
        os.environ.get("XLA_FLAGS", ""),
        read,
    )


def ahead_of_time(known: Chip) -> Machine:
    """A machine that is not there."""
    return Machine(
        known.name, known.platform, known.key, None, None, "compiled ahead of time, not run", jax.__version__
    )


def _nccl() -> str | None:
    """As the library itself says, which must have been loaded already: JAX does not tell."""
    found = ctypes.c_int()
    try:
        ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD).ncclGetVersion(ctypes.byref(found))
    except OSError:
        return None
    return nccl_version(found.value)


def nccl_version(code: int) -> str:
    """22809 to 2.28.9."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


def _driver() -> str | None:
    if not shutil.which("nvidia-smi"):
        return None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True)
    return answer.stdout.partition("\n")[0].strip() or None
