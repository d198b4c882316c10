"""The rates that ship for chips that were not measured here are what their method gives, and agree with what others
measured and they were not made from."""

from dataclasses import replace

import numpy as np
import pytest

from lab.core.codec import to_json
from lab.core.ledger import Kind, Transfer
from lab.hlo.kernels import Does
from lab.hlo.multiplied import Product
from lab.hlo.ring_strategy import Rings
from lab.measure.rates import nccl, published, tpus, xla_tables
from lab.measure.rates.curves import Curve
from lab.measure.rates.links import Links, Reach, _between
from lab.measure.rates.table import Basis, Work, rates_of, shipped
from lab.measure.rates.torus import Line
from lab.meshes.documents import read_json
from lab.meshes.hardware import chip
from lab.meshes.platforms import LinkName
from tests.paths import ROOT, SHARED

RESULTS, ORACLE = ROOT / "results", SHARED / "oracle"
needs_oracle = pytest.mark.skipif(not ORACLE.is_dir(), reason="the published tables are not in this checkout")
MEASURED_HERE = published.H200
SHAPES = [
    Product(batch, m, n, k, "bf16")
    for batch in (1, 4)
    for m in (256, 1024, 4096)
    for n in (256, 2048)
    for k in (512, 4096)
]


@needs_oracle
@pytest.mark.skipif(MEASURED_HERE not in shipped(), reason="the H200's rates do not ship yet")
def test_shipped_rates_are_what_their_method_gives():
    for name, rates in published.published(ORACLE, RESULTS).items():
        ours = rates_of(name)
        assert_nearly(to_json(replace(rates, products={})), to_json(replace(ours, products={})), name)
        assert rates.products.keys() == ours.products.keys()
        for dtype, rate in rates.products.items():
            assert rate.source == ours.products[dtype].source
            for product in SHAPES:
                # Fits differ in numbers that decide nothing.
                seconds = ours.products[dtype].tiled.seconds(product)
                assert rate.tiled.seconds(product) == pytest.approx(seconds, rel=0.02), (name, dtype, product)
    own = rates_of(MEASURED_HERE)
    assert_nearly(to_json(published.with_links(own, ORACLE, RESULTS)), to_json(own), MEASURED_HERE)


