"""Rates that others published, and what is worked out from data sheets, in the lab's form: `python -m
lab.measure.rates.published ORACLE RESULTS` writes the files of `chips/` anew, of the H200 only what its links take.

ORACLE holds `matmul_rates.csv` and `collective_perf_train.csv`, XLA's own tables; RESULTS what `lab bench` and `lab
tour` have saved.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Final

import numpy as np

from lab.core.codec import to_text
from lab.core.ledger import Kind, wire_bytes
from lab.hlo.multiplied import Product
from lab.measure.rates.curves import Tile, Tiles
from lab.measure.rates.table import (
    SCHEMA,
    Algorithm,
    Basis,
    ChipRates,
    LinkRate,
    Passes,
    Products,
    Source,
    Way,
    Wire,
    Work,
    rates_of,
)
from lab.meshes.documents import read_json
from lab.meshes.hardware import Chip, chip, chip_names, measured_points
from lab.meshes.platforms import LinkName, Platform

CHIPS = Path(__file__).parent / "chips"
H200 = "h200"
_UNITS = {"a100": 108, "h100": 132, "h200": 132, "b200": 148}
"""Multiprocessors, by the architectures' white papers."""
_TABLED = {"h100": "sm_90", "b200": "sm_100_B200"}
"""What XLA's tables call them."""
_TILES = ((128, 256), (128, 128), (64, 128), (64, 64))
_DTYPES = {"bf16": "bf16xbf16->bf16", "tf32": "f32xf32->f32", "f8": "f8e4m3fnxf8e4m3fn->bf16"}
_KINDS = {
    "all-reduce": Kind.ALL_REDUCE,
    "all-gather": Kind.ALL_GATHER,
    "reduce-scatter": Kind.REDUCE_SCATTER,
    "all-to-all": Kind.ALL_TO_ALL,
}
_XLA_TABLE: Final = "openxla/xla, xla/service/gpu/model"
_UNMEASURED: Final = 0.3
"""Spread of what is worked out from a data sheet; assumed."""

_SOURCES = {
    "xla-products": Source(
        Basis.MEASURED,
        f"{_XLA_TABLE}/default_matmul_perf_table.txtpb (Apache-2.0), read in ROCm/xla in August 2026",
        "2026-08",
        "least squares of the logarithms of its times, soft in what lies far off; 375 shapes a dtype",
    ),
    "xla-collectives": Source(
        Basis.MEASURED,
        f"{_XLA_TABLE}/default_collective_perf_table (Apache-2.0): eight GPUs of one host, f32",
        "2026-08",
        "as it stands, but no size takes longer than a larger one, which is how calls that warm up are left out",
    ),
    "lab-h100": Source(
        Basis.MEASURED,
        "results/bench_2xh100_jax0.11.2.json: lab bench, 2 x H100, jax 0.11.2",
        "2026-11-28",
        "chains of dependent calls; a gather and a scatter were timed together and take half each",
    ),
    "lab-h200": Source(
        Basis.MEASURED,
        "results/tour_2xh200_jax0.11.2.json, tour_4xh200_jax0.11.2_times.json: lab tour, 2 and 4 x H200, jax 0.11.2",
        "2026-11-28",
        "chains of dependent calls; a gather and a scatter were timed together and take half each",
    ),
    "nccl": Source(
        Basis.DATA_SHEET,
        "latencies: NVIDIA/nccl, src/graph/tuning.cc (commit 5067397, June 2026); rate of an adapter: "
        "NVIDIA/nccl-tests, issue 290 (46 to 48 GB/s of 400 Gb/s) and issue 252 (24 GB/s of 200 Gb/s)",
        "2026-06",
        "the fastest of the ways that NCCL chooses among; with 8.7 us more a call, by which the shortest all_reduce of "
        "two H200s is longer than NCCL's own model says",
    ),
    "sheet": Source(
        Basis.DATA_SHEET,
        "meshes/hardware.toml",
        "2026-11",
        "the share of its data sheet that the H200 was measured to reach, of this chip's data sheet",
    ),
    "same-die": Source(
        Basis.DATA_SHEET,
        "chips/h200.json",
        "2026-11",
        "as measured on the H200, whose multiprocessors are these; XLA's own table of float8 is above the data sheet's "
        "rate in 29 of 375 rows, and not taken",
    ),
    "tpu-sheet": Source(
        Basis.DATA_SHEET,
        "meshes/hardware.toml; AI-Hypercomputer/tpu-recipes, microbenchmarks (commit c8cfe2f, August 2026)",
        "2026-08",
        "the share of their data sheets that v6e and 7x were measured to reach, of this chip's data sheet",
    ),
    "tpu-recipes": Source(
        Basis.MEASURED,
        "AI-Hypercomputer/tpu-recipes, microbenchmarks (commit c8cfe2f, August 2026): products and copies of TPU v6e "
        "and 7x, gathers of 7x",
        "2026-08",
        "device times as printed there",
    ),
    "ici": Source(
        Basis.DATA_SHEET,
        "How to Scale Your Model, chapters on TPUs and sharding: 90 % of the data sheet's rate of a link, 1 us a hop, "
        "8 us for a short gather over 3 hops of v5e",
        "2026-08",
        "rings along each direction of the torus that a group spans, at once. Measured in the same place: a gather of "
        "33.5 MB on a line of four v5e takes 20 % longer; in tpu-recipes: gathers on 2 x 2 7x take as long to 1 %, a "
        "sum of 606 MB on 16 x 16 v6e takes 1.5 times as long",
    ),
    "dcn": Source(
        Basis.DATA_SHEET,
        "meshes/hardware.toml; AI-Hypercomputer/tpu-recipes, microbenchmarks/trillium/collectives",
        "2026-08",
        "4.1 GB/s a chip in a sum of two slices of 256 v6e, a third of the data sheet; that share of this chip's",
    ),
}


