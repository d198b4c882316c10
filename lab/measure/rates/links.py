"""What a collective takes on the links of a cluster or a slice: where it was timed, and else by the steps and the bytes
of the algorithms that libraries choose among.

Sources: rings and trees (Ch. 12, Ch. 13a); the latencies of NCCL's own model; gathers and all-to-alls on tori (How to
Scale Your Model, chapter on sharding).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log, log2

import numpy as np

from lab.core.ledger import Kind, Transfer
from lab.hlo.groups import UnreadGroups
from lab.hlo.placement import Placement
from lab.hlo.read import Reading
from lab.hlo.ring_strategy import Rings, rings_of
from lab.measure.rates.curves import Curve
from lab.measure.rates.table import Algorithm, Basis, ChipRates, LinkRate, Priced, Way, Wire
from lab.measure.rates.torus import Line, Torus, torus_of, torus_of_coords
from lab.meshes.axes import Axes
from lab.meshes.hardware import Chip, chip
from lab.meshes.platforms import TPU_LINKS, LinkName
from lab.meshes.targets import Target

_AS = {
    Kind.RAGGED_ALL_TO_ALL: Kind.ALL_TO_ALL,
    Kind.SEND_RECV: Kind.COLLECTIVE_PERMUTE,
    Kind.COLLECTIVE_BROADCAST: Kind.COLLECTIVE_PERMUTE,
}
"""Kinds that move their bytes as another one does."""
_REDUCING = {Kind.ALL_REDUCE: 2, Kind.ALL_GATHER: 1, Kind.REDUCE_SCATTER: 1}
"""How often each goes round a ring."""


@dataclass(frozen=True)
class Reach:
    """How the largest group of a transfer lies.

    Attributes:
      devices: in it.
      domains: hosts or slices that it spans.
      in_domain: its members in the one with the fewest.
      lines: of a torus, what it spans.
      on_chip: members that share a chip.
      hops: of a permute on a torus, along each direction, the most.
      rings: of a collective on a torus, where its text tells.
    """

    devices: int
    domains: int = 1
    in_domain: int = 1
    lines: tuple[Line, ...] = ()
    on_chip: int = 1
    hops: tuple[int, ...] = ()
    rings: Rings | None = None


@dataclass(frozen=True)
class Links:
    """The links of one target.

    Attributes:
      reaches: by instruction; of one that is not there nothing is known but the size of its groups.
      devices_per_chip: that share its links.
    """

    rates: ChipRates
    reaches: Mapping[str, Reach]
    devices_per_chip: int = 1

    @classmethod
    def of(cls, rates: ChipRates, reading: Reading, target: Target | None = None) -> Links:
        """Those of a program that was read with its mesh and target."""
        return cls(rates, cls.reaches_of(rates.chip, reading, target), chip(rates.chip).devices_per_chip)

    @staticmethod
    def reaches_of(of: str, reading: Reading, target: Target | None = None) -> dict[str, Reach]:
        """How the largest group of each transfer lies, by its instruction."""
        placement = reading.reader.placement
        known = placement.devices
        a_chip = chip(of) if known is not None and known.link_names == TPU_LINKS else None
        torus = _torus(placement, target, a_chip) if a_chip else None
        reaches: dict[str, Reach] = {}
        for transfer, visit in zip(reading.ledger.transfers, reading.visits, strict=True):
            if transfer.instruction is None or transfer.instruction in reaches:
                continue
            try:
                groups, are_pairs = reading.reader.members(visit.instruction)
            except UnreadGroups:
                continue
            rows = [row for row in groups.members if len(set(row)) > 1]
            if rows:
                reach = _reach(rows, are_pairs, transfer, placement, torus)
                inside_out = (visit.instruction, *(site.instruction for site in reversed(visit.callers)))
                reaches[transfer.instruction] = replace(reach, rings=rings_of(inside_out) if torus else None)
        return reaches

    def priced(self, transfer: Transfer) -> Priced:
        """Nothing that no rate covers has a time."""
        name = f"{transfer.kind} by {transfer.link or 'an unknown link'}"
        kind = _AS.get(transfer.kind, transfer.kind) if transfer.network_kind is None else transfer.network_kind
        if transfer.wire_bytes is None or transfer.link is None or transfer.group_size is None:
            return Priced(0.0, Basis.NOTHING, name)
        reach = self.reaches.get(transfer.instruction or "") or Reach(transfer.group_size)
        size = float(transfer.wire_bytes)
        timed = self._timed(transfer.link, kind)
        if timed:
            rates = _around(timed, reach.devices)
            source, spread = rates[0].source, max(rate.spread for rate in rates)
            seconds = _between(rates, reach.devices, size)
            return Priced(seconds, self.rates.sources[source].basis, name, spread)
        wire = next((one for one in self.rates.wires if one.link == transfer.link), None)
        if wire is None:
            return Priced(0.0, Basis.NOTHING, name)
        if wire.link == LinkName.ICI:
            seconds = _on_torus(wire, kind, size, reach, self.devices_per_chip)
        else:
            inside = self._inside_per_s(kind, reach.in_domain) if wire.link != LinkName.HOST else wire.bytes_per_s
            seconds = min(_by(way, wire, kind, size, reach, inside) for way in _usable(wire, kind, reach))
        return Priced(seconds, self.rates.sources[wire.source].basis, name, wire.spread)

    def _timed(self, link: LinkName, kind: Kind) -> list[LinkRate]:
        found = [one for one in self.rates.links if (one.link, one.kind) == (link, kind)]
        return sorted(found, key=lambda one: one.devices)

    def _inside_per_s(self, kind: Kind, devices: int) -> float:
        """Of large amounts inside a host or slice."""
        timed = self._timed(LinkName.HOST, kind)
        if timed and devices > 1:
            amount = timed[0].points[-1][0]
            return amount / _between(_around(timed, devices), devices, amount)
        wire = next((one for one in self.rates.wires if one.link == LinkName.HOST), None)
        return wire.bytes_per_s if wire else float("inf")


def _torus(placement: Placement, target: Target | None, a_chip: Chip) -> Torus | None:
    if placement.devices is not None and placement.devices.coords is not None:
        return torus_of_coords(placement.devices.coords, a_chip.pod)
    if target is None or target.devices is None:
        return None
    return torus_of(target, placement.axes or Axes(("devices",), (target.devices,)))


def _reach(
    rows: Sequence[Sequence[int]], are_pairs: bool, transfer: Transfer, placement: Placement, torus: Torus | None
) -> Reach:
    size = transfer.group_size or max(map(len, rows))
    where = placement.devices.domains if placement.devices else (0,) * (1 + max(map(max, rows)))
    if max(map(max, rows)) >= len(where):
        return Reach(size)
    largest = max(rows, key=lambda row: (len({where[at] for at in row}), len(row)))
    domains = Counter(where[at] for at in largest)
    if torus is None or max(map(max, rows)) >= len(torus.stand):
        return Reach(size, len(domains), min(domains.values()))
    if are_pairs:
        hops = np.max([torus.hops(*row[:2]) for row in rows], axis=0)
        return Reach(size, len(domains), min(domains.values()), hops=tuple(map(int, hops)))
    inside = [at for at in largest if where[at] == max(domains)]
    return Reach(size, len(domains), min(domains.values()), torus.lines(inside), torus.on_a_chip(inside))


def _around(timed: Sequence[LinkRate], devices: int) -> tuple[LinkRate, ...]:
    """The two numbers of devices that were timed next to this one, or the one."""
    below = [one for one in timed if one.devices <= devices]
    above = [one for one in timed if one.devices >= devices]
    return tuple(dict.fromkeys((*below[-1:], *above[:1])))


def _between(rates: Sequence[LinkRate], devices: int, size: float) -> float:
    """On the line through them in logarithms of devices and of seconds."""
    seconds = [Curve(one.points).seconds(size) for one in rates]
    return float(np.exp(np.interp(log(devices), [log(one.devices) for one in rates], np.log(seconds))))


def _usable(wire: Wire, kind: Kind, reach: Reach) -> list[Way]:
    return [
        way
        for way in wire.ways
        if reach.in_domain >= way.least_in_host and (way.algorithm is Algorithm.RING or kind is Kind.ALL_REDUCE)
    ]


def _by(way: Way, wire: Wire, kind: Kind, size: float, reach: Reach, inside_per_s: float) -> float:
    """A call, its steps, and the bytes of the fuller of the two links: the members of a host have a network adapter
    each, and share what leaves it.

    Args: size: wire bytes of a device.
    """
    inside, across = _steps(way, kind, reach)
    steps_s = way.base_s + inside * way.inside_s + across * way.across_s
    leaving = _leaving(way, kind, size, reach) if reach.domains > 1 else 0.0
    return steps_s + max(leaving / (wire.bytes_per_s * way.share), (size - leaving) / (inside_per_s * way.share))


def _steps(way: Way, kind: Kind, reach: Reach) -> tuple[int, int]:
    """Inside a host or slice, and between them."""
    if kind not in _REDUCING:
        return int(reach.domains == 1), int(reach.domains > 1)
    if way.algorithm is Algorithm.TREE:
        return 2 * (reach.in_domain - 1), 2 * ceil(log2(reach.domains))
    rounds = _REDUCING[kind]
    across = reach.domains - 1
    return rounds * (reach.devices - 1 - across), rounds * across


def _leaving(way: Way, kind: Kind, size: float, reach: Reach) -> float:
    """Bytes that one device sends through its own network adapter."""
    members = reach.devices
    if kind is Kind.ALL_TO_ALL:
        return size * (members - reach.in_domain) / (members - 1)
    if kind not in _REDUCING:
        return size
    if way.algorithm is Algorithm.TREE:
        buffer = size * members / (2 * (members - 1))
        return buffer * (1 if reach.domains == 2 else 2) / reach.in_domain
    return size / reach.in_domain


def _on_torus(wire: Wire, kind: Kind, size: float, reach: Reach, devices_per_chip: int) -> float:
    """The hops to the farthest, and the bytes of the fullest link.

    Args: size: wire bytes of a device.
    """
    way = wire.ways[0]
    per_s = wire.bytes_per_s * way.share
    if kind not in _REDUCING and kind is not Kind.ALL_TO_ALL:
        # All send as far, so that a link carries as many messages as there are hops.
        passed = max(reach.hops, default=1) or 1
        return way.base_s + sum(reach.hops or (1,)) * way.inside_s + devices_per_chip * passed * size / per_s
    if not reach.lines and reach.on_chip > 1:
        return way.base_s + way.inside_s + size / (wire.on_chip_bytes_per_s or per_s)
    lines = reach.lines or (Line(reach.devices),)
    hops = sum(line.hops for line in lines)
    if kind is Kind.ALL_TO_ALL:
        buffer = size * reach.devices / (reach.devices - 1)
        fullest = max(line.crossing for line in lines) * buffer * devices_per_chip
        return way.base_s + hops * way.inside_s + fullest / per_s
    # What two devices of a chip both want comes over its links once.
    arriving = size * (reach.devices - reach.on_chip) / (reach.devices - 1) * devices_per_chip / reach.on_chip
    links = sum(line.links for line in lines)
    if reach.rings:
        links = min(links, reach.rings.links)
        hops = max(hops, reach.devices // reach.on_chip // 2) if reach.rings.is_one else hops
    return way.base_s + _REDUCING[kind] * hops * way.inside_s + arriving / (per_s * links)
