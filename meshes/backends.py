"""Gets JAX ready for targets, and makes their meshes. JAX is imported when these functions are called, not before."""

from __future__ import annotations

import os
from collections.abc import Collection
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from lab.meshes import processes
from lab.meshes.axes import Axes
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target

if TYPE_CHECKING:
    from jax import Device
    from jax.sharding import Mesh


def prepare(targets: Collection[Target]) -> None:
    """Gets JAX ready to compile for these targets; call it before anything else uses JAX.

    Unless `attached` is among them, JAX starts on CPUs only and looks for no accelerator. In a program of several
    processes `attached` are the devices of all of them. Variables that are set already stay.

    Raises:
      UsageError: JAX has started with fewer fake CPU devices than a target asks for, or does not reach the other
        processes.
    """
    attached = any(target.platform == Platform.ATTACHED for target in targets)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", _ERRORS if attached else _FATAL)
    set_environment(uses_tpus=attached and _has_tpus())
    if attached:
        processes.join()
    from lab.meshes import devices

    devices.start(targets)


def set_environment(uses_tpus: bool | None = None) -> None:
    """Lets plugins that only compile start with JAX, and be quiet; call it before JAX starts. Variables that are set
    already stay.

    Args:
      uses_tpus: JAX is to find the TPUs of this machine; by default where there are any.
    """
    if uses_tpus is None:
        uses_tpus = _has_tpus()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", _ERRORS)
    for name, value in (_QUIET if uses_tpus else _QUIET | _NO_ACCELERATOR).items():
        os.environ.setdefault(name, value)


def skip_code_optimization() -> None:
    """Has XLA make unoptimized machine code for CPUs in this process; call it before JAX starts.

    Where nothing is timed any machine code does, and XLA's passes, which decide what is communicated and held, stay as
    they are: a decoder's step compiles in a quarter of the time.
    """
    flags = ["--xla_backend_optimization_level=0"]
    if version("jaxlib").startswith("0.10."):  # Later releases end the process at a flag that they do not know.
        flags.append("--xla_cpu_use_fusion_emitters=false")
    given = os.environ.get("XLA_FLAGS", "").split()
    os.environ["XLA_FLAGS"] = " ".join(dict.fromkeys([*flags, *given]))


def _has_tpus() -> bool:
    return any(Path("/dev").glob("accel*")) or any(Path("/dev/vfio").glob("*"))


_ERRORS, _FATAL = "2", "3"
"""Levels of what XLA logs: from errors on, or as it ends a process alone. What it logs as errors while it only compiles
are none: that a compilation takes minutes, and that arguments are more than the chip has. A program that it refuses is
an exception."""
_QUIET = {
    "TPU_MIN_LOG_LEVEL": "2",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # A plugin that only compiles needs no cuDNN.
}
# The last two keep libtpu from warning that it cannot tell on which TPU it runs; it compiles for the topology asked
# for.
_NO_ACCELERATOR = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5e-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def make_mesh(target: Target, axes: Axes, chip_text: str | None = None) -> Mesh:
    """The mesh of JAX for a target, all axes of type Auto.

    Consecutive GPUs share a host. TPUs stand as `jax.experimental.mesh_utils` puts them, slices on the first axis that
    they divide. `chip_text` describes a GPU to XLA, in place of the text that `lab.meshes.chip_texts` has.

    Raises:
      UsageError: axes and target differ in size, a plugin is missing, or the plugin refuses the topology.
    """
    from lab.meshes import devices

    return devices.mesh(target, axes, chip_text)


def target_devices(target: Target) -> tuple[Device, ...]:
    """The devices of JAX for a target, in the order of `jax.devices()`.

    Raises:
      UsageError: a plugin is missing, or refuses the topology.
    """
    from lab.meshes import devices

    return devices.of(target)
