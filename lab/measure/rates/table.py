"""The rates of a chip as they are kept: one JSON a chip, each rate with its source and how far measured times lie from
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import msgspec

from lab.core.codec import from_json
from lab.core.ledger import Kind
from lab.hlo.kernels import Does
from lab.measure.rates.curves import Curve, Rate, Tile, Tiles
from lab.meshes.documents import read_json
from lab.meshes.errors import UsageError
from lab.meshes.platforms import LinkName

SCHEMA: Final = "sharding-lab/rates/1"
Spread = Annotated[float, msgspec.Meta(ge=0)]
"""Nine of ten of the measured times lie within this share of what the rate gives."""


class Basis(StrEnum):
    """What a time rests on, the best first."""

    MEASURED = "measured"
    ESTIMATED = "XLA's estimate"
    DATA_SHEET = "data sheet"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Priced:
    """What something takes.

    Attributes:
      by: the rate, for people: `bf16 products`.
      spread: nine of ten of what was measured lie within this share of it.
    """

    seconds: float
    basis: Basis
    by: str
    spread: float = 0.0


@dataclass(frozen=True)
class Source:
    """Attributes: basis: of the rates that name it; method: how it was measured, or worked out."""

    basis: Basis
    text: str
    date: str
    method: str


@dataclass(frozen=True)
class Products:
    """Of one dtype; see `Tiles`."""

    alpha_s: float
    wave_s: float
    per_s: float
    units: int
    tiles: tuple[Tile, ...]
    spread: Spread
    source: str

    @property
    def tiled(self) -> Tiles:
        return Tiles(self.alpha_s, self.wave_s, self.per_s, self.units, self.tiles)


@dataclass(frozen=True)
class Passes:
    """Seconds of kernels that read and write so many bytes; see `Curve`."""

    points: tuple[tuple[float, float], ...]
    spread: Spread
    source: str

    @property
    def curve(self) -> Curve:
        return Curve(self.points)


@dataclass(frozen=True)
class Work:
    """Of one kind of kernel: seconds are alpha_s + work / per_s, of FLOPs, of bytes read and written, or of elements
    written.

    Attributes:
      variant: of the kernel (`lab.hlo.kernels.Kernel`); any by default.
    """

    does: Does
    of: Annotated[str, msgspec.Meta(pattern="^(bytes|flops|elements)$")]
    alpha_s: float
    per_s: float
    spread: Spread
    source: str
    variant: str = ""

    @property
    def rate(self) -> Rate:
        return Rate(self.alpha_s, self.per_s)


@dataclass(frozen=True)
class LinkRate:
    """Seconds of a collective by the wire bytes of one device; see `Curve`.

    Attributes:
      devices: in a group, all in one host or slice.
    """

    link: LinkName
    kind: Kind
    devices: int
    points: tuple[tuple[float, float], ...]
    spread: Spread
    source: str


class Algorithm(StrEnum):
    RING = "ring"
    TREE = "tree"


@dataclass(frozen=True)
class Way:
    """A way in which a library communicates; of several it takes the fastest.

    Attributes:
      base_s: of a call.
      inside_s, across_s: of a step inside a host, on a TPU of a hop; of one between hosts or slices.
      share: of the wire's rate that it reaches.
      least_in_host: how many devices of a host a group needs for it.
    """

    algorithm: Algorithm
    base_s: float
    inside_s: float
    across_s: float
    share: float
    least_in_host: int = 1


@dataclass(frozen=True)
class Wire:
    """A link that nobody timed at every size and on any number of devices.

    Attributes:
      bytes_per_s: of one device in one direction; of ICI, of one of its links.
      on_chip_bytes_per_s: of ICI, from one device of a chip to another one; there is one by default.
    """

    link: LinkName
    bytes_per_s: float
    ways: tuple[Way, ...]
    spread: Spread
    source: str
    on_chip_bytes_per_s: float | None = None


@dataclass(frozen=True)
class ChipRates:
    """Everything known of one chip.

    Attributes:
      chip: its key in the table of hardware.
      products: by the dtype of the arithmetic.
      host_copy: of bytes to or from the host.
      elements: that passes write, whatever their width; None where that is not known.
      links: where they were timed; where they were not, by `wires`.
      slowed_products, slowed_memory: seconds that such kernels lose for a second of communication beside them.
      heated: times as long as at first that products take once they have lasted for half a second, as they have here.
      clock_hz: of a TPU, whose cycles XLA estimates.
    """

    schema: Annotated[str, msgspec.Meta(pattern=f"^{SCHEMA}$")]
    chip: str
    sources: Mapping[str, Source]
    products: Mapping[str, Products]
    memory: Passes
    work: tuple[Work, ...] = ()
    host_copy: Work | None = None
    elements: Work | None = None
    links: tuple[LinkRate, ...] = ()
    wires: tuple[Wire, ...] = ()
    slowed_products: float = 0.0
    slowed_memory: float = 0.0
    heated: Annotated[float, msgspec.Meta(ge=1)] = 1.0
    clock_hz: float | None = None

    @property
    def at_first(self) -> ChipRates:
        """Before the chip lowers its clock; products on no matrix unit draw too little for that."""
        products = {
            dtype: one if dtype == "f32" else replace(one, per_s=one.per_s * self.heated)
            for dtype, one in self.products.items()
        }
        return replace(self, products=products, heated=1.0)


@cache
def rates_of(chip: str) -> ChipRates:
    """Those that ship with the lab.

    Raises:
      UsageError: there are none of this chip.
    """
    file = files("lab.measure.rates") / "chips" / f"{chip}.json"
    if not file.is_file():
        raise UsageError(f"no rates of {chip}; there are rates of {', '.join(shipped())}")
    return from_json(ChipRates, read_json(Path(str(file)), "expected the rates of a chip, as they ship with the lab"))


def shipped() -> tuple[str, ...]:
    folder = files("lab.measure.rates") / "chips"
    return tuple(sorted(one.name.removesuffix(".json") for one in folder.iterdir() if one.name.endswith(".json")))
