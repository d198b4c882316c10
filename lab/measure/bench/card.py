"""The rates of attached cards, measured in about three minutes, in the form of those that ship."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import jax

from lab.measure.bench.kernel_programs import families
from lab.measure.bench.kernel_times import Program, observed
from lab.measure.bench.machine import machine
from lab.measure.bench.wires import wires
from lab.measure.rates.fitted import Timed, fitted
from lab.measure.rates.table import Basis, ChipRates, LinkRate, Source
from lab.measure.rates.xla_tables import timed_link
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh, prepare, target_devices
from lab.meshes.errors import UsageError
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target

CARD = "card"
"""The name of the source of all rates."""
Family = tuple[str, list[Program]]
Watch = Callable[[Sequence[Family]], Iterable[Family]]
"""Passes families on, and may say on a terminal which one is under way."""


@dataclass(frozen=True)
class CardRates:
    """Attributes: left_out: programs without a time, and why."""

    rates: ChipRates
    left_out: tuple[str, ...]


def card_rates(target: Target, command: str, watch: Watch = iter) -> CardRates:
    """Of the first device of a target, and of the links between all of them.

    Raises:
      UsageError: it is no GPU of the table of hardware.
    """
    prepare([target])
    device = target_devices(target)[0]
    told = machine(device)
    if told.platform != Platform.GPU or told.chip is None:
        raise UsageError(
            f"rates of {told.card}: found a device of platform {told.platform}, expected an attached GPU of lab targets"
        )
    text = f"{command}: {told.card}, driver {told.driver}, jax {told.jax}"
    method = "chains of dependent calls in one program, run one after the other without waiting"
    source = Source(Basis.MEASURED, text, datetime.now(UTC).date().isoformat(), method)
    found = measured(told.chip, device, device.core_count, source, watch(list(families())))
    return replace(found, rates=replace(found.rates, links=_links(target)))


def _links(target: Target) -> tuple[LinkRate, ...]:
    devices = target_devices(target)
    if len(devices) < 2:
        return ()
    curves = wires(make_mesh(target, Axes.of({"devices": len(devices)})))
    return tuple(timed_link(kind, len(devices), curve.points, CARD) for kind, curve in curves.items())


def measured(chip: str, device: jax.Device, units: int, source: Source, programs: Iterable[Family]) -> CardRates:
    """Args: units: multiprocessors; programs: those of `memory` among them."""
    seen = [one for _, family in programs for one in observed(family, device)]
    timed = [Timed(one.name, one.seconds, one.steps) for one in seen if one.seconds > 0]
    left_out = tuple(f"{one.name}: {one.why_not or 'took no time'}" for one in seen if one.seconds <= 0)
    return CardRates(fitted(chip, timed, units, (CARD, source)), left_out)
