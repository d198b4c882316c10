"""Machines to buy or rent: how many chips a host and a domain of fast links have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lab.meshes import hardware
from lab.meshes.hardware import Chip, Figure
from lab.zoo import table


@dataclass(frozen=True)
class Cluster:
    """One domain of fast links, and the hosts that it is made of; larger clusters join domains by `chip.slow`.

    Attributes:
      key, name, source: in the zoo, for people, and where its numbers come from.
      chip: with the figures of this machine.
      host_chips: of one host.
      domain_chips: that reach each other over `chip.fast`.
    """

    key: str
    name: str
    chip: Chip
    host_chips: int
    domain_chips: int
    source: str

    @property
    def domain_hosts(self) -> int:
        """Hosts of one domain."""
        return self.domain_chips // self.host_chips


def cluster_names() -> tuple[str, ...]:
    """In the table's order."""
    return tuple(table.read("clusters.toml")["clusters"])


def cluster(name: str) -> Cluster:
    """One cluster of the table, such as `dgx-h100`.

    Raises:
      UsageError: the table lacks it.
    """
    everything = table.read("clusters.toml")
    row = everything["clusters"][table.known("cluster", name, cluster_names())]
    source = everything["sources"][row["source"]]
    chip = _instead(hardware.chip(row["chip"]), row.get("instead", {}), source)
    return Cluster(name, row["name"], chip, row["host_chips"], row["domain_chips"], source)


def _instead(chip: Chip, figures: Mapping[str, Any], source: str) -> Chip:
    """The chip with some of its figures replaced."""
    rates = {dtype: Figure(value, source) for dtype, value in figures.get("flops_per_s", {}).items()}
    others: dict[str, Any] = {name: Figure(value, source) for name, value in figures.items() if name != "flops_per_s"}
    return replace(chip, flops_per_s={**chip.flops_per_s, **rates}, **others)
