"""A bench from beginning to end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import jax
from jax.sharding import Mesh

from lab.harness.run import RUNNABLE
from lab.measure.bench.chains import Chain, chains, chosen
from lab.measure.bench.estimate import assumed, estimated, rates
from lab.measure.bench.machine import ahead_of_time, machine
from lab.measure.bench.record import Bench
from lab.measure.bench.timing import launch_seconds, measured
from lab.measure.step_time import TourRates
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target

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
    over: Sequence[str] = (),
    links: Path | None = None,
) -> Bench:
    """Times chains on devices that are there, and estimates them for GPUs that are not.

    Args:
      axes: the mesh, by default one axis of all devices.
      over: axes that every collective spans, by default all; groups along the others work side by side.
      links: of an estimate: see `lab.measure.bench.estimate.rates`.
    Raises:
      UsageError: devices that can neither be run on nor estimated for, fewer than two to span, a mesh of another size,
        or a name that is unknown or has no place on these devices.
    """
    at = _rates(target, links)
    mesh = _mesh(target, axes)
    axes = Axes(mesh.axis_names, mesh.devices.shape)
    spanned = _spanned(axes, over)
    wanted = chosen(chains(spanned), primitives, algorithms)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    if at:
        found = tuple(entry for chain in watch(wanted) for entry in estimated(chain, mesh, spanned, sizes, at))
        return Bench(command, date, ahead_of_time(target.hardware), axes, spanned, 0.0, found, assumed(links))
    launch_s = launch_seconds(mesh)
    found = tuple(entry for chain in watch(wanted) for entry in measured(chain, mesh, spanned, sizes))
    return Bench(command, date, machine(mesh.devices.flat[0]), axes, spanned, launch_s, found)


def _rates(target: Target, links: Path | None) -> TourRates | None:
    """None where devices are there, and tell for themselves."""
    if target.platform not in RUNNABLE:
        return rates(target, links)
    if links:
        raise UsageError(
            f"links {links} are for estimates, but target {target} is measured; drop them, or use a target such as "
            "gpu:h200:1x8"
        )
    return None


def _spanned(axes: Axes, over: Sequence[str]) -> Axes:
    names = axes.ordered(over or axes.names)
    spanned = Axes.of({name: axes[name] for name in names})
    if spanned.size < 2:
        raise UsageError(
            f"collectives over {spanned} span {spanned.size} device, expected two or more; try --target cpu:8"
        )
    return spanned


def _mesh(target: Target, axes: Axes | None) -> Mesh:
    prepare([target])
    return make_mesh(target, axes or Axes(("devices",), (target.devices or len(jax.devices()),)))
