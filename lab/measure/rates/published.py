"""Rates that others published, and what is worked out from data sheets, in the lab's form: `python -m
lab.measure.rates.published ORACLE RESULTS` writes the files of `chips/` anew, the H200's from what was measured here.

ORACLE holds `matmul_rates.csv` and `collective_perf_train.csv`, XLA's own tables; RESULTS what `lab bench` and `lab
tour` have saved.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from lab.core.codec import to_text
from lab.core.ledger import Kind
from lab.hlo.kernels import Does
from lab.measure.rates import nccl, tpus, xla_tables
from lab.measure.rates.curves import Curve
from lab.measure.rates.fitted import fitted, timed_from
from lab.measure.rates.table import SCHEMA, Basis, ChipRates, LinkRate, Passes, Products, Source, rates_of
from lab.meshes.documents import read_json
from lab.meshes.hardware import Chip, chip, chip_names, measured_points
from lab.meshes.platforms import Platform

CHIPS = Path(__file__).parent / "chips"
H200: Final = "h200"
_UNMEASURED: Final = 0.3
"""Spread of what is worked out from a data sheet; assumed."""
_H200_WIRES: Final = "lab-h200-wires"
_H100_BENCH, _H200_TOUR, _SHEET, _SAME_DIE = "lab-h100", "lab-h200", "sheet", "same-die"
_H200_KERNELS: Final = "lab-h200-kernels"
_TPU_RECIPES: Final = "AI-Hypercomputer/tpu-recipes, microbenchmarks (commit c8cfe2f, August 2026)"
_WIRES: Final = "scripts/wires_2xh200_jax0.11.2.json"
_CHAINS: Final = (
    "chains of dependent calls; a gather and a scatter were timed together and take half each; less the start of a "
    "program with collectives, as it was found on two H200s"
)

SOURCES: Final = {
    xla_tables.PRODUCTS: Source(
        Basis.MEASURED,
        "openxla/xla, xla/service/gpu/model/default_matmul_perf_table.txtpb (Apache-2.0), read in ROCm/xla",
        "2026-08",
        "least squares of the logarithms of its times, soft in what lies far off; 375 shapes a dtype",
    ),
    xla_tables.COLLECTIVES: Source(
        Basis.MEASURED,
        "openxla/xla, xla/service/gpu/model, default_collective_perf_table (Apache-2.0): eight GPUs of one host, f32",
        "2026-08",
        "as it stands, but no size takes longer than a larger one, which leaves out calls that warmed up",
    ),
    _H100_BENCH: Source(
        Basis.MEASURED, "results/bench_2xh100_jax0.11.2.json: lab bench, 2 x H100, jax 0.11.2", "2026-11-28", _CHAINS
    ),
    _H200_TOUR: Source(
        Basis.MEASURED,
        "results/tour_4xh200_jax0.11.2_times.json: lab tour, 4 x H200, jax 0.11.2",
        "2026-11-28",
        _CHAINS,
    ),
    _H200_WIRES: Source(
        Basis.MEASURED,
        f"results/{_WIRES}: chains of jax.lax's collectives, 2 x H200, jax 0.11.2",
        "2026-11-30",
        "kernels as the profiler saw them, of each call the GPU that took least",
    ),
    _H200_KERNELS: Source(
        Basis.MEASURED,
        "results/kernels_1xh200_jax0.11.2.json.xz: the programs of lab bench rates, 1 x H200 (driver 580.159.04), jax "
        "0.11.2",
        "2026-11-30",
        "chains of dependent calls in one program, run one after the other without waiting (lab.measure.bench."
        "kernel_times); of sorts and scans less the copy that each call made of its input",
    ),
    nccl.SOURCE: Source(
        Basis.DATA_SHEET,
        "meshes/hardware.toml; NVIDIA/nccl, src/graph/tuning.cc (commit 5067397) and issue 1455; NVIDIA/nccl-tests, "
        "issues 252 and 290",
        "2026-06",
        "the fastest of the ways among which NCCL chooses, by its own model; shares of a data sheet's rate as reported "
        "in the issues",
    ),
    _SHEET: Source(
        Basis.DATA_SHEET,
        "meshes/hardware.toml, chips/h200.json",
        "2026-11",
        "this chip's data sheet times the share of its own that the H200 was measured to reach",
    ),
    _SAME_DIE: Source(
        Basis.DATA_SHEET,
        "chips/h200.json",
        "2026-11",
        "as measured on the H200, whose multiprocessors are these; XLA's table of float8 is above the data sheet in 29 "
        "of 375 rows, and not taken",
    ),
    tpus.MEASURED: Source(Basis.MEASURED, _TPU_RECIPES, "2026-08", "device times as printed there"),
    tpus.SHEET: Source(
        Basis.DATA_SHEET,
        f"meshes/hardware.toml; {_TPU_RECIPES}; How to Scale Your Model, chapter on TPUs (PCIe)",
        "2026-08",
        "this chip's data sheet times the share of theirs that v6e and 7x were measured to reach",
    ),
    tpus.ICI: Source(
        Basis.DATA_SHEET,
        f"meshes/hardware.toml; How to Scale Your Model, chapters on TPUs and sharding; {_TPU_RECIPES}",
        "2026-08",
        "as many links at once as the text and the torus say, at 90 % of a link's rate, and 1 us a hop. "
        "Measured: gathers on 2 x 2 of 7x take as long to 2 %, one of 33.5 MB on a line of four v5e 20 % longer, a sum "
        "of 606 MB on 16 x 16 of v6e 1.5 times as long",
    ),
    tpus.DCN: Source(
        Basis.DATA_SHEET,
        f"meshes/hardware.toml; {_TPU_RECIPES}",
        "2026-08",
        "a third of the data sheet, which is what a sum over two slices of 256 v6e reached; its latency is assumed",
    ),
}


def published(oracle: Path, results: Path) -> dict[str, ChipRates]:
    """The rates of each chip that was not measured here."""
    h200, h100, b200, a100 = rates_of(H200), chip("h100"), chip("b200"), chip("a100")
    of_four_and_eight = [one for one in h200_links(oracle, results) if one.devices > 2]
    found = [
        replace(
            _from_h200(h100, h200),
            products=_scaled(h100, h200, _SAME_DIE) | xla_tables.products("h100", oracle),
            links=(*_h100_links(results), *of_four_and_eight),
            wires=(nccl.network(h100),),
        ),
        replace(
            _from_h200(b200, h200),
            products=_scaled(b200, h200, _SHEET) | xla_tables.products("b200", oracle),
            links=xla_tables.links("b200", oracle, (2, 8)),
            wires=(nccl.network(b200),),
        ),
        replace(
            _from_h200(a100, h200),
            # The fastest products that others found on it reach the share of the sheet that the H200's do at first.
            products=_scaled(a100, h200.at_first, _SHEET),
            wires=(nccl.network(a100), nccl.nvlink(a100)),
        ),
        *(_tpu(chip(name), h200) for name in chip_names(Platform.TPU)),
    ]
    return {rates.chip: _with_sources(rates) for rates in found}


def h200_links(oracle: Path, results: Path) -> tuple[LinkRate, ...]:
    """Two H200s as the profiler saw them, four as the lab timed them, eight as XLA timed H100s: their NVLinks and
    switches are the same."""
    curves = read_json(results / _WIRES, "expected curves by kind")["links"]
    found = [xla_tables.timed_link(Kind(kind), 2, map(tuple, curve), _H200_WIRES) for kind, curve in curves.items()]
    four = read_json(results / "tour_4xh200_jax0.11.2_times.json", "expected what lab tour saved")["rates"]["links"]
    for kind, curve in four.items():
        points = _less_the_start(Kind(kind), map(tuple, curve["points"]), results)
        found.append(xla_tables.timed_link(Kind(kind), 4, points, _H200_TOUR))
    return (*found, *xla_tables.links("h100", oracle, (8,)))


def _less_the_start(kind: Kind, points: Iterable[tuple[float, float]], results: Path) -> list[tuple[float, float]]:
    """Chains were once timed with the start of their program, which was found on two H200s: what they took so, less
    what the profiler saw; no call is faster than on these."""
    then = read_json(results / "tour_2xh200_jax0.11.2.json", "expected what lab tour saved")["rates"]["links"]
    before, now = Curve(_pairs(then[kind]["points"])), _seen(kind, results)
    return [(size, max(now.seconds(size), s - before.seconds(size) + now.seconds(size))) for size, s in points]


def _seen(kind: Kind, results: Path) -> Curve:
    return Curve(_pairs(read_json(results / _WIRES, "expected curves by kind")["links"][kind]))


def _pairs(points: Iterable[Sequence[float]]) -> tuple[tuple[float, float], ...]:
    return tuple((size, seconds) for size, seconds in points)


def _h100_links(results: Path) -> Iterable[LinkRate]:
    path, both = results / "bench_2xh100_jax0.11.2.json", "reduce_scatter+all_gather"
    for kind, primitive, of in (
        (Kind.ALL_REDUCE, "all_reduce", 1),
        (Kind.ALL_TO_ALL, "all_to_all", 1),
        (Kind.COLLECTIVE_PERMUTE, "permute", 1),
        (Kind.ALL_GATHER, both, 2),
        (Kind.REDUCE_SCATTER, both, 2),
    ):
        points = [(size / of, seconds / of) for size, seconds in measured_points(path, primitive, "lax")]
        yield xla_tables.timed_link(kind, 2, _less_the_start(kind, points, results), _H100_BENCH)


def _scaled(a_chip: Chip, h200: ChipRates, source: str) -> dict[str, Products]:
    """The H200's products at the rates of this chip's data sheet."""
    own, its = a_chip.flops_per_s, chip(H200).flops_per_s
    least = 0.0 if source == _SAME_DIE else _UNMEASURED
    return {
        dtype: replace(
            rate,
            per_s=rate.per_s * own[dtype].value / its[dtype].value,
            units=xla_tables.UNITS[a_chip.key],
            spread=max(rate.spread, least),
            source=source,
        )
        for dtype, rate in h200.products.items()
        if dtype in own and dtype in its
    }


def _lasting(results: Path) -> float:
    """Times as long as at first that products in bf16 take when they last, on the H200."""
    programs = read_json(results / "scripts/lasting_1xh200_jax0.11.2.json", "expected times of programs")["programs"]
    return median(one["lasting_s"] / one["short_s"] for one in programs if "bfloat16" in one["name"])


def _from_h200(a_chip: Chip, h200: ChipRates) -> ChipRates:
    """All but products and links, by the data sheets' rates of memory and of products."""
    its, devices = chip(H200), a_chip.devices_per_chip
    memory = a_chip.memory_bytes_per_s.value / devices / its.memory_bytes_per_s.value
    flops = a_chip.flops_per_s["bf16"].value / devices / its.flops_per_s["bf16"].value
    launch_s, elements = h200.memory.points[0][1], h200.elements
    points = tuple((size, launch_s + (seconds - launch_s) / memory) for size, seconds in h200.memory.points)
    work = tuple(
        replace(
            one,
            per_s=one.per_s * (flops if one.of == "flops" else memory),
            spread=max(one.spread, _UNMEASURED),
            source=_SHEET,
        )
        for one in h200.work
    )
    host = h200.host_copy and replace(h200.host_copy, spread=max(h200.host_copy.spread, _UNMEASURED), source=_SHEET)
    return ChipRates(
        schema=SCHEMA,
        chip=a_chip.key,
        sources={},
        products={},
        memory=Passes(points, max(h200.memory.spread, _UNMEASURED), _SHEET),
        work=work,
        host_copy=host,
        # Threads write them, so they go with the multiprocessors, as products do; TPUs have none.
        elements=elements
        and replace(elements, per_s=elements.per_s * flops, spread=max(elements.spread, _UNMEASURED), source=_SHEET),
        slowed_products=h200.slowed_products,
        slowed_memory=h200.slowed_memory,
    )


