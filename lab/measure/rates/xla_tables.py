"""Rates from XLA's own tables of measured products and collectives, as `../shared/oracle` has them: of an H100
(`sm_90`) and a B200.

Source: openxla/xla, `xla/service/gpu/model`, default_matmul_perf_table.txtpb and default_collective_perf_table.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from lab.core.ledger import Kind, wire_bytes
from lab.hlo.multiplied import Product
from lab.measure.rates.curves import Tile, Tiles
from lab.measure.rates.table import LinkRate, Products
from lab.meshes.hardware import chip
from lab.meshes.platforms import LinkName

UNITS = {"a100": 108, "h100": 132, "h200": 132, "b200": 148}
"""Multiprocessors, by the architectures' white papers."""
LINK_SPREAD = 0.3
"""The same collectives on two H200s, timed in two runs (bench_2of4h200, tour_2xh200), differ by less in 9 of 10
sizes."""
PRODUCTS, COLLECTIVES = "xla-products", "xla-collectives"
_TABLED = {"h100": "sm_90", "b200": "sm_100_B200"}
_DTYPES = {"bf16": "bf16xbf16->bf16", "tf32": "f32xf32->f32", "f8": "f8e4m3fnxf8e4m3fn->bf16"}
_TILES = ((128, 256), (128, 128), (64, 256), (64, 128), (64, 64), (64, 32))
_KINDS = {
    "all-reduce": Kind.ALL_REDUCE,
    "all-gather": Kind.ALL_GATHER,
    "reduce-scatter": Kind.REDUCE_SCATTER,
    "all-to-all": Kind.ALL_TO_ALL,
}


def products(key: str, oracle: Path) -> dict[str, Products]:
    """By dtype; none of one that is above the data sheet's rate in some row, as float8 of the H100 is."""
    rows = [row for row in _read(oracle / "matmul_rates.csv") if row["chip"] == _TABLED[key]]
    found = dict[str, Products]()
    for dtype, spelled in _DTYPES.items():
        timed, peak = [_timed(row, dtype) for row in rows if row["dtypes"] == spelled], chip(key).flops_per_s[dtype]
        if all(product.flops / seconds <= peak.value for product, seconds in timed):
            found[dtype] = fitted(timed, peak.value, UNITS[key], PRODUCTS)
    return found | {"f16": found["bf16"]}


def fitted(timed: Sequence[tuple[Product, float]], peak: float, units: int, source: str) -> Products:
    """The tiles that come nearest to the times of products: least squares of logarithms, soft in what lies far off."""
    from scipy.optimize import least_squares

    seconds = np.array([taken for _, taken in timed])

    def tiled(numbers: np.ndarray) -> Tiles:
        alpha_s, wave_s, *rates = np.exp(numbers).tolist()
        tiles = tuple(Tile(*size, rate / max(rates)) for size, rate in zip(_TILES, rates, strict=True))
        return Tiles(alpha_s, wave_s, max(rates), units, tiles)

    def off(numbers: np.ndarray) -> np.ndarray:
        found = tiled(numbers)
        return np.log([found.seconds(product) for product, _ in timed] / seconds)

    start = np.log([4e-6, 1e-6, *(0.75 * peak * 0.85**at for at in range(len(_TILES)))])
    best = tiled(least_squares(off, start, loss="soft_l1", f_scale=0.1).x)
    errors = np.abs([best.seconds(product) for product, _ in timed] / seconds - 1)
    spread = float(np.quantile(errors, 0.9))
    return Products(best.alpha_s, best.wave_s, best.per_s, units, best.tiles, spread, source)


def links(key: str, oracle: Path, sizes: Sequence[int]) -> tuple[LinkRate, ...]:
    """Collectives of groups of so many of the eight GPUs of a host, which all communicate at once."""
    rows = [row for row in _read(oracle / "collective_perf_train.csv") if row["device"] == _TABLED[key]]
    found = [_link(rows, opcode, kind, devices) for devices in sizes for opcode, kind in _KINDS.items()]
    if 2 in sizes:
        pairs = [_point(row) for row in rows if row["permute_pattern"] == "two_way_all_mutual"]
        found.append(timed_link(Kind.COLLECTIVE_PERMUTE, 2, pairs, COLLECTIVES))
    return tuple(found)


def timed_link(kind: Kind, devices: int, points: Iterable[tuple[float, float]], source: str) -> LinkRate:
    """Of (wire bytes, seconds) inside a host, where no size takes longer than a larger one: that leaves out calls that
    warmed up."""
    sizes, seconds = np.array(sorted(points)).T
    least = np.minimum.accumulate(seconds[::-1])[::-1]
    rising = tuple(zip(sizes.tolist(), least.tolist(), strict=True))
    return LinkRate(LinkName.HOST, kind, devices, rising, LINK_SPREAD, source)


def _link(rows: Sequence[Mapping[str, str]], opcode: str, kind: Kind, devices: int) -> LinkRate:
    own = [_point(row) for row in rows if row["opcode"] == opcode and float(row["devices_per_group"]) == devices]
    return timed_link(kind, devices, [(float(wire_bytes(kind, int(n), devices)), s) for n, s in own], COLLECTIVES)


def _point(row: Mapping[str, str]) -> tuple[float, float]:
    return float(row["tensor_bytes"]), float(row["time_us"]) * 1e-6


def _timed(row: Mapping[str, str], dtype: str) -> tuple[Product, float]:
    batch, m, n, k = (int(float(row[size])) for size in ("batch", "m", "n", "k"))
    product = Product(batch, m, n, k, dtype)
    return product, product.flops / float(row["flops_per_s"])


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
