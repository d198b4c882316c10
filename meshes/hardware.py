"""What chips and links can do: the table `hardware.toml`, read and checked.

Figures are of one chip. A device of JAX is a chip, on TPU 7x half of one (`devices_per_chip`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import prod
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from lab.meshes.documents import read_json
from lab.meshes.errors import UsageError, no_such
from lab.meshes.platforms import Platform

BENCH_SCHEMA: Final = "sharding-lab/bench/1"
_TPUS = {"v5 lite": "v5e", "v5": "v5p", "v6 lite": "v6e"}
"""What the runtime calls a chip, where the table of hardware has another name."""
_OTHERS = {"pcie", "nvl", "40gb"}
"""In the names of cards with less memory, or slower links, than those of the table."""


@dataclass(frozen=True)
class Figure:
    """A number with where it comes from. `note` says how it was printed there."""

    value: float
    source: str
    note: str = ""

    def __post_init__(self) -> None:
        if not (self.value > 0 and self.source):
            raise ValueError(f"{self}: expected a value above 0 and a source")


@dataclass(frozen=True)
class Link(Figure):
    """All links of a kind that one chip has: `value` [B/s] in one direction.

    Attributes:
      links: how many they are, where a message uses one of them; NVLinks behind a switch and network adapters count as
        one.
    """

    name: str = ""
    direction: str = ""
    links: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.direction != "one way":
            raise ValueError(f"{self}: expected the rate of one direction")

    @property
    def bytes_per_s_per_link(self) -> float:
        return self.value / self.links


@dataclass(frozen=True)
class MeasuredLink(Link):
    """A link as a collective meets it: `value` is beta [B/s], of one direction of one device; errors are standard
    errors of the fit.

    Attributes:
      alpha_s: seconds a message takes however short.
    """

    value_error: float = 0.0
    alpha_s: float = 0.0
    alpha_error_s: float = 0.0


@dataclass(frozen=True)
class Pod:
    """The largest torus of TPU chips: `blocks` blocks of `block` chips along each direction.

    A slice lies inside one block, or is a box of whole blocks, which optical switches join at will.
    """

    block: tuple[int, ...]
    blocks: int
    source: str
    note: str = ""

    @property
    def chips(self) -> int:
        return self.blocks * prod(self.block)

    def blocks_of(self, shape: tuple[int, ...]) -> int | None:
        """How many whole blocks a slice of `shape` chips is, 1 where it lies inside one; None where it is neither."""
        block = self.block + (1,) * (len(shape) - len(self.block))
        sides = shape + (1,) * (len(block) - len(shape))
        if all(side <= most for side, most in zip(sides, block, strict=True)):
            return 1
        if any(side % whole for side, whole in zip(sides, block, strict=True)):
            return None
        return prod(sides) // prod(block)


@dataclass(frozen=True)
class Chip:
    """One accelerator.

    Attributes:
      key, name: in targets, and for people.
      flops_per_s: dense peak by element type (`bf16`, `f8`, `tf32`, ...), two a multiply-add.
      memory_bytes, memory_bytes_per_s: device memory.
      fast, slow: the link inside a domain (NVLink, ICI) and the one between domains (network adapter, DCN).
      devices_per_chip: how many devices JAX lists for one.
      pod: of TPUs; GPUs stand behind switches and have none.
      plugin_name, plugin_options: what the compile-only plugin calls it, and wants to be told.
    """

    key: str
    name: str
    platform: Platform
    flops_per_s: Mapping[str, Figure]
    memory_bytes: Figure
    memory_bytes_per_s: Figure
    fast: Link
    slow: Link
    devices_per_chip: int
    pod: Pod | None
    plugin_name: str
    plugin_options: Mapping[str, str]


def chip_names(platform: str) -> tuple[str, ...]:
    """The known chips of a platform, in the table's order."""
    return tuple(name for name, known in _chips().items() if known.platform == platform)


def known_chip(card: str) -> Chip | None:
    """`NVIDIA H100 80GB HBM3` and `TPU v5 lite` to their rows of the table, which has no cards with other memory or
    links of the same name."""
    if tpu := re.fullmatch(r"TPU ?(.+)", card):
        name = _TPUS.get(tpu[1], tpu[1])
        return chip(name) if name in chip_names(Platform.TPU) else None
    words = re.split(r"[\s-]+", card.lower())
    if _OTHERS & set(words):
        return None
    return next((chip(name) for name in chip_names(Platform.GPU) if name in words), None)


def chip(name: str) -> Chip:
    """One chip of the table.

    Raises:
      UsageError: the table lacks it.
    """
    if name not in _chips():
        raise no_such("chip", name, _chips())
    return _chips()[name]


