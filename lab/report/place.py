"""Where a ledger's program runs, as far as the ledger tells: mesh, chip, hosts or slices, and what their links
carry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.core.ledger import Ledger, Totals
from lab.core.room import Room
from lab.meshes.axes import Axes
from lab.meshes.hardware import Chip, Link
from lab.meshes.targets import Target, domains, link_names, parse_target


@dataclass(frozen=True)
class Place:
    """What is None is not known.

    Attributes:
      domains: [devices], the host of each position, on TPUs the slice.
    """

    axes: Axes | None
    target: Target | None
    domains: np.ndarray | None

    @classmethod
    def of(cls, ledger: Ledger) -> Place:
        axes = Axes.of(dict(ledger.mesh)) if ledger.mesh else None
        target = parse_target(ledger.target) if ledger.target else None
        if axes is None or target is None or target.platform not in ("gpu", "tpu"):
            return cls(axes, target, None)
        return cls(axes, target, domains(target, axes))

    @property
    def chip(self) -> Chip | None:
        return self.target.hardware if self.target and self.target.chip else None

    @property
    def domain(self) -> str:
        return "slice" if self.target and self.target.platform == "tpu" else "host"

    def link(self, name: str | None) -> Link | None:
        """Of a transfer's link name."""
        if not (self.chip and self.target and name):
            return None
        return self.chip.fast if name == link_names(self.target)[0] else self.chip.slow

    def seconds(self, name: str | None, sent: Totals) -> float | None:
        """That one device's wire bytes take at least: all of its share of the link at full rate."""
        link, chip = self.link(name), self.chip
        return float(sent.wire_bytes) * chip.devices_per_chip / link.value if link and chip else None

    @property
    def room(self) -> Room | None:
        """The memory of one device."""
        return Room.of(self.target)

    def link_along(self, name: str) -> str | None:
        """The name of the slowest link among the neighbours of one axis."""
        axes, target = self.axes, self.target
        if self.domains is None or axes is None or target is None or axes[name] == 1:
            return None
        groups = self.domains[axes.groups((name,))]
        return link_names(target)[int((groups.min(1) != groups.max(1)).any())]
