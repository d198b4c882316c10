"""A bench as a record, as tables, as a link profile, and from the command line."""

import json
from pathlib import Path

import jax
import pytest

from lab.core.codec import to_json, to_text
from lab.measure.bench import run as benches
from lab.measure.bench.chains import Chain, chains, chosen
from lab.measure.bench.machine import Machine, machine, nccl_version
from lab.measure.bench.programs import LeftOut, Measurement
from lab.measure.bench.record import Bench
from lab.measure.bench.sizes import parse_sizes, size_text
from lab.measure.fit import Point
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.meshes.hardware import chip, measured_link, measured_points
from lab.meshes.targets import parse_target
from lab.report.bench import bench_text
from tests.json_keys import valid

H100 = Machine("NVIDIA H100 80GB HBM3", "gpu", "h100", "580.1", "2.28.9", "cuda 13", "0.11.2")
PERMUTE, RING, LAX = Chain(("permute",), ("lax",)), Chain(("all_reduce",), ("ring",)), Chain(("all_reduce",), ("lax",))
TWO = Axes.parse("data=2")
SIZES = tuple(4**power * 2**10 for power in range(11))


def entries(chain, alpha_s, bytes_per_s, sizes=SIZES, messages=None):
    costs = [chain.cost(Axes.parse("data=2"), size // 4) for size in sizes]
    found = [Point(size, cost.steps, float(cost.bytes_sent), 0.0) for size, cost in zip(sizes, costs, strict=True)]
    times = [point.steps * alpha_s + point.wire_bytes / bytes_per_s for point in found]
    return [
        Measurement(
            chain,
            8,
            messages or cost.messages,
            cost.messages,
            Point(p.payload_bytes, p.steps, p.wire_bytes, t),
            0.9 * t,
        )
        for p, cost, t in zip(found, costs, times, strict=True)
    ]


def bench(*found):
    return Bench("lab bench", "2025-01-01T00:00:00+00:00", H100, TWO, TWO, 1e-4, found)


WHOLE = bench(
    *entries(PERMUTE, 10e-6, 350e9),
    *entries(LAX, 20e-6, 300e9),
    *entries(RING, 15e-6, 200e9),
    LeftOut(Chain(("broadcast",), ("tree",)), 1 << 30, "needs 2 B of the device's 1 B"),
)


def test_the_record_has_points_and_fits_with_card_driver_version_and_command():
    record = valid("bench", to_text(WHOLE))
    assert record["schema"] == "sharding-lab/bench/1"
    assert [record[name] for name in ("card", "driver", "nccl", "jax", "command", "devices")] == [
        "NVIDIA H100 80GB HBM3", "580.1", "2.28.9", "0.11.2", "lab bench", 2
    ]  # fmt: skip
    assert len(record["points"]) == 33 and len(record["fits"]) == 3
    assert record["left_out"] == [
        {
            "primitive": "broadcast",
            "algorithm": "tree",
            "payload_bytes": 1 << 30,
            "why": "needs 2 B of the device's 1 B",
        }
    ]


def test_a_ring_on_two_ranks_has_two_alphas_and_all_reduce_moves_n_on_the_bus():
    fit = WHOLE.fit(RING)
    assert (fit.line.alpha_s, fit.line.bytes_per_s) == pytest.approx((15e-6, 200e9))
    largest = WHOLE.by_chain[RING][-1]
    assert largest.point.steps == 2
    assert WHOLE.bus_bytes_per_s(largest) == pytest.approx(2**30 / largest.point.seconds)


def test_the_table_sets_busbw_beside_the_link():
    text = bench_text(WHOLE)
    (ring,) = [line.split() for line in text.splitlines() if line.startswith("all_reduce  ring") and "%" in line]
    exact_fit, from_size = ["15.0", "0.0", "200.0", "0.0", "0%", ring[7], *ring[8:10], "0%"], ring[11:13]
    assert ring == ["all_reduce", "ring", *exact_fit, *from_size, "198.9", "44%"]
    assert "jax 0.11.2, driver 580.1, NCCL 2.28.9" in text
    assert "link: NVLink 4, 450 GB/s one way (NVIDIA H100" in text
    assert "left out: broadcast by tree at 1 GiB: needs 2 B of the device's 1 B" in text


def test_a_star_marks_the_fastest_of_a_primitive_and_nothing_without_a_rival():
    rows = [line.split() for line in bench_text(WHOLE).split("us a call")[1].splitlines()]
    cells = {(row[0], row[1]): row[2:] for row in rows if row and row[0] in ("permute", "all_reduce")}
    assert all(cell.startswith("*") for cell in cells["all_reduce", "lax"])
    assert not any(cell.startswith("*") for cell in cells["all_reduce", "ring"] + cells["permute", "lax"])


def test_beside_lax_stands_by_how_much_it_is_faster_at_every_size():
    table = bench_text(WHOLE).split("lax / time")[1]
    (ring,) = [line.split() for line in table.splitlines() if line.startswith("all_reduce  ring")]
    assert ring[2:] == ["0.67"] * 8 + ["0.67", "0.67", "0.67"]
    assert [point["lax_time_over_time"] for point in to_json(WHOLE)["points"] if point["algorithm"] == "ring"][
        -1
    ] == pytest.approx(2 / 3, rel=1e-2)
    assert "lax / time" not in bench_text(bench(*entries(LAX, 1e-5, 1e11)))


def test_messages_that_xla_put_together_are_told():
    assert "put several messages into one" not in bench_text(WHOLE)
    assert "XLA put several messages into one in: all_reduce by ring" in bench_text(
        bench(*entries(RING, 1e-5, 1e11, messages=1))
    )


def test_a_bench_without_a_time_still_tells_why():
    assert "left out: permute by lax at 1 KiB: because" in bench_text(bench(LeftOut(PERMUTE, 1024, "because")))


def test_two_sizes_give_times_and_no_fit():
    short = bench(*entries(PERMUTE, 1e-5, 1e11, SIZES[:2]), *entries(RING, 1e-5, 1e11, SIZES[:1]))
    assert short.fit(PERMUTE) is None
    two, one = to_json(short)["fits"]
    assert two["bytes_per_s"] is None and two["why_none"] == "found 2 sizes, expected 3 or more"
    assert one["why_none"] == "found 1 size, expected 3 or more"
    assert "no alpha and beta: found 2 sizes, expected 3 or more: permute by lax\n" in bench_text(short)


def test_times_that_fall_with_size_say_so_and_a_fit_has_no_reason():
    falling = bench(*entries(PERMUTE, 1e-5, -1e15), *entries(RING, 1e-5, 1e11))
    assert "no alpha and beta: the fitted alpha and beta are not both above zero: permute by lax\n" in bench_text(
        falling
    )
    assert [fit["why_none"] is None for fit in to_json(falling)["fits"]] == [False, True]


def test_two_lines_stand_beside_one_where_the_protocol_changes_at_1_mib():
    slow, fast = entries(PERMUTE, 10e-6, 20e9, SIZES[:5]), entries(PERMUTE, 40e-6, 300e9, SIZES[5:])
    changing = bench(*slow, *fast)
    fit = changing.fit(PERMUTE)
    assert fit.two.from_bytes == 1 << 20 and fit.two_median_error < 1e-9 < fit.median_error
    (row,) = to_json(changing)["fits"]
    assert (row["two"]["from_bytes"], row["two"]["above"]["bytes_per_s"]) == (1 << 20, pytest.approx(300e9))
    assert next(line.split()[-5:-2] for line in bench_text(changing).splitlines() if "MiB" in line and "%" in line) == [
        "0%",
        "1",
        "MiB",
    ]


def test_versions_of_nccl_are_numbers_in_one_and_absent_without_it():
    assert (nccl_version(22809), nccl_version(21003)) == ("2.28.9", "2.10.3")
    assert machine(jax.devices("cpu")[0]).nccl is None


def test_a_machine_tells_the_flags_of_xla_that_its_times_depend_on(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_experimental_parallel_collective_overlap_limit=2")
    assert machine(jax.devices("cpu")[0]).flags == "--xla_gpu_experimental_parallel_collective_overlap_limit=2"


def test_the_record_is_a_link_profile(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(to_json(WHOLE)))
    link = measured_link(path)
    assert (link.value, link.alpha_s, link.direction) == (pytest.approx(350e9), pytest.approx(10e-6), "one way")
    assert "2 x NVIDIA H100 80GB HBM3, jax 0.11.2" in link.source
    assert measured_link(path, "all_reduce", "ring").bytes_per_s_per_link == pytest.approx(200e9)
    assert measured_link(path, of=chip("h100")) == link
    with pytest.raises(UsageError, match="found times of 2 x NVIDIA H100 80GB HBM3, expected times of NVIDIA H200 SXM"):
        measured_link(path, of=chip("h200"))
    points = measured_points(path, "permute", "lax")
    assert (len(points), points[-1]) == (11, (2**30, pytest.approx(10e-6 + 2**30 / 350e9)))
    with pytest.raises(
        UsageError, match="no time of gather by lax; it has permute by lax, all_reduce by lax, all_reduce by ring"
    ):
        measured_points(path, "gather", "lax")


@pytest.mark.parametrize(
    "text, said",
    [
        ("no json", "not JSON"),
        ("[]", "found schema None, expected sharding-lab/bench/1"),
        ('{"schema": "sharding-lab/run/1"}', "found schema sharding-lab/run/1"),
        (
            json.dumps(to_json(WHOLE)),
            "no fit of gather by lax; it has permute by lax, all_reduce by lax, all_reduce by ring",
        ),
    ],
)
def test_a_file_that_is_no_link_profile_is_refused(tmp_path, text, said):
    (tmp_path / "bench.json").write_text(text)
    with pytest.raises(UsageError, match=said):
        measured_link(tmp_path / "bench.json", "gather")


def test_a_file_that_is_absent_is_no_link_profile(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        measured_link(tmp_path / "bench.json")


def test_sizes_go_up_in_steps_of_four_and_end_at_the_last():
    assert parse_sizes("1KiB..1GiB") == SIZES
    assert parse_sizes("100..500") == (100, 400)
    assert parse_sizes("2 MiB") == (2 << 20,)


@pytest.mark.parametrize("text", ["", "..1KiB", "1KiB..", "4KiB..1KiB", "0..1KiB", "1 Kb", "1KiB-2KiB", "-1"])
def test_sizes_of_another_form_are_refused(text):
    with pytest.raises(UsageError, match="--sizes"):
        parse_sizes(text)


def test_a_size_is_told_in_the_largest_unit_that_it_is_whole_in():
    assert [size_text(size) for size in (1024, 1 << 30, 3 << 20, 100)] == ["1 KiB", "1 GiB", "3 MiB", "100 B"]


@pytest.mark.compiles
def test_lab_bench_on_fake_devices_says_first_that_its_times_say_nothing_about_links(lab):
    answer = lab(
        "bench",
        "permute",
        "all_gather",
        "--algorithm",
        "lax",
        "--target",
        "cpu:2",
        "--sizes",
        "1KiB..16KiB",
        "--save",
        "b.json",
    )
    assert answer.status == 0, answer.err
    assert answer.out.startswith("These are CPU devices: their times say nothing about links.\n\n2 x cpu")
    with pytest.raises(UsageError, match="b.json: found times of 2 x cpu, which say nothing about links"):
        measured_link(Path("b.json"))
    record = valid("bench", Path("b.json").read_text())
    assert {(point["primitive"], point["payload_bytes"]) for point in record["points"] + record["left_out"]} == {
        (primitive, size) for primitive in ("permute", "reduce_scatter+all_gather") for size in (1024, 4096, 16384)
    }
    assert record["command"].startswith("lab bench permute all_gather --algorithm lax")


@pytest.mark.compiles
def test_lab_bench_takes_a_mesh_of_several_axes_and_the_algorithms_that_go_along_them():
    axes, found = Axes.parse("data=2,tensor=2"), chains(Axes.parse("data=2,tensor=2"))
    some = chosen(found, ["all_reduce"], ["hierarchical", "torus"])
    benched = benches.bench(
        parse_target("cpu:4"), axes, ["all_reduce"], ["hierarchical", "torus"], (1024,), "lab bench"
    )
    assert [entry.chain for entry in benched.found] == list(some) and to_json(benched)["mesh"] == {
        "data": 2,
        "tensor": 2,
    }


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--target", "gpu:h100:2x8"], "target gpu:h100:2x8: expected GPUs of one host to estimate for"),
        (["--target", "cpu:1"], "collectives over devices=1 span 1 device, expected two or more"),
        (["--target", "cpu:2", "--over", "tensor"], "no axis 'tensor' in the mesh"),
        (["--target", "cpu:2", "--links", "b.json"], "are for estimates, but target cpu:2 is measured"),
        (["--target", "cpu:2", "--mesh", "data=4"], "make them equal"),
        (["permutes", "--target", "cpu:2"], "no primitive 'permutes'"),
        (["--save", "absent/b.json"], "cannot be written"),
        (["--sizes", "huge"], "such as 1KiB..1GiB"),
    ],
)
def test_lab_bench_refuses_in_one_line(lab, arguments, said):
    answer = lab("bench", *arguments)
    assert (answer.status, answer.out) == (2, "")
    assert said in answer.err and answer.err.count("\n") == 1
