"""Estimates: by hand where they are sums of a line, bounded where the compiler puts kernels beside messages; groups and
levels of 8 GPUs."""

import json

import pytest

from lab.core.codec import to_json
from lab.core.ledger import Kind
from lab.measure.bench import run as benches
from lab.measure.bench.chains import chains, chosen
from lab.measure.bench.estimate import KERNEL_S, MESSAGE_S, REACHED, estimated, rates
from lab.measure.bench.programs import Measurement, program
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.hardware import measured_points
from lab.meshes.targets import parse_target
from tests.paths import ROOT

pytestmark = pytest.mark.compiles

gpu = pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only GPU plugin is not installed")
GIB, LINK, MEMORY = 1 << 30, 450e9, REACHED * 4.8e12
EIGHT = parse_target("gpu:h200:1x8")


def estimate(primitive, algorithm, ranks, size=GIB, links=None):
    target, axes = parse_target(f"gpu:h200:1x{ranks}"), Axes.of({"data": ranks})
    (chain,) = chosen(chains(axes), [primitive], [algorithm])
    (entry,) = estimated(chain, make_mesh(target, axes), axes, (size,), rates(target, links))
    return entry


def seconds(*of, links=None):
    return estimate(*of, links=links).point.seconds


@gpu
def test_a_built_in_collective_is_a_message_and_its_wire_bytes():
    assert seconds("all_reduce", "lax", 8) == pytest.approx(MESSAGE_S + 1.75 * GIB / LINK, rel=1e-9)


@gpu
@pytest.mark.parametrize(("size", "addition_s"), [(1024, KERNEL_S), (GIB, 3 * GIB / MEMORY)])
def test_to_exchange_and_add_takes_a_pass_that_reads_two_buffers_and_writes_one(size, addition_s):
    assert seconds("all_reduce", "doubling", 2, size) == pytest.approx(MESSAGE_S + size / LINK + addition_s, abs=1e-6)


@gpu
@pytest.mark.parametrize(
    ("primitive", "algorithm", "ranks", "messages", "wire", "least"),
    [
        # Two lanes put one kernel beside each message, slices and pairs two, of which a message waits for the first.
        ("all_reduce", "split_ring", 8, 28, 1.75, 0.9),
        ("all_reduce", "sliced_ring", 2, 8, 1.0, 0.5),
        ("all_to_all", "pairwise", 8, 7, 0.875, 0.5),
    ],
)
def test_messages_hide_no_kernel_that_they_wait_for(primitive, algorithm, ranks, messages, wire, least):
    """`least` is the share of the kernels' time that nothing hides."""
    found = estimate(primitive, algorithm, ranks)
    shown = found.point.seconds - messages * MESSAGE_S - wire * GIB / LINK
    assert least < shown / (found.work.kernel_bytes / MEMORY) < 1


