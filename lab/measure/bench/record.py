"""A bench: points, what could not be timed, and alpha and beta of every chain; `sharding-lab/bench/1`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lab.measure.bench.chains import Chain
from lab.measure.bench.machine import Machine
from lab.measure.bench.programs import LeftOut, Measurement
from lab.measure.bench.timing import RUNS, WARM_UPS
from lab.measure.fit import (
    Line,
    Point,
    TwoLines,
    line,
    relative_errors,
    two_lines,
    why_no_line,
)
from lab.meshes.axes import Axes
from lab.meshes.hardware import BENCH_SCHEMA, Link, chip

TIMED = (
    f"a chain of dependent calls in one compiled program, u32, donated; {WARM_UPS} runs to warm up, then the median "
    f"of {RUNS}, "
    "less the launch of an empty program, over the calls"
)
BANDWIDTHS = (
    "bandwidths as nccl-tests: algbw = n / t, busbw = algbw x "
    "2(P-1)/P for all_reduce, (P-1)/P for all_gather, reduce_scatter, scatter, gather and all_to_all, 1 for "
    "broadcast, reduce, permute and barrier; "
    "of two primitives in one call the sum"
)


@dataclass(frozen=True)
class Fit:
    """Alpha and beta of a chain, and how far the line is from its points: fitted over measured time, less one.

    Attributes:
      two: a line for short payloads and one for long ones, None where the points are too few.
      two_median_error: of those.
    """

    line: Line
    median_error: float
    worst_error: float
    worst_at_bytes: int
    two: TwoLines | None
    two_median_error: float | None


@dataclass(frozen=True)
class Bench:
    """What was timed, how, when and on what.

    Attributes:
      command, date: as typed; UTC.
      axes: the mesh.
      over: those that every collective spans; groups along the others work side by side.
      launch_s: of a program without a collective, 0 where none was run.
      found: in the order of the chains, sizes rising.
      estimated: what the times rest on where none was taken.
    """

    command: str
    date: str
    machine: Machine
    axes: Axes
    over: Axes
    launch_s: float
    found: tuple[Measurement | LeftOut, ...]
    estimated: str | None = None

    @cached_property
    def by_chain(self) -> Mapping[Chain, list[Measurement]]:
        times = [entry for entry in self.found if isinstance(entry, Measurement)]
        return {
            chain: [entry for entry in times if entry.chain == chain]
            for chain in dict.fromkeys(entry.chain for entry in times)
        }

    @property
    def method(self) -> str:
        return f"{self.estimated or TIMED}; {BANDWIDTHS}"

    def beside_lax(self, chain: Chain) -> Mapping[int, float]:
        """By payload, how many times as fast as JAX's own collective: its time over the chain's."""
        lax = self.by_chain.get(Chain(chain.primitives, ("lax",) * len(chain.primitives)), [])
        theirs = {entry.point.payload_bytes: entry.point.seconds for entry in lax}
        ours = {point.payload_bytes: point.seconds for point in self.points(chain)}
        return {size: theirs[size] / seconds for size, seconds in ours.items() if size in theirs}

    @property
    def left_out(self) -> list[LeftOut]:
        return [entry for entry in self.found if isinstance(entry, LeftOut)]

    @property
    def link(self) -> Link | None:
        """The fast link of the chip, where the chip is known."""
        return chip(self.machine.chip).fast if self.machine.chip else None

    def fit(self, chain: Chain) -> Fit | None:
        """None where the points are too few, or not on a line with both constants above zero."""
        points = self.points(chain)
        if (fitted := line(points)) is None:
            return None
        errors, two = relative_errors(fitted, points), two_lines(points)
        worst = int(np.abs(errors).argmax())
        of_two = None if two is None else float(np.median(np.abs(relative_errors(two, points))))
        return Fit(
            fitted, float(np.median(np.abs(errors))), float(errors[worst]), points[worst].payload_bytes, two, of_two
        )

    @property
    def without_fit(self) -> Mapping[Chain, str]:
        """Why."""
        return {chain: why_no_line(self.points(chain)) for chain in self.by_chain if self.fit(chain) is None}

    def points(self, chain: Chain) -> list[Point]:
        return [entry.point for entry in self.by_chain[chain]]

    def bus_bytes_per_s(self, entry: Measurement) -> float:
        return float(entry.chain.bus_factor(self.over.size)) * entry.point.payload_bytes / entry.point.seconds

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": BENCH_SCHEMA,
            "command": self.command,
            "date": self.date,
            **asdict(self.machine),
            "devices": self.axes.size,
            "mesh": self.axes.shape,
            "over": list(self.over.names),
            "link": self.link and {"name": self.link.name, "bytes_per_s": self.link.value, "source": self.link.source},
            "method": self.method,
            "estimated": self.estimated is not None,
            "launch_s": self.launch_s,
            "points": [self._point(entry) for entries in self.by_chain.values() for entry in entries],
            "fits": [
                _named(chain) | _constants(self.fit(chain)) | {"why_none": self.without_fit.get(chain)}
                for chain in self.by_chain
            ],
            "left_out": [
                _named(entry.chain) | {"payload_bytes": entry.payload_bytes, "why": entry.why}
                for entry in self.left_out
            ],
        }

    def _point(self, entry: Measurement) -> dict[str, Any]:
        return {
            **_named(entry.chain),
            "calls": entry.calls,
            "messages": entry.messages,
            "messages_stated": entry.messages_stated,
            **asdict(entry.point),
            "best_s": entry.best_s,
            "algbw_bytes_per_s": entry.point.payload_bytes / entry.point.seconds,
            "busbw_bytes_per_s": self.bus_bytes_per_s(entry),
            "work": entry.work and asdict(entry.work),
            "lax_time_over_time": self.beside_lax(entry.chain).get(entry.point.payload_bytes),
        }


def _named(chain: Chain) -> dict[str, Any]:
    return {"primitive": chain.primitive, "algorithm": chain.algorithm}


def _constants(fit: Fit | None) -> dict[str, Any]:
    constants = asdict(fit) if fit else {}
    return constants.pop("line", dict.fromkeys(Line.__dataclass_fields__)) | constants