def measured_link(
    path: Path, primitive: str = "permute", algorithm: str = "lax", of: Chip | None = None
) -> MeasuredLink:
    """The link that `lab bench --save` measured, as alpha and beta of one algorithm of one primitive, by default of
    plain messages.

    Args:
      of: the chip whose link it is to be; by default whichever was timed.
    Raises:
      UsageError: the file is no such record, is of CPU devices or of another chip, or has no fit of this name.
    """
    record = _record(path, of)
    found = {(fit.primitive, fit.algorithm): line for fit in record.fits if (line := fit.line)}
    if (primitive, algorithm) not in found:
        fitted = ", ".join(f"{name} by {by}" for name, by in found)
        raise UsageError(
            f"{path}: no fit of {primitive} by {algorithm}; it has {fitted or 'none at all: time three sizes or more'}"
        )
    value, value_error, alpha_s, alpha_error_s = found[primitive, algorithm]
    return MeasuredLink(
        value=value,
        source=f"{record.command}, {record.devices} x {record.card}, jax {record.jax}, {record.date}",
        name=f"measured by {primitive}",
        direction="one way",
        value_error=value_error,
        alpha_s=alpha_s,
        alpha_error_s=alpha_error_s,
    )


def measured_points(
    path: Path, primitive: str, algorithm: str, of: Chip | None = None
) -> tuple[tuple[float, float], ...]:
    """(wire bytes, seconds) of one algorithm of one primitive at every size that `lab bench --save` timed, the smallest
    first.

    Args:
      of: the chip that is to have been timed; by default any.
    Raises:
      UsageError: the file is no such record, is of CPU devices or of another chip, or has no time of this name.
    """
    record = _record(path, of)
    points = [
        (point.wire_bytes, point.seconds)
        for point in record.points
        if (point.primitive, point.algorithm) == (primitive, algorithm)
    ]
    if not points:
        timed = dict.fromkeys(f"{point.primitive} by {point.algorithm}" for point in record.points)
        raise UsageError(f"{path}: no time of {primitive} by {algorithm}; it has {', '.join(timed) or 'none'}")
    return tuple(sorted(points))


_Positive = Annotated[float, msgspec.Meta(gt=0)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0)]


@dataclass(frozen=True)
class _Fit:
    """Alpha and beta with their standard errors; None where the points are on no line."""

    primitive: str
    algorithm: str
    alpha_s: _Positive | None
    alpha_error_s: _NotNegative | None
    bytes_per_s: _Positive | None
    bytes_per_s_error: _NotNegative | None

    @property
    def line(self) -> tuple[float, float, float, float] | None:
        """Beta, its error, alpha, its error."""
        if (
            self.bytes_per_s is None
            or self.bytes_per_s_error is None
            or self.alpha_s is None
            or self.alpha_error_s is None
        ):
            return None
        return self.bytes_per_s, self.bytes_per_s_error, self.alpha_s, self.alpha_error_s


@dataclass(frozen=True)
class _Point:
    primitive: str
    algorithm: str
    wire_bytes: _NotNegative
    seconds: _Positive


@dataclass(frozen=True)
class _Record:
    """What a link profile is made of, of all that `lab bench --save` writes."""

    platform: str
    chip: str | None
    card: str
    devices: int
    command: str = ""
    jax: str = ""
    date: str = ""
    estimated: bool = False
    fits: tuple[_Fit, ...] = ()
    points: tuple[_Point, ...] = ()


def _record(path: Path, of: Chip | None) -> _Record:
    found = read_json(path, "expected the output of lab bench --save")
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != BENCH_SCHEMA:
        raise UsageError(f"{path}: found schema {schema}, expected {BENCH_SCHEMA}, as lab bench --save writes")
    try:
        record = msgspec.convert(found, _Record)
    except msgspec.ValidationError as refusal:
        raise UsageError(f"{path}: {refusal}; expected what lab bench --save writes") from None
    if record.estimated:
        raise UsageError(f"{path}: found estimates, expected times; run lab bench --save on attached devices")
    told = f"{path}: found times of {record.devices} x {record.card}"
    if record.platform == "cpu":
        raise UsageError(f"{told}, which say nothing about links; run lab bench --save on GPUs or TPUs")
    if of and record.chip != of.key:
        raise UsageError(f"{told}, expected times of {of.name}; run lab bench --save there")
    return record


@cache
def _chips() -> dict[str, Chip]:
    table = tomllib.loads((files("lab.meshes") / "hardware.toml").read_text())
    return {key: _chip(key, row, table["sources"]) for key, row in table["chips"].items()}


def _chip(key: str, row: Mapping[str, Any], sources: Mapping[str, str]) -> Chip:
    def cited(figure: Mapping[str, Any]) -> dict[str, Any]:
        return {**figure, "source": sources[figure["source"]]}

    return Chip(
        key=key,
        name=row["name"],
        platform=Platform(row["platform"]),
        flops_per_s={dtype: Figure(**cited(figure)) for dtype, figure in row["flops_per_s"].items()},
        memory_bytes=Figure(**cited(row["memory_bytes"])),
        memory_bytes_per_s=Figure(**cited(row["memory_bytes_per_s"])),
        fast=Link(**cited(row["fast"])),
        slow=Link(**cited(row["slow"])),
        devices_per_chip=row.get("devices_per_chip", 1),
        pod=_pod(cited(row["pod"])) if "pod" in row else None,
        plugin_name=row.get("plugin_name", key),
        plugin_options=row.get("plugin_options", {}),
    )


def _pod(row: Mapping[str, Any]) -> Pod:
    return Pod(tuple(row["block"]), row["blocks"], row["source"], row["note"])