@gpu
@pytest.mark.parametrize(
    ("algorithm", "kernels", "passes", "alone"), [("lax", 0, 0, 1), ("doubling", 1, 3, 1), ("split_ring", 8, 4.5, 0)]
)
def test_the_text_tells_kernels_their_bytes_and_messages_alone(algorithm, kernels, passes, alone):
    """Of two lanes: 2 halves of a block are copied, 2 summed and 4 put in their places."""
    target, axes = parse_target("gpu:h200:1x2"), Axes.of({"data": 2})
    (chain,) = chosen(chains(axes), ["all_reduce"], [algorithm])
    work = program(chain, make_mesh(target, axes), axes, GIB // 4).work
    assert (round(work.kernels), round(work.kernel_bytes / GIB, 3), round(work.messages_alone)) == (
        kernels,
        passes,
        alone,
    )


@gpu
def test_a_record_of_times_takes_the_place_of_the_data_sheet(tmp_path):
    points = [
        {"primitive": "permute", "algorithm": "lax", "wire_bytes": size, "seconds": size / 1e9} for size in (1024, GIB)
    ]
    for name in ("all_reduce", "reduce_scatter+all_gather", "all_to_all"):
        points += [dict(point, primitive=name) for point in points[:2]]
    path = tmp_path / "bench.json"
    record = {"schema": "sharding-lab/bench/1", "platform": "gpu", "chip": "h200", "points": points}
    record |= {"devices": 2, "card": "NVIDIA H200"}
    path.write_text(json.dumps(record))
    assert seconds("permute", "lax", 2, GIB // 4, links=path) == pytest.approx(GIB / 4 / 1e9)
    path.write_text(json.dumps(record | {"estimated": True}))
    with pytest.raises(UsageError, match="found estimates, expected times"):
        rates(EIGHT, path)


@pytest.mark.parametrize(
    "machine, said",
    [
        (("cpu", None, "cpu"), "found times of 8 x cpu, which say nothing about links; run lab bench"),
        (
            ("gpu", "h100", "NVIDIA H100 80GB HBM3"),
            "found times of 8 x NVIDIA H100 80GB HBM3, expected times of NVIDIA",
        ),
        (("gpu", None, "NVIDIA L4"), "found times of 8 x NVIDIA L4, expected times of NVIDIA H200 SXM 141 GB"),
        (("tpu", "v5e", "TPU v5 lite"), "found times of 8 x TPU v5 lite, expected times of NVIDIA H200"),
    ],
)
def test_a_record_of_another_chip_is_no_link_of_an_h200(tmp_path, machine, said):
    platform, chip, card = machine
    record = {"schema": "sharding-lab/bench/1", "devices": 8, "platform": platform, "chip": chip, "card": card}
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(record | {"points": [], "fits": []}))
    with pytest.raises(UsageError, match=said):
        rates(EIGHT, path)


@gpu
@pytest.mark.parametrize(("mesh", "over"), [("data=4,tensor=2", ("tensor",)), ("data=2,tensor=4", ("tensor",))])
def test_groups_of_8_gpus_work_side_by_side(mesh, over):
    axes = Axes.parse(mesh)
    spanned = Axes.of({name: axes[name] for name in over})
    (chain,) = chosen(chains(spanned), ["all_reduce"], ["ring"])
    (transfer, *_) = program(chain, make_mesh(EIGHT, axes), spanned, 1 << 20).ledger.transfers
    assert (transfer.kind, transfer.axes, transfer.group_size, transfer.groups) == (
        Kind.COLLECTIVE_PERMUTE,
        over,
        spanned.size,
        8 // spanned.size,
    )


@gpu
@pytest.mark.parametrize(("ranks", "mesh"), [(4, "data=2,tensor=2"), (8, "data=2,tensor=4")])
def test_levels_of_4_and_8_gpus_and_barriers_over_both_compile_to_what_is_stated(ranks, mesh):
    target, primitives, names = (
        parse_target(f"gpu:h200:1x{ranks}"),
        ("all_reduce", "barrier"),
        ("hierarchical", "halving_doubling", "lax"),
    )
    found = benches.bench(target, Axes.parse(mesh), primitives, names, (16 << 20,), "lab bench")
    assert [entry.chain.algorithm for entry in found.found if isinstance(entry, Measurement)] == [
        "lax",
        "halving_doubling",
        "hierarchical",
        "lax",
    ]
    record = to_json(found)
    assert (record["estimated"], record["over"], record["launch_s"]) == (True, ["data", "tensor"], 0.0)


def test_groups_of_two_of_8_fake_devices_are_timed():
    found = benches.bench(
        parse_target("cpu:8"),
        Axes.parse("data=4,tensor=2"),
        ("all_reduce",),
        ("lax", "ring"),
        (1024,),
        "lab bench",
        over=("tensor",),
    )
    assert [entry.point.wire_bytes for entry in found.found] == [1024, 1024]
    assert (to_json(found)["mesh"], to_json(found)["over"]) == ({"data": 4, "tensor": 2}, ["tensor"])


@pytest.mark.parametrize("target", ["gpu:h200:2x8", "tpu:v5e:2x4"])
def test_what_is_not_gpus_of_one_host_is_not_estimated(target):
    with pytest.raises(UsageError, match="expected GPUs of one host to estimate for"):
        rates(parse_target(target), None)


RESULTS = ROOT / "results"


@pytest.fixture
def timed(tmp_path):
    """What the tour of two H200s has of collectives, as `lab bench` saves it."""
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(json.loads((RESULTS / "tour_2xh200_jax0.11.2.json").read_text())["collectives"]))
    return path


@gpu
@pytest.mark.parametrize(
    ("primitive", "algorithm"),
    [
        ("all_reduce", "circulant"),
        ("all_reduce", "split_ring"),
        ("all_reduce", "sliced_ring"),
        ("all_reduce", "tree"),
        ("reduce", "chain"),
        ("broadcast", "tree"),
    ],
)
def test_what_2_h200s_took_at_1_gib_is_estimated_to_a_sixth(timed, primitive, algorithm):
    """With the messages as timed and no constant from these algorithms, so that theory may fail."""
    ((_, timed_s),) = measured_points(timed, primitive, algorithm)[-1:]
    assert seconds(primitive, algorithm, 2, links=timed) == pytest.approx(timed_s, rel=1 / 6)


@gpu
def test_the_recorded_estimate_for_2_h200s_is_what_is_estimated_now():
    record = json.loads((RESULTS / "estimate_2xh200_jax0.10.2.json").read_text())
    found = {
        (point["algorithm"], point["payload_bytes"]): point["seconds"]
        for point in record["points"]
        if point["primitive"] == "all_reduce"
    }
    assert seconds("all_reduce", "split_ring", 2) == pytest.approx(found["split_ring", GIB], rel=1e-3)