def _tpu(a_chip: Chip, h200: ChipRates) -> ChipRates:
    scaled, share = replace(_from_h200(a_chip, h200), elements=None), tpus.ATTENTION_SHARE.get(a_chip.key, 1.0)
    attention = (Does.ATTENTION, Does.ATTENTION_BACKWARD)
    return replace(
        scaled,
        work=tuple(replace(one, per_s=one.per_s * share) if one.does in attention else one for one in scaled.work),
        products=tpus.products(a_chip),
        memory=tpus.memory(a_chip),
        host_copy=tpus.host_copy(a_chip),
        wires=tpus.wires(a_chip),
        slowed_products=0.0,
        slowed_memory=0.0,
        clock_hz=tpus.CLOCKS_HZ[a_chip.key],
    )


def _with_sources(rates: ChipRates) -> ChipRates:
    """Those that its rates name."""
    named = {rates.memory.source, *(one.source for one in rates.products.values())}
    named |= {one.source for one in (*rates.work, *filter(None, [rates.host_copy, rates.elements]))}
    named |= {one.source for one in rates.links} | {one.source for one in rates.wires}
    return replace(rates, sources={name: SOURCES[name] for name in sorted(named)})


def measured(oracle: Path, results: Path) -> ChipRates:
    """The H200's rates: of its kernels, of its links, and what kernels lose to communication on two of them."""
    timed = timed_from(results / "kernels_1xh200_jax0.11.2.json.xz")
    kernels = fitted(H200, timed, xla_tables.UNITS["h100"], (_H200_KERNELS, SOURCES[_H200_KERNELS]))
    tour = read_json(results / "tour_2xh200_jax0.11.2.json", "expected what lab tour saved")["rates"]
    slowed = {name: tour[name] for name in ("slowed_products", "slowed_memory")}
    return with_links(replace(kernels, **slowed, heated=_lasting(results)), oracle, results)


def with_links(h200: ChipRates, oracle: Path, results: Path) -> ChipRates:
    """The H200's rates with those of its links, and their sources."""
    links, wires = h200_links(oracle, results), (nccl.network(chip(H200)),)
    named = {one.source for one in links} | {one.source for one in wires}
    return replace(
        h200, links=links, wires=wires, sources={**h200.sources, **{name: SOURCES[name] for name in sorted(named)}}
    )


def main(oracle: Path, results: Path) -> None:
    _write(measured(oracle, results))
    for rates in published(oracle, results).values():
        _write(rates)


def _write(rates: ChipRates) -> None:
    (CHIPS / f"{rates.chip}.json").write_text(to_text(rates) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