def published(oracle: Path, results: Path) -> dict[str, ChipRates]:
    """The rates of each chip that was not measured here."""
    h200 = rates_of(H200)
    h100 = _tabled(chip("h100"), h200, oracle, (*_bench_links(results), *_tabled_links("h100", oracle, (8,))))
    b200 = _tabled(chip("b200"), h200, oracle, _tabled_links("b200", oracle, (2, 8)))
    return {
        "h100": h100,
        "b200": b200,
        "a100": _unmeasured_gpu(chip("a100"), h200),
        **{name: _tpu(chip(name), h200) for name in chip_names(Platform.TPU)},
    }


def h200_links(oracle: Path, results: Path) -> tuple[LinkRate, ...]:
    """Two and four H200s as the lab timed them, eight as XLA timed H100s, whose NVLinks and switches are the same."""
    found = list[LinkRate]()
    for devices, name in ((2, "tour_2xh200_jax0.11.2.json"), (4, "tour_4xh200_jax0.11.2_times.json")):
        record = read_json(results / name, "expected what lab tour saved")
        for kind, curve in record["rates"]["links"].items():
            points = _rising([(size, seconds) for size, seconds in curve["points"]])
            found.append(LinkRate(LinkName.HOST, Kind(kind), devices, points, LINK_SPREAD, "lab-h200"))
    return (*found, *_tabled_links("h100", oracle, (8,)))


LINK_SPREAD = 0.25
"""Two runs of the same collectives on two H200s, bench_2of4h200 and tour_2xh200, differ by less in 9 of 10 sizes."""


def _tabled(a_chip: Chip, h200: ChipRates, oracle: Path, links: tuple[LinkRate, ...]) -> ChipRates:
    rows = [row for row in _read(oracle / "matmul_rates.csv") if row["chip"] == _TABLED[a_chip.key]]
    products = dict(_scaled_products(a_chip, h200, "same-die" if a_chip.key == "h100" else "sheet"))
    for dtype, spelled in _DTYPES.items():
        timed = [_timed(row, dtype) for row in rows if row["dtypes"] == spelled]
        if all(product.flops / seconds <= a_chip.flops_per_s[dtype].value for product, seconds in timed):
            products[dtype] = fitted(timed, a_chip.flops_per_s[dtype].value, _UNITS[a_chip.key])
    products["f16"] = products["bf16"]
    return _with_sources(
        replace(_from_h200(a_chip, h200, "sheet"), products=products, links=links, wires=gpu_wires(a_chip)[:1])
    )


def _timed(row: Mapping[str, str], dtype: str) -> tuple[Product, float]:
    batch, m, n, k = (int(float(row[size])) for size in ("batch", "m", "n", "k"))
    product = Product(batch, m, n, k, dtype)
    return product, product.flops / float(row["flops_per_s"])


