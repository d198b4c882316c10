"""What `lab fit --json` prints: `sharding-lab/fit/1`. Imports no JAX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal

SCHEMA: Final = "sharding-lab/fit/1"


@dataclass(frozen=True)
class ChangeJson:
    """One lever with the parameters that it sets, as text; a mesh that it changes is that of the try."""

    lever: str
    settings: Mapping[str, str]


@dataclass(frozen=True)
class CostJson:
    """By theory, of one device a step, beyond the step as asked: FLOPs that the backward pass runs again, bytes on
    wires and to and from the host, and the seconds that these take at the rates of the chip's data sheet. In a pipeline
    of the busiest stage by the schedule, with FLOPs done in vain and the seconds that it waits for others."""

    recomputed_flops: int
    wire_bytes: Fraction
    host_bytes: int
    seconds: float


@dataclass(frozen=True)
class CompiledJson:
    """As XLA compiled it, of one device: the peak in bytes, FLOPs and wire bytes of a step, and the verdict on its
    ledger; of a program that XLA refuses, why. In a pipeline FLOPs and, as predicted, wire bytes are those of the
    busiest stage by the schedule. `flops_rematerialized` are those of `flops` that XLA added for lack of room."""

    peak: int | None
    flops: int | None
    wire_bytes: Fraction | None
    verdict: str
    failure: str | None
    flops_rematerialized: int


@dataclass(frozen=True)
class TryJson:
    """`compiled` is null where `predicted_peak` was enough to pass it over."""

    changes: tuple[ChangeJson, ...]
    mesh: Mapping[str, int]
    extra: CostJson
    predicted_peak: int | None
    compiled: CompiledJson | None
    fits: bool


@dataclass(frozen=True)
class FitJson:
    """A step, the memory that its device has and of that what JAX takes, and what was tried: the first as asked, the
    last is what fits, if anything does.

    Attributes:
      command: that runs what fits.
      missing_bytes: how far the smallest compiled peak is above the pool, where nothing fits.
      lacking: levers that have nothing to change, and why.
      largest_terms: of the smallest compiled peak, by theory, in bytes.
    """

    schema: Literal["sharding-lab/fit/1"]
    experiment: str
    style: str
    target: str
    mesh: Mapping[str, int]
    parameters: Mapping[str, Any]
    device_bytes: int
    pool_bytes: int
    fits: bool
    command: str | None
    missing_bytes: int | None
    tries: tuple[TryJson, ...]
    lacking: Mapping[str, str]
    largest_terms: Mapping[str, int]
