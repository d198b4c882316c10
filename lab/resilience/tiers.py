"""Which tiers of checkpoints a training should have, how often it should save to each, and the goodput that is left."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lab.book.goodput import best_interval_s, both_copies_lost_s, goodput, saves_per_store, tiered_goodput
from lab.book.reliability import snapshot_s, young_interval_s
from lab.meshes.errors import UsageError, no_such
from lab.meshes.targets import Target
from lab.resilience.loss import Scale, devices_of

HOUR_S = 3600.0
_NUMBER = r"([0-9]{1,12}(?:\.[0-9]{1,9})?)"
_UNITS = {"B/s": 1.0, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12}
_SECONDS = {"s": 1.0, "m": 60.0, "h": HOUR_S, "d": 24 * HOUR_S}


def parse_seconds(text: str, option: str) -> float:
    """`300s`, `5m`, `50000h`, `30d`.

    Raises:
      UsageError: anything else, or nothing at all.
    """
    found = re.fullmatch(f"{_NUMBER}([smhd])", text.strip())
    if not found or not float(found[1]):
        raise UsageError(f"{option} {text}: expected a time such as 300s, 5m, 50000h or 30d")
    return float(found[1]) * _SECONDS[found[2]]


def parse_rate(text: str) -> float:
    """`25GB/s`, of the whole store.

    Raises:
      UsageError: anything else.
    """
    found = re.fullmatch(f"{_NUMBER}([MGT]?B/s)", text.strip())
    if not found or not float(found[1]):
        raise UsageError(f"--store {text}: expected bytes a second of the whole store, such as 25GB/s or 2TB/s")
    return float(found[1]) * _UNITS[found[2]]


@dataclass(frozen=True)
class Failures:
    """Seconds between failures of one device, host, rack or slice, for those that fail as one."""

    mtbf_s: Mapping[Scale, float]

    @classmethod
    def parse(cls, text: str) -> Failures:
        """`50000h` of a device, or `device=50000h,rack=2000000h`.

        Raises:
          UsageError: another form.
        """
        parts = [part.rpartition("=")[::2] for part in text.split(",")]
        for name, _ in parts:
            if name.strip() and name.strip() not in list(Scale):
                raise no_such("scale of failure", name.strip(), Scale, where=" in --mtbf")
        return cls({Scale(name.strip() or Scale.DEVICE): parse_seconds(value, "--mtbf") for name, value in parts})

    def per_s(self, target: Target, *scales: Scale) -> float:
        """Failures a second of all parts of these sizes in a machine.

        Raises:
          UsageError: the machine has no such parts.
        """
        rate = 0.0
        for scale in scales:
            if scale in self.mtbf_s:
                size = devices_of(scale, target)
                if size is None:
                    raise UsageError(f"--mtbf {scale}=...: target {target} has none; leave it out")
                rate += (target.devices or 0) / size / self.mtbf_s[scale]
        return rate


@dataclass(frozen=True)
class Tier:
    """One place for checkpoints.

    Attributes:
      name: `store`, or `neighbour`: the memory of another host.
      mtbf_s: between failures that it alone mends.
      save_s: that a save blocks; write_s: after which it counts.
      interval_s: the best between two saves.
      restart_s: from a failure until work goes on, detection and loading with it.
    """

    name: str
    mtbf_s: float
    save_s: float
    write_s: float
    interval_s: float
    restart_s: float


@dataclass(frozen=True)
class Plan:
    """Tiers together, and the share of time in useful work."""

    tiers: tuple[Tier, ...]
    goodput: float


@dataclass(frozen=True)
class Machine:
    """What failures and checkpoints are counted with.

    Attributes:
      store_bytes_per_s: of the whole store, reading or writing.
      restart_s: from a failure until the state is loaded: detection, a new start, compilation.
    """

    target: Target
    failures: Failures
    store_bytes_per_s: float
    restart_s: float

    @property
    def network_bytes_per_s(self) -> float | None:
        """Of one device, by the data sheet, to another host or to its own memory; None of CPUs."""
        if self.target.chip is None:
            return None
        return self.target.hardware.slow.value / self.target.hardware.devices_per_chip


def plans(machine: Machine, state_bytes: int, of_device: int) -> tuple[Plan, ...]:
    """The store alone, then with a neighbour's memory, where there is a neighbour. The best is the one of most goodput.

    Args:
      state_bytes: of the whole state, each element once; of_device: that a device holds.
    """
    alone = _store_alone(machine, state_bytes, of_device)
    both = _with_neighbour(machine, state_bytes, of_device)
    return (alone, both) if both else (alone,)


def _store_alone(machine: Machine, state_bytes: int, of_device: int) -> Plan:
    """Written from the memory of the hosts while work goes on; on CPUs it blocks."""
    rate = machine.failures.per_s(machine.target, *Scale)
    network, whole_s = machine.network_bytes_per_s, state_bytes / machine.store_bytes_per_s
    save_s, write_s = (float(snapshot_s(of_device, network)), whole_s) if network else (whole_s, 0.0)
    interval_s = float(best_interval_s(save_s, 1 / rate, write_s))
    restart_s = machine.restart_s + whole_s
    share = float(goodput(interval_s, save_s, 1 / rate, restart_s, write_s))
    return Plan((Tier("store", 1 / rate, save_s, write_s, interval_s, restart_s),), share)


def _with_neighbour(machine: Machine, state_bytes: int, of_device: int) -> Plan | None:
    """Every copy goes to another host, and from there to the store, one after the other. A failure of a device or a
    host is mended from the neighbour, unless that one fails as well before there is a copy again; one of a rack or a
    slice, with all hosts in it, from the store.
    """
    network, target = machine.network_bytes_per_s, machine.target
    of_host = devices_of(Scale.HOST, target)
    near = machine.failures.per_s(target, Scale.DEVICE, Scale.HOST)
    if network is None or of_host is None or (target.devices or 0) <= of_host or not near:
        return None
    save_s, whole_s = float(snapshot_s(of_device, network)), state_bytes / machine.store_bytes_per_s
    interval_s = float(young_interval_s(save_s, 1 / near))
    near_restart_s, store_restart_s = machine.restart_s + save_s, machine.restart_s + whole_s
    one_host_s = (target.devices or 0) / of_host / near
    window_s = near_restart_s + interval_s + save_s
    far = machine.failures.per_s(target, Scale.RACK, Scale.SLICE)
    far += 1 / float(both_copies_lost_s(1 / near, one_host_s, window_s))
    per_store = int(saves_per_store(interval_s, 0, 1 / far, whole_s))
    # Work of the writing is lost as well: it counts as if the restart took so much longer, which is exact of one tier.
    share = tiered_goodput(
        interval_s, per_store, save_s, 0, 1 / near, 1 / far, near_restart_s, store_restart_s + whole_s
    )
    return Plan(
        (
            Tier("neighbour", 1 / near, save_s, 0.0, interval_s, near_restart_s),
            Tier("store", 1 / far, 0.0, whole_s, per_store * interval_s, store_restart_s),
        ),
        float(share),
    )


def best(found: tuple[Plan, ...]) -> Plan:
    return max(found, key=lambda plan: plan.goodput)