def fitted(timed: Sequence[tuple[Product, float]], peak: float, units: int) -> Products:
    """The tiles that come nearest to the times of products."""
    from scipy.optimize import least_squares

    seconds = np.array([taken for _, taken in timed])

    def tiled(numbers: np.ndarray) -> Tiles:
        alpha_s, per_s, wave_s, *drops = np.exp(numbers)
        rates = np.cumprod([1.0, *(1 / (1 + drop) for drop in drops)])
        tiles = tuple(Tile(*size, float(rate)) for size, rate in zip(_TILES, rates, strict=True))
        return Tiles(float(alpha_s), float(wave_s), float(per_s), units, tiles)

    def off(numbers: np.ndarray) -> np.ndarray:
        found = tiled(numbers)
        return np.log([found.seconds(product) for product, _ in timed] / seconds)

    start = np.log([4e-6, 0.75 * peak, 3e-7, 0.2, 0.2, 0.2])
    best = tiled(least_squares(off, start, loss="soft_l1", f_scale=0.1).x)
    errors = np.abs([best.seconds(product) for product, _ in timed] / seconds - 1)
    spread = float(np.quantile(errors, 0.9))
    return Products(best.alpha_s, best.wave_s, best.per_s, units, best.tiles, spread, "xla-products")


def _scaled_products(a_chip: Chip, h200: ChipRates, source: str) -> dict[str, Products]:
    """By the share of its data sheet that the H200 reaches."""
    own, its = a_chip.flops_per_s, chip(H200).flops_per_s
    spread = 0.0 if source == "same-die" else _UNMEASURED
    return {
        dtype: replace(
            rate,
            per_s=rate.per_s * own[dtype].value / its[dtype].value,
            units=_UNITS[a_chip.key],
            spread=max(rate.spread, spread),
            source=source,
        )
        for dtype, rate in h200.products.items()
        if dtype in own and dtype in its
    }


def _from_h200(a_chip: Chip, h200: ChipRates, source: str) -> ChipRates:
    """All but products and links, by the data sheets' rates of memory and of products."""
    its = chip(H200)
    memory = a_chip.memory_bytes_per_s.value / a_chip.devices_per_chip / its.memory_bytes_per_s.value
    flops = a_chip.flops_per_s["bf16"].value / a_chip.devices_per_chip / its.flops_per_s["bf16"].value
    least = h200.memory.points[0][1]
    points = tuple((size, least + (seconds - least) / memory) for size, seconds in h200.memory.points)
    work = tuple(
        replace(
            one,
            per_s=one.per_s * (flops if one.of == "flops" else memory),
            spread=max(one.spread, _UNMEASURED),
            source=source,
        )
        for one in h200.work
    )
    host = h200.host_copy and replace(h200.host_copy, spread=max(h200.host_copy.spread, _UNMEASURED), source=source)
    return ChipRates(
        schema=SCHEMA,
        chip=a_chip.key,
        sources=_SOURCES,
        products={},
        memory=Passes(points, max(h200.memory.spread, _UNMEASURED), source),
        work=work,
        host_copy=host,
        slowed_products=h200.slowed_products,
        slowed_memory=h200.slowed_memory,
    )


def _unmeasured_gpu(a_chip: Chip, h200: ChipRates) -> ChipRates:
    products = _scaled_products(a_chip, h200, "sheet")
    return _with_sources(replace(_from_h200(a_chip, h200, "sheet"), products=products, wires=gpu_wires(a_chip)))


LAUNCH_S = 8.7e-6
"""Of a collective in a compiled program, beyond NCCL's own model: see the source `nccl`."""


def gpu_wires(a_chip: Chip) -> tuple[Wire, ...]:
    """Between hosts, and inside one that nobody timed."""
    has_multicast = a_chip.key != "a100"
    across = tuple(_way(*numbers) for numbers in _NCCL) + ((_way(*_NVLS),) if has_multicast else ())
    network = Wire(LinkName.NETWORK, 0.92 * a_chip.slow.value, across, 0.2, "nccl")
    return network, Wire(LinkName.HOST, 0.8 * a_chip.fast.value, tuple(_way(*one) for one in _NCCL), 0.3, "nccl")


# Of a call, of a step inside a host, of one between hosts [us], the share of the rate: short messages with flags in
# each word (LL), in each 128 bytes (LL128), and plain ones; NVLS adds up in the switch.
_NCCL: Final = (
    (Algorithm.RING, 6.6, 1.0, 3.7, 0.1),
    (Algorithm.RING, 14.0, 1.9, 5.0, 0.85),
    (Algorithm.RING, 8.4, 3.4, 15.0, 1.0),
    (Algorithm.TREE, 6.8, 0.6, 6.0, 0.1),
    (Algorithm.TREE, 14.0, 1.25, 9.5, 0.73),
    (Algorithm.TREE, 8.4, 4.0, 15.0, 0.78),
)
_NVLS: Final = (Algorithm.TREE, 25.0, 0.0, 21.9, 1.0, 2)


