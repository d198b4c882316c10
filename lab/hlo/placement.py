"""Where the partitions of a program stand: on which mesh, host or slice, and by which link they reach each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lab.hlo.groups import MOST_DEVICES, Groups, UnreadGroups
from lab.meshes.axes import Axes
from lab.meshes.platforms import LinkName

MEGASCALE_TARGET = re.compile(r'_xla_megascale_target=(?:"([^"]*)"|(\{\{.*?\}\}))')
_PRODUCT = re.compile(r"\{([\d,]+)\}x\{(\d+):(\d+)\}")
_LIST = re.compile(r"\{([\d,>\-]+)\}")
_SLICE_STRIDE = 100_000  # XLA numbers the devices of slice k (from 1) from k * 100,000.


@dataclass(frozen=True)
class Devices:
    """What the mesh's own devices tell, one entry a position.

    Attributes:
      domains: the host or slice that each lies in.
      link_names: what joins devices inside a domain and between domains.
      ids: their numbers; None where only a target is known.
      coords: of TPUs, where their chips stand in the torus of their slice; None where only a target is known.
    """

    domains: tuple[int, ...]
    link_names: tuple[LinkName, LinkName]
    ids: tuple[int, ...] | None = None
    coords: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True)
class Placement:
    """Where the program's partitions stand.

    Attributes:
      axes: the user's mesh, None if it is not known.
      size: partitions of the program over all slices, None if it is not known.
      devices: None without a target or a mesh of devices.
      slices: how many copies of the partitioned module run side by side; group ids count inside one.
      replicas: of the module, each of as many partitions; None where it does not say.
    """

    axes: Axes | None
    size: int | None
    devices: Devices | None = None
    slices: int = 1
    replicas: int | None = None

    @property
    def in_slice(self) -> int | None:
        """Devices of one slice: replicas times partitions."""
        return None if self.size is None else self.size // self.slices

    def on_mesh(self, groups: Groups) -> Groups:
        """Groups of a slice's devices as groups of mesh positions, of all slices."""
        if not self._positions:
            return groups
        many = min(map(len, self._positions))
        if any(max(row) >= many for row in groups.members if row):
            raise UnreadGroups(f"numbers of more than the {many} devices of a slice")
        members = tuple(tuple(order[i] for i in row) for order in self._positions for row in groups.members)
        return Groups(members, groups.are_assumed, groups.are_whole)

    def across_slices(self, target: str) -> tuple[Groups, bool]:
        """Who meets over the data-centre network, and whether it is a permutation: all slices, some, or one to one.

        Raises:
          UnreadGroups: a spelling that is none of `{1,2}x{0:7}`, `{{100000,200000},..}`, `{{100000->200000},..}`.
        """
        if any(len(number) > 9 for number in re.findall(r"\d+", target)):
            raise UnreadGroups(f"{target[:80]} has a number that no device has")
        if product := _PRODUCT.match(target):
            slices = [int(one) for one in product[1].split(",") if one]
            locals = range(int(product[2]), int(product[3]) + 1)
            if len(locals) * len(slices) > MOST_DEVICES:
                raise UnreadGroups(target[:80])
            rows = [[one * _SLICE_STRIDE + i for one in slices] for i in locals]
        else:
            rows = [[int(one) for one in re.findall(r"\d+", row)] for row in _LIST.findall(target)]
        if not rows:
            raise UnreadGroups(target[:80])
        return Groups(tuple(tuple(self._position(device) for device in row) for row in rows)), "->" in target

    def link(self, groups: Groups) -> LinkName | None:
        if self.devices is None or groups.size < 2:
            return None
        domains = np.asarray(self.devices.domains)
        rows = [row for row in groups.members if len(row) > 1 and max(row) < len(domains)]
        crosses = any(domains[list(row)].min() != domains[list(row)].max() for row in rows)
        return self.devices.link_names[crosses]

    @cached_property
    def _positions(self) -> list[list[int]]:
        """For each slice, the mesh positions of its partitions in their order."""
        if self.slices == 1 or self.devices is None:
            return []
        return [[p for p, d in enumerate(self.devices.domains) if d == one] for one in range(self.slices)]

    @cached_property
    def _position_of_id(self) -> Mapping[int, int]:
        return (
            {} if self.devices is None or self.devices.ids is None else {id: p for p, id in enumerate(self.devices.ids)}
        )

    def _position(self, device: int) -> int:
        """Mesh position of a device id; where ids are not known, as if each slice's devices stood in the order of their
        numbers."""
        one, local = device // _SLICE_STRIDE - 1, device % _SLICE_STRIDE
        if device in self._position_of_id or not 0 <= one < len(self._positions):
            return self._position_of_id.get(device, device)
        return self._positions[one][min(local, len(self._positions[one]) - 1)]
