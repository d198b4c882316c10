"""A bench: points, what could not be timed, and alpha and beta of every chain; `sharding-lab/bench/1`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from msgspec import UNSET, UnsetType

from lab.measure.bench.chains import Chain
from lab.measure.bench.machine import Machine
from lab.measure.bench.programs import MIN_CALLS, LeftOut, Measurement, Work
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
    f"a chain of dependent calls in one compiled program, u32, donated, and a chain with 1/{MIN_CALLS} of the calls "
    f"just before it; {WARM_UPS} runs of both to warm up, then the median of {RUNS} differences, over the calls that "
    "the longer one has more"
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

    def json_object(self) -> BenchJson:
        link = LinkJson(self.link.name, self.link.value, self.link.source) if self.link else None
        return BenchJson(
            schema=BENCH_SCHEMA,
            command=self.command,
            date=self.date,
            **vars(self.machine),
            devices=self.axes.size,
            mesh=self.axes.shape,
            over=self.over.names,
            link=link,
            method=self.method,
            estimated=self.estimated is not None,
            launch_s=self.launch_s,
            points=tuple(self._point(entry) for entries in self.by_chain.values() for entry in entries),
            fits=tuple(self._fit(chain) for chain in self.by_chain),
            left_out=tuple(
                LeftOutJson(entry.chain.primitive, entry.chain.algorithm, entry.payload_bytes, entry.why)
                for entry in self.left_out
            ),
        )

    def _point(self, entry: Measurement) -> PointJson:
        return PointJson(
            primitive=entry.chain.primitive,
            algorithm=entry.chain.algorithm,
            calls=entry.calls,
            messages=entry.messages,
            messages_stated=entry.messages_stated,
            **vars(entry.point),
            best_s=entry.best_s,
            algbw_bytes_per_s=entry.point.payload_bytes / entry.point.seconds,
            busbw_bytes_per_s=self.bus_bytes_per_s(entry),
            work=entry.work,
            lax_time_over_time=self.beside_lax(entry.chain).get(entry.point.payload_bytes),
        )

    def _fit(self, chain: Chain) -> FitJson:
        fit, why_none = self.fit(chain), self.without_fit.get(chain)
        constants = vars(fit.line) if fit else dict.fromkeys(Line.__dataclass_fields__)
        errors = {name: value for name, value in vars(fit).items() if name != "line"} if fit else {}
        return FitJson(chain.primitive, chain.algorithm, **constants, **errors, why_none=why_none)


@dataclass(frozen=True)
class LinkJson:
    name: str
    bytes_per_s: float
    source: str


@dataclass(frozen=True)
class PointJson:
    """One call of an algorithm at one size; `payload_bytes` as in a ledger, `wire_bytes` along the slowest path."""

    primitive: str
    algorithm: str
    calls: int
    messages: float
    messages_stated: int
    payload_bytes: int
    steps: int
    wire_bytes: float
    seconds: float
    best_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    work: Work | UnsetType | None = UNSET
    lax_time_over_time: float | UnsetType | None = UNSET


@dataclass(frozen=True)
class FitJson:
    """Alpha and beta with their standard errors, and how far points are from the line; or `why_none`."""

    primitive: str
    algorithm: str
    alpha_s: float | None
    alpha_error_s: float | None
    bytes_per_s: float | None
    bytes_per_s_error: float | None
    median_error: float | UnsetType = UNSET
    worst_error: float | UnsetType = UNSET
    worst_at_bytes: int | UnsetType = UNSET
    two: TwoLines | UnsetType | None = UNSET
    two_median_error: float | UnsetType | None = UNSET
    why_none: str | UnsetType | None = UNSET


@dataclass(frozen=True)
class LeftOutJson:
    primitive: str
    algorithm: str
    payload_bytes: int
    why: str


@dataclass(frozen=True)
class BenchJson:
    """Times of collectives, with the machine that they belong to, as `lab bench --json` prints them."""

    schema: Literal["sharding-lab/bench/1"]
    command: str
    date: str
    card: str
    platform: str
    chip: str | None
    driver: str | None
    runtime: str
    jax: str
    devices: int
    mesh: Mapping[str, int]
    link: LinkJson | None
    method: str
    launch_s: float
    points: tuple[PointJson, ...]
    fits: tuple[FitJson, ...]
    left_out: tuple[LeftOutJson, ...]
    estimated: bool | UnsetType = UNSET
    over: tuple[str, ...] | UnsetType = UNSET
    nccl: str | UnsetType | None = UNSET
    flags: str | UnsetType = UNSET
    environment: Mapping[str, str] | UnsetType = UNSET