def _way(algorithm: Algorithm, base: float, inside: float, across: float, share: float, least: int = 1) -> Way:
    return Way(algorithm, LAUNCH_S + base * 1e-6, inside * 1e-6, across * 1e-6, share, least)


def _tabled_links(key: str, oracle: Path, sizes: Sequence[int]) -> tuple[LinkRate, ...]:
    rows = [row for row in _read(oracle / "collective_perf_train.csv") if row["device"] == _TABLED[key]]
    found = list[LinkRate]()
    for devices in sizes:
        for opcode, kind in _KINDS.items():
            points = [
                (float(wire_bytes(kind, int(float(row["tensor_bytes"])), devices)), float(row["time_us"]) * 1e-6)
                for row in rows
                if row["opcode"] == opcode and float(row["devices_per_group"]) == devices
            ]
            found.append(LinkRate(LinkName.HOST, kind, devices, _rising(points), LINK_SPREAD, "xla-collectives"))
    pairs = [
        (float(row["tensor_bytes"]), float(row["time_us"]) * 1e-6)
        for row in rows
        if row["permute_pattern"] == "two_way_all_mutual"
    ]
    if 2 in sizes:
        permute = LinkRate(LinkName.HOST, Kind.COLLECTIVE_PERMUTE, 2, _rising(pairs), LINK_SPREAD, "xla-collectives")
        found.append(permute)
    return tuple(found)


def _bench_links(results: Path) -> Iterable[LinkRate]:
    path, both = results / "bench_2xh100_jax0.11.2.json", "reduce_scatter+all_gather"
    for kind, primitive, times in (
        (Kind.ALL_REDUCE, "all_reduce", 1),
        (Kind.ALL_TO_ALL, "all_to_all", 1),
        (Kind.COLLECTIVE_PERMUTE, "permute", 1),
        (Kind.ALL_GATHER, both, 2),
        (Kind.REDUCE_SCATTER, both, 2),
    ):
        points = [(size / times, seconds / times) for size, seconds in measured_points(path, primitive, "lax")]
        yield LinkRate(LinkName.HOST, kind, 2, _rising(points), LINK_SPREAD, "lab-h100")