def assert_nearly(found, expected, where):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key, value in expected.items():
            assert_nearly(found[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_nearly(one, other, f"{where}[{number}]")
    else:
        is_number = isinstance(expected, float)
        assert found == (pytest.approx(expected, rel=0.02) if is_number else expected), where


@needs_oracle
@pytest.mark.parametrize("key, dtype, median", [("h100", "bf16", 0.05), ("b200", "bf16", 0.04), ("b200", "f8", 0.06)])
def test_nine_of_ten_published_products_lie_within_the_spread(key, dtype, median):
    rate = rates_of(key).products[dtype]
    rows = [row for row in xla_tables._read(ORACLE / "matmul_rates.csv") if row["chip"] == xla_tables._TABLED[key]]
    timed = [xla_tables._timed(row, dtype) for row in rows if row["dtypes"] == xla_tables._DTYPES[dtype]]
    off = [abs(rate.tiled.seconds(product) / seconds - 1) for product, seconds in timed]
    assert len(timed) == 375
    assert np.quantile(off, 0.9) == pytest.approx(rate.spread, rel=0.05)
    assert np.median(off) < median


@needs_oracle
def test_a_published_rate_above_the_data_sheet_is_not_taken():
    assert set(xla_tables.products("h100", ORACLE)) == {"bf16", "f16", "tf32"}
    assert set(xla_tables.products("b200", ORACLE)) == {"bf16", "f16", "tf32", "f8"}


def test_calls_that_warmed_up_take_as_long_as_the_shortest_larger_one():
    link = xla_tables.timed_link(Kind.ALL_GATHER, 2, [(1, 173.0), (2, 27.0), (4, 30.0), (3, 40.0)], "x")
    assert link.points == ((1, 27.0), (2, 27.0), (3, 30.0), (4, 30.0))


def test_two_runs_of_one_collective_lie_within_the_spread():
    tour = read_json(RESULTS / "tour_2xh200_jax0.11.2.json", "")["rates"]["links"]
    again = read_json(RESULTS / "bench_2of4h200_jax0.11.2.json", "")["points"]
    off = [
        abs(Curve(tuple(map(tuple, tour[kind]["points"]))).seconds(one["wire_bytes"] / of) / (one["seconds"] / of) - 1)
        for primitive, kind, of in (
            ("all_reduce", "all_reduce", 1),
            ("all_to_all", "all_to_all", 1),
            ("reduce_scatter+all_gather", "all_gather", 2),
        )
        for one in again
        if (one["primitive"], one["algorithm"]) == (primitive, "lax")
    ]
    assert len(off) == 24
    assert 0.2 < np.quantile(off, 0.9) < xla_tables.LINK_SPREAD


@needs_oracle
def test_large_collectives_of_four_follow_from_two_and_eight():
    links = published.h200_links(ORACLE, RESULTS)
    for kind in (Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL):
        two, four, eight = (
            next(one for one in links if (one.kind, one.devices) == (kind, devices)) for devices in (2, 4, 8)
        )
        large = [(size, seconds) for size, seconds in four.points if size > 4e7]
        assert len(large) == 3
        for size, seconds in large:
            assert _between((two, eight), 4, size) == pytest.approx(seconds, rel=0.12), (kind, size)


def test_a_sum_over_248_hosts_reaches_what_was_measured_there():
    """NVIDIA/nccl-tests, issue 283: 1,984 H200s, all_reduce of 512 MiB, typically 350 GB/s of bus bandwidth."""
    rates, payload, devices = rates_of("h100"), 512 << 20, 1984
    transfer = Transfer(Kind.ALL_REDUCE, None, devices, 1, "f32", payload, instruction="sum", link=LinkName.NETWORK)
    priced = Links(rates, {"sum": Reach(devices, 248, 8)}).priced(transfer)
    assert priced.basis is Basis.DATA_SHEET
    assert float(transfer.wire_bytes) / priced.seconds == pytest.approx(350e9, rel=0.15)


@pytest.mark.parametrize("gib, gigabytes_per_s", [(0.5, 326.9), (1, 362.0), (4, 377.3), (16, 381.8)])
def test_large_sums_over_four_hosts_of_b200_reach_what_was_measured_there(gib, gigabytes_per_s):
    """stas00/ml-engineering, network (commit 744d01e): bus bandwidth of all_reduce over 4 x 8 B200, 50 GB/s each."""
    transfer = Transfer(
        Kind.ALL_REDUCE, None, 32, 1, "bf16", int(gib * 2**30), instruction="sum", link=LinkName.NETWORK
    )
    seconds = Links(rates_of("b200"), {"sum": Reach(32, 4, 8)}).priced(transfer).seconds
    assert float(transfer.wire_bytes) / seconds == pytest.approx(gigabytes_per_s * 1e9, rel=0.06)


@pytest.mark.parametrize(
    "key, m, n, k, tflops, off",
    [
        ("h100", 2048, 2048, 13312, 794.5, 0.03),
        ("a100", 1024, 10240, 5120, 271.2, 0.1),
        ("b200", 1792, 16128, 3072, 1745.0, 0.15),
    ],
)
def test_the_fastest_bf16_products_that_others_found_are_met(key, m, n, k, tflops, off):
    """stas00/ml-engineering, compute/accelerator (commit 744d01e), the fastest shape of each."""
    product = Product(1, m, n, k, "bf16")
    seconds = rates_of(key).products["bf16"].tiled.seconds(product)
    assert seconds == pytest.approx(product.flops / (tflops * 1e12), rel=off / (1 - off))


def test_a_ring_of_two_devices_is_short_by_what_a_launch_takes():
    """`LAUNCH_S` is what the lab's shortest all_reduce takes beyond NCCL's own model of it: 6.6 us and two steps."""
    points = read_json(RESULTS / "tour_2xh200_jax0.11.2.json", "")["rates"]["links"]["all_reduce"]["points"]
    assert min(seconds for _, seconds in points) == pytest.approx(nccl.LAUNCH_S + 7.8e-6, rel=0.01)


def test_gathers_on_four_chips_of_7x_take_what_google_measured():
    links = Links(rates_of("7x"), {"g": Reach(4, lines=(Line(2), Line(2)))}, devices_per_chip=2)
    for numbers, gigabytes_per_s in tpus.GATHERS_7X:
        sent = 2 * 3 * numbers * 4
        transfer = Transfer(Kind.ALL_GATHER, None, 4, 1, "f32", 4 * numbers * 4, instruction="g", link=LinkName.ICI)
        assert links.priced(transfer).seconds == pytest.approx(sent / (gigabytes_per_s * 1e9), rel=0.02)


def test_a_sum_over_256_chips_of_v6e_takes_what_google_measured_within_the_spread():
    """tpu-recipes, trillium/collectives: bf16[17408,17408] at 235.8 GB/s of wire bytes; the compiler says two colors."""
    torus = (Line(16, is_ring=True), Line(16, is_ring=True))
    links = Links(rates_of("v6e"), {"s": Reach(256, lines=torus, rings=Rings(4, is_one=False))})
    transfer = Transfer(Kind.ALL_REDUCE, None, 256, 1, "bf16", 2 * 17408**2, instruction="s", link=LinkName.ICI)
    priced = links.priced(transfer)
    measured = float(transfer.wire_bytes) / 235.76e9
    assert abs(priced.seconds / measured - 1) < priced.spread


@pytest.mark.parametrize("key, share", [("v5p", 0.6), ("v6e", 0.3)])
def test_attention_reaches_the_share_of_the_h200_and_half_of_it_on_wider_units(key, share):
    attention = Work(Does.ATTENTION, "flops", 0.0, 0.6 * chip("h200").flops_per_s["bf16"].value, 0.1, "sheet")
    rates = published._tpu(chip(key), replace(rates_of("h100"), work=(attention,)))
    assert rates.work[0].per_s == pytest.approx(share * chip(key).flops_per_s["bf16"].value)


def test_square_products_of_7x_take_what_google_measured():
    tiled = rates_of("7x").products["bf16"].tiled
    off = {
        side: tiled.seconds(Product(1, side, side, side, "bf16")) / (2 * side**3 / (rate * 1e12)) - 1
        for side, rate in tpus.CUBES_7X
    }
    assert max(map(abs, off.values())) < rates_of("7x").products["bf16"].spread
    assert max(abs(off[side]) for side in (4096, 16384, 32768)) < 0.06


@pytest.mark.parametrize("key", shipped())
def test_every_rate_names_a_source_and_no_rate_is_above_the_data_sheet(key):
    rates, known = rates_of(key), chip(key)
    for one in (*rates.products.values(), rates.memory, *rates.work, *rates.links, *rates.wires):
        assert one.source in rates.sources
    for dtype, rate in rates.products.items():
        if dtype in known.flops_per_s:
            assert rate.per_s * known.devices_per_chip <= known.flops_per_s[dtype].value, dtype
    size, seconds = rates.memory.points[-1]
    assert size / seconds * known.devices_per_chip <= known.memory_bytes_per_s.value


@pytest.mark.parametrize("name", tpus.CLOCKS_HZ)
def test_a_small_pass_of_a_tpu_takes_a_launch_and_a_byte_what_a_byte_of_a_large_one_takes_at_least(name):
    curve = rates_of(name).memory.curve
    assert curve.seconds(0) == pytest.approx(1.6e-6, rel=0.1)
    large = (curve.seconds(2e10) - curve.seconds(1e10)) / 1e10
    for size in (1 << 16, 1 << 18, 1 << 20):
        assert large <= (curve.seconds(2 * size) - curve.seconds(size)) / size <= 2 * large


def test_the_curve_of_a_tpus_passes_meets_what_was_measured():
    curve = rates_of("7x").memory.curve
    for size, gigabytes_per_s in tpus.COPIES_7X:
        assert curve.seconds(2 * size) == pytest.approx(2 * size / gigabytes_per_s / 1e9)
