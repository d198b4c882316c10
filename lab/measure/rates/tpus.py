"""TPUs: what Google published of v6e and 7x, and of the others the share of their data sheets that these reach.

Source of what is measured: AI-Hypercomputer/tpu-recipes, `microbenchmarks` (commit c8cfe2f, August 2026); of links also
How to Scale Your Model, chapters on TPUs and sharding (https://jax-ml.github.io/scaling-book).
"""

from __future__ import annotations

from statistics import mean
from typing import Final, NamedTuple

from lab.hlo.kernels import Does
from lab.measure.rates.curves import Tile
from lab.measure.rates.table import Algorithm, Passes, Products, Way, Wire, Work
from lab.meshes.hardware import Chip, chip
from lab.meshes.platforms import LinkName

MEASURED, SHEET, ICI, DCN = "tpu-recipes", "tpu-sheet", "ici", "dcn"
CUBES_7X: Final = (
    (128, 2.589961271),
    (256, 18.28645367),
    (512, 105.0783466),
    (1024, 349.7270639),
    (2048, 679.284728),
    (4096, 892.9445127),
    (16384, 950.1286983),
    (32768, 956.3824592),
)
"""Side of square bf16 products, TFLOP/s of one device."""
COPIES_7X: Final = (
    (2097152, 1379.335021),
    (4194304, 2249.746091),
    (16777216, 2757.308985),
    (33554432, 3009.83593),
    (67108864, 3097.217778),
    (134217728, 3176.50274),
    (536870912, 3199.020504),
    (2147483648, 3203.486119),
    (8589934592, 3210.480912),
)
"""Bytes of a copy, GB/s that one device reads and writes."""
GATHERS_7X: Final = (
    (65536, 71.7703034),
    (262144, 129.1869148),
    (1048576, 161.9040742),
    (4194304, 174.765465),
    (16777216, 178.7714158),
)
"""Float32 numbers of one device's part, GB/s that a chip sends, in gathers over four chips of 2 x 2, those of each
chip's two devices at once."""
CLOCKS_HZ: Final = {"v4": 1.05e9, "v5e": 1.5e9, "v5p": 1.75e9, "v6e": 1.75e9, "7x": 2.2e9}
"""At which a chip's matrix units reach the bf16 rate of its data sheet: 8 of 128 x 128 (v5e 4), of 256 x 256 4 (7x 8).
At these XLA's cycles of square products of 7x are 4 % more to 7 % less than the times in `CUBES_7X`."""
_LAUNCH_S: Final = 1.6e-6
_TILE_S: Final = 1.5e-8
"""Of a product, and of each 128 x 128 of its result, by the smaller ones in `CUBES_7X`."""
_HOST_BYTES_PER_S: Final = {"v6e": 32e9}
_OTHER_HOST_BYTES_PER_S: Final = 15e9
"""PCIe, a chip. Source: How to Scale Your Model."""
_F32_PASSES: Final = 6
"""Products in bf16 that make one in float32."""
ATTENTION_SHARE: Final = {"v6e": 0.5, "7x": 0.5}
"""Of the matrix units' rate that attention can reach: a head of 128 fills half of 256 x 256, in depth or in width."""
_UNMEASURED: Final = 0.3
"""Spread; assumed."""


class _Reached(NamedTuple):
    """Shares of a data sheet."""

    flops: float
    memory: float


def _reached(key: str, tflops: float, gigabytes_per_s: float) -> _Reached:
    known = chip(key)
    flops, memory = known.flops_per_s["bf16"].value, known.memory_bytes_per_s.value
    return _Reached(
        tflops * 1e12 * known.devices_per_chip / flops, gigabytes_per_s * 1e9 * known.devices_per_chip / memory
    )


_REACHED: Final = {
    "v6e": _reached("v6e", 827.474382048629, 1359.5960438266143),
    "7x": _reached("7x", CUBES_7X[-1][1], COPIES_7X[-1][1]),
}
_OTHERS: Final = _Reached(mean(one.flops for one in _REACHED.values()), mean(one.memory for one in _REACHED.values()))


def products(a_chip: Chip) -> dict[str, Products]:
    """By dtype, of one device; float32 by default is multiplied in bf16."""
    sheet = {dtype: figure.value for dtype, figure in a_chip.flops_per_s.items()}
    rates = {**sheet, "f16": sheet["bf16"], "tf32": sheet["bf16"], "f32": sheet["bf16"] / _F32_PASSES}
    share, tiles = _REACHED.get(a_chip.key, _OTHERS).flops, (Tile(128, 128, 1.0),)
    is_measured = a_chip.key in _REACHED
    return {
        dtype: Products(
            alpha_s=_LAUNCH_S,
            wave_s=_TILE_S,
            per_s=per_s * share / a_chip.devices_per_chip,
            units=1,
            tiles=tiles,
            spread=0.25 if is_measured and per_s == sheet["bf16"] else _UNMEASURED,
            source=MEASURED if is_measured and per_s == sheet["bf16"] else SHEET,
        )
        for dtype, per_s in rates.items()
    }


def memory(a_chip: Chip) -> Passes:
    """The curve of 7x, at this chip's rate; a launch takes as long on any, and smaller passes go at the rate of the
    smallest that was measured."""
    shares = {key: reached.memory for key, reached in _REACHED.items()}
    share, own = shares.get(a_chip.key, _OTHERS.memory), chip("7x")
    slower = _device_bytes_per_s(own) * shares["7x"] / (_device_bytes_per_s(a_chip) * share)
    measured = [(2.0 * size, 2.0 * size / (rate * 1e9) - _LAUNCH_S) for size, rate in COPIES_7X]
    smaller = [(measured[0][0] / part, measured[0][1] / part) for part in (256, 64, 16, 4)]
    points = tuple((size, _LAUNCH_S + seconds * slower) for size, seconds in (*smaller, *measured))
    return Passes(points, 0.1 if a_chip.key in shares else _UNMEASURED, MEASURED if a_chip.key in shares else SHEET)


def host_copy(a_chip: Chip) -> Work:
    per_s = _HOST_BYTES_PER_S.get(a_chip.key, _OTHER_HOST_BYTES_PER_S) / a_chip.devices_per_chip
    return Work(Does.PASS, "bytes", 1e-5, per_s, _UNMEASURED, SHEET)


def wires(a_chip: Chip) -> tuple[Wire, ...]:
    """ICI at nine tenths of the data sheet's rate of a link, one microsecond a hop; DCN at a third of its own, as a sum
    over two slices of v6e reached."""
    base_s = 11.5e-6 if a_chip.key == "7x" else 5e-6
    link = a_chip.fast.bytes_per_s_per_link
    # The two dies of a 7x chip are joined six times as fast as two chips (Cloud TPU documentation, TPU7x).
    on_chip = 6 * link if a_chip.devices_per_chip > 1 else None
    ici = Wire(LinkName.ICI, link, (Way(Algorithm.RING, base_s, 1e-6, 0.0, 0.9),), 0.35, ICI, on_chip)
    slices = Way(Algorithm.RING, 50e-6, 0.0, 50e-6, 4.113 / 12.5)
    return ici, Wire(LinkName.DCN, a_chip.slow.value / a_chip.devices_per_chip, (slices,), 0.5, DCN)


def _device_bytes_per_s(a_chip: Chip) -> float:
    return a_chip.memory_bytes_per_s.value / a_chip.devices_per_chip