def _rising(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """No size takes longer than a larger one."""
    sizes, seconds = np.array(sorted(points)).T
    least = np.minimum.accumulate(seconds[::-1])[::-1]
    return tuple(zip(sizes.tolist(), least.tolist(), strict=True))


# TPUs. Source of the measured: AI-Hypercomputer/tpu-recipes, microbenchmarks.
_CUBES_7X = {
    128: 2.589961271,
    256: 18.28645367,
    512: 105.0783466,
    1024: 349.7270639,
    2048: 679.284728,
    4096: 892.9445127,
    16384: 950.1286983,
    32768: 956.3824592,
}
"""TFLOP/s of one device by the side of square bf16 products."""
_CUBE_V6E = 8192, 827.474382048629
_COPIES_7X = {
    2097152: 1379.335021,
    4194304: 2249.746091,
    8388608: 2246.129937,
    16777216: 2757.308985,
    33554432: 3009.83593,
    67108864: 3097.217778,
    134217728: 3176.50274,
    268435456: 3167.144485,
    1073741824: 3198.414211,
    8589934592: 3210.480912,
}
"""GB/s read and written by a copy of so many bytes on one device."""
_COPY_V6E = 33554432, 1359.5960438266143
_CLOCKS_HZ = {"v4": 1.05e9, "v5e": 1.5e9, "v5p": 1.75e9, "v6e": 1.75e9, "7x": 2.2e9}
"""At which their matrix units reach the data sheet's bf16 rate: 8 of 128 x 128 a chip (v5e 4), of 256 x 256 4 (7x
8)."""
_HOST_BYTES_PER_S = {"v6e": 32e9}
"""Of a chip; 15 GB/s of others. Source: How to Scale Your Model, chapter on TPUs."""
_TPU_TILE = 128, 128


@dataclass(frozen=True)
class _Reached:
    """Shares of data sheets that TPUs were measured to reach."""

    flops: float
    memory: float


def _tpu(a_chip: Chip, h200: ChipRates) -> ChipRates:
    reached, source = _REACHED.get(a_chip.key), "tpu-recipes"
    if reached is None:
        reached = _Reached(mean(one.flops for one in _REACHED.values()), mean(one.memory for one in _REACHED.values()))
        source = "tpu-sheet"
    devices, alpha_s = a_chip.devices_per_chip, 1.6e-6
    is_measured = source == "tpu-recipes"
    products = {
        dtype: Products(
            alpha_s,
            0.0,
            figure.value / devices * reached.flops,
            1,
            (Tile(*_TPU_TILE, 1.0),),
            0.15 if is_measured and dtype == "bf16" else _UNMEASURED,
            source if dtype == "bf16" else "tpu-sheet",
        )
        for dtype, figure in a_chip.flops_per_s.items()
    }
    products |= {"f16": products["bf16"], "tf32": products["bf16"]}
    per_s = a_chip.memory_bytes_per_s.value / devices
    sheet = _from_h200(a_chip, h200, "sheet")
    points = _copies(a_chip, per_s, reached.memory)
    host = Work(
        does=h200.host_copy.does if h200.host_copy else h200.work[0].does,
        of="bytes",
        alpha_s=1e-5,
        per_s=_HOST_BYTES_PER_S.get(a_chip.key, 15e9) / devices,
        spread=_UNMEASURED,
        source="ici",
    )
    return _with_sources(
        replace(
            sheet,
            products=products,
            memory=Passes(points, 0.1 if is_measured else _UNMEASURED, source),
            host_copy=host,
            wires=tpu_wires(a_chip),
            slowed_products=0.0,
            slowed_memory=0.0,
            clock_hz=_CLOCKS_HZ[a_chip.key],
        )
    )


def _copies(a_chip: Chip, per_s: float, share: float) -> tuple[tuple[float, float], ...]:
    """Where the curve of 7x was measured, and of others the same with their rate."""
    own = chip("7x")
    ratio = own.memory_bytes_per_s.value / own.devices_per_chip * _REACHED["7x"].memory / (per_s * share)
    return tuple((2.0 * size, 2.0 * size / (rate * 1e9) * ratio) for size, rate in _COPIES_7X.items())


def _reached(key: str, tflops: float, gigabytes: float) -> _Reached:
    own = chip(key)
    return _Reached(
        tflops * 1e12 * own.devices_per_chip / own.flops_per_s["bf16"].value,
        gigabytes * 1e9 * own.devices_per_chip / own.memory_bytes_per_s.value,
    )


_REACHED = {
    "v6e": _reached("v6e", _CUBE_V6E[1], _COPY_V6E[1]),
    "7x": _reached("7x", max(_CUBES_7X.values()), max(_COPIES_7X.values())),
}


def tpu_wires(a_chip: Chip) -> tuple[Wire, ...]:
    base_s = 11.5e-6 if a_chip.key == "7x" else 5e-6
    ring = Way(Algorithm.RING, base_s, 1e-6, 0.0, 0.9)
    link = a_chip.fast.bytes_per_s_per_link
    ici = Wire(LinkName.ICI, link, (ring,), 0.35, "ici", 6 * link if a_chip.devices_per_chip > 1 else None)
    dcn = Wire(
        LinkName.DCN,
        a_chip.slow.value / a_chip.devices_per_chip,
        (Way(Algorithm.RING, 50e-6, 0.0, 50e-6, 4.1 / 12.5),),
        0.5,
        "dcn",
    )
    return ici, dcn


def _with_sources(rates: ChipRates) -> ChipRates:
    """Those that its rates name."""
    named = {rates.memory.source, *(one.source for one in rates.products.values())}
    named |= {one.source for one in (*rates.work, *filter(None, [rates.host_copy]))}
    named |= {one.source for one in rates.links} | {one.source for one in rates.wires}
    return replace(rates, sources={name: _SOURCES[name] for name in sorted(named)})


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def main(oracle: Path, results: Path) -> None:
    h200 = rates_of(H200)
    links = h200_links(oracle, results)
    sources = {**h200.sources, **{name: _SOURCES[name] for name in ("lab-h200", "xla-collectives", "nccl")}}
    found = {H200: replace(h200, links=links, wires=gpu_wires(chip(H200))[:1], sources=sources)}
    for name, rates in {**found, **published(oracle, results)}.items():
        (CHIPS / f"{name}.json").write_text(to_text(rates) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
