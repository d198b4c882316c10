"""From a target to the devices and the mesh of JAX. Importing this module imports JAX; `lab.meshes.targets` does so
late."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from math import prod

import jax
import numpy as np
from jax.experimental import mesh_utils, topologies
from jax.sharding import AxisType, Mesh

from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.chip_texts import chip_text
from lab.meshes.errors import UsageError, one_line
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target, check_size, slice_axis

_TPU_HOST = 4
"""Chips of a host that the plugin takes to be full, unless its options name fewer."""


def start(targets: Collection[Target]) -> None:
    """See `lab.meshes.backends.prepare`."""
    if all(target.platform != Platform.ATTACHED for target in targets):
        jax.config.update("jax_platforms", "cpu")
    wanted = max((prod(target.shape) for target in targets if target.platform == Platform.CPU), default=0)
    if wanted > max(0, jax.config.values["jax_num_cpu_devices"]):
        _fake_cpu_devices(wanted)


def _fake_cpu_devices(wanted: int) -> None:
    try:
        jax.config.update("jax_num_cpu_devices", wanted)
    except RuntimeError:  # JAX has started: what it has may do.
        _cpu_devices(wanted)


def _cpu_devices(wanted: int) -> list[jax.Device]:
    devices = jax.devices("cpu")
    if len(devices) < wanted:
        raise UsageError(
            f"target cpu:{wanted} needs {wanted} fake CPU devices and JAX has started with {len(devices)}; "
            f"call lab.meshes.backends.prepare before JAX starts, or set JAX_NUM_CPU_DEVICES={wanted}"
        )
    return devices[:wanted]


def mesh(target: Target, axes: Axes, chip_text: str | None = None) -> Mesh:
    """See `lab.meshes.backends.make_mesh`."""
    check_size(target, axes)
    devices = of(target, chip_text)
    if len(devices) != axes.size:
        raise UsageError(f"mesh {axes} has {axes.size} devices and target {target} has {len(devices)}; make them equal")
    return Mesh(arranged(devices, axes), axes.names, axis_types=(AxisType.Auto,) * len(axes.names))


def typed(mesh: Mesh, explicit: Collection[str] | None = None) -> Mesh:
    """The same mesh, on which an array's type says how it is split along these axes, or along all (JAX's explicit
    sharding)."""
    named = mesh.axis_names if explicit is None else explicit
    types = (AxisType.Explicit if name in named else AxisType.Auto for name in mesh.axis_names)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=tuple(types))


def arranged(devices: Sequence[jax.Device], axes: Axes) -> np.ndarray:
    """The devices in the mesh's shape: row-major, but on TPUs as the wires run."""
    if devices[0].platform != Platform.TPU:
        return np.array(devices).reshape(axes.sizes)
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    if slices == 1:
        return mesh_utils.create_device_mesh(axes.sizes, devices, allow_split_physical_axes=True)
    across = [slices if name == slice_axis(slices, axes) else 1 for name in axes.names]
    inside = [size // count for size, count in zip(axes.sizes, across, strict=True)]
    return mesh_utils.create_hybrid_device_mesh(inside, across, devices, allow_split_physical_axes=True)


@cache
def of(target: Target, text: str | None = None) -> tuple[jax.Device, ...]:
    """The target's devices. Kept, so that two meshes of one target are made of the same devices."""
    if target.platform == Platform.ATTACHED:
        return tuple(jax.devices())
    if target.platform == Platform.CPU:
        return tuple(_cpu_devices(prod(target.shape)))
    if not plugins.installed(target.platform):
        command = plugins.install_command(target.platform)
        raise UsageError(
            f"target {target}: the compile-only plugin for {target.platform.upper()}s is not installed; run: {command}"
        )
    return tuple(_ahead_of_time(target, text))


def _ahead_of_time(target: Target, text: str | None) -> list[jax.Device]:
    jax.devices()  # The CUDA plugin registers itself when JAX starts.
    try:
        return (_gpu_cluster(target, text) if target.platform == Platform.GPU else _tpu_slices(target)).devices
    except NotImplementedError as refusal:
        raise UsageError(
            f"target {target}: JAX has started without this plugin; call lab.meshes.backends.prepare, or %load_ext lab "
            "in a notebook, before it starts"
        ) from refusal
    except RuntimeError as refusal:
        raise UsageError(
            f"target {target}: the plugin refuses it: {one_line(refusal).rstrip('.')}; choose another topology"
        ) from refusal


def _gpu_cluster(target: Target, text: str | None) -> topologies.TopologyDescription:
    topology = f"1x{target.hosts}x{target.per_host}"
    return topologies.get_topology_desc(
        "any", platform="cuda", topology=topology, target_config=text or chip_text(target.hardware.key)
    )


def _tpu_slices(target: Target) -> topologies.TopologyDescription:
    described = target.hardware
    name = f"{described.plugin_name}:{'x'.join(map(str, target.shape))}"
    options: dict[str, object] = dict(described.plugin_options)
    if max(target.shape) <= 2 and prod(target.shape) < _TPU_HOST:
        options["chips_per_host_bounds"] = (*target.shape, 1)[:3]
    return topologies.get_topology_desc(name, platform="tpu", num_slices=target.slices, **options)
