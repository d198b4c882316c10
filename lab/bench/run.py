"""A bench from beginning to end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone

import jax
from jax.sharding import Mesh

from lab.bench.chains import Chain, chains, chosen
from lab.bench.machine import machine
from lab.bench.record import Bench
from lab.bench.timing import launch_seconds, measured
from lab.run import RUNNABLE
from meshes.axes import Axes
from meshes.errors import Unusable
from meshes.targets import Target, make_mesh, prepare

Watch = Callable[[Sequence[Chain]], Iterable[Chain]]
"""Passes chains on, and may say on a terminal which one is under way."""


def bench(
    target: Target,
    axes: Axes | None,
    primitives: Sequence[str],
    algorithms: Sequence[str],
    sizes: Sequence[int],
    command: str,
    watch: Watch = iter,
) -> Bench:
    """Times chains over all axes of a mesh, by default one axis of all devices.

    Raises:
      Unusable: devices that this process cannot run on, fewer than two of them, a mesh of another size, or an unknown name.
    """
    mesh = _mesh(target, axes)
    axes = Axes(mesh.axis_names, mesh.devices.shape)
    wanted = chosen(chains(axes), primitives, algorithms)
    date, launch_s = datetime.now(timezone.utc).isoformat(timespec="seconds"), launch_seconds(mesh)
    found = tuple(entry for chain in watch(wanted) for entry in measured(chain, mesh, sizes, launch_s))
    return Bench(command, date, machine(mesh.devices.flat[0]), axes, launch_s, found)


def _mesh(target: Target, axes: Axes | None) -> Mesh:
    if target.platform not in RUNNABLE:
        raise Unusable(f"target {target} is compiled for ahead of time and cannot run here; bench on attached devices or on cpu:N")
    prepare([target])
    axes = axes or Axes(("devices",), (target.devices or len(jax.devices()),))
    if axes.size < 2:
        raise Unusable(f"found {axes.size} device ({jax.devices()[0].device_kind}), expected two or more; try --target cpu:8")
    return make_mesh(target, axes)
