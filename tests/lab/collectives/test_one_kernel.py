"""The all-reduce in one GPU kernel: that it compiles to it and to nothing else, that no ledger passes it over, and what
it refuses."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from lab import collectives, hlo
from lab.collectives import ALGORITHMS, GPU_KERNELS, one_kernel
from lab.hlo.kernels import Kernel, steps
from lab.measure.bench import programs, timing
from lab.measure.bench.chains import Chain, chains
from lab.measure.bench.run import _kernels, bench
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target

pytestmark = pytest.mark.compiles

ahead_of_time = pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only GPU plugin is not installed")
FORBIDDEN = ("multimem", "multicast", "nvshmem", "symmetric_memory_parameters")


def lowered(name, axes, shape, dtype="float32", target=None):
    mesh = make_mesh(parse_target(target or f"gpu:h200:1x{axes.size}"), axes)
    spec = PartitionSpec(axes.names)
    x = jax.ShapeDtypeStruct((axes.size * shape[0], *shape[1:]), dtype, sharding=NamedSharding(mesh, spec))

    def call(x):
        return collectives.all_reduce(x, axes.names, algorithm=name)

    return jax.jit(jax.shard_map(call, mesh=mesh, in_specs=spec, out_specs=spec)).lower(x)


@ahead_of_time
@pytest.mark.parametrize(("elements", "filled_up"), [(1, 256), (256, 256), (257, 512), (600, 1024), (10240, 3 * 4096)])
def test_128_threads_take_4_bytes_up_to_16_times_in_a_tile_of_each_rank(elements, filled_up):
    text = lowered("two_shot", Axes.parse("data=2"), (elements,)).as_text()
    assert re.findall(r"call @_summed\(.*: \(tensor<(\d+)xf32>\)", text) == [str(filled_up)]


@ahead_of_time
@pytest.mark.parametrize("devices", [2, 4])
def test_it_is_one_kernel_for_all_gpus_without_multicast(devices):
    program = lowered("two_shot", Axes.parse(f"data={devices}"), (1 << 16,))
    assert not [word for word in FORBIDDEN if word in program.as_text()]
    text = program.compile().as_text()
    assert text.count('custom_call_target="mosaic_gpu_v2"') == 1
    assert f'xla_replica_ids = "{",".join(map(str, range(devices)))}"' in text


@ahead_of_time
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_all_its_blocks_find_room_beside_a_collective_of_nccl(devices, monkeypatch, tmp_path):
    monkeypatch.setenv("MOSAIC_GPU_DUMP_TO", str(tmp_path))
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTXAS", "1")
    lowered("two_shot", Axes.parse(f"data={devices}"), (4 << 20,)).compile()
    (report,) = tmp_path.glob("*.ptxas")
    (used,) = re.findall(r"Used (\d+) registers", report.read_text())
    registers = -(-int(used) // 8) * 8
    multiprocessors, registers_each, largest_of_nccl = 132, 1 << 16, 32
    room = (multiprocessors - largest_of_nccl) * (registers_each // (registers * one_kernel.THREADS))
    assert room >= multiprocessors * max(1, one_kernel.BLOCKS // devices)


@ahead_of_time
def test_many_calls_are_one_kernel_in_a_program():
    axes, spec = Axes.parse("data=2"), PartitionSpec("data")

    def twice(x):
        return collectives.all_reduce(
            collectives.all_reduce(x, "data", algorithm="two_shot"), "data", algorithm="two_shot"
        )

    run = jax.shard_map(twice, mesh=make_mesh(parse_target("gpu:h200:1x2"), axes), in_specs=spec, out_specs=spec)
    assert jax.jit(run).lower(jax.ShapeDtypeStruct((64,), "float32")).as_text().count("mosaic_gpu_v2") == 1


@ahead_of_time
def test_it_stands_in_a_loop_as_the_others_do():
    axes, spec = Axes.parse("data=2"), PartitionSpec("data")

    def step(_, x):
        return collectives.all_reduce(x, "data", algorithm="two_shot")

    run = jax.shard_map(
        lambda x: jax.lax.fori_loop(0, 3, step, x),
        mesh=make_mesh(parse_target("gpu:h200:1x2"), axes),
        in_specs=spec,
        out_specs=spec,
    )
    assert jax.jit(run).lower(jax.ShapeDtypeStruct((64,), "float32")).out_info.shape == (64,)


@ahead_of_time
@pytest.mark.parametrize(
    "dtype, shape", [("bfloat16", (77, 3)), ("int32", (1,)), ("float16", (5, 1000)), ("float32", (0, 4))]
)
def test_any_shape_comes_out_as_it_went_in(dtype, shape):
    (result,) = jax.tree.leaves(lowered("two_shot", Axes.parse("data=2"), shape, dtype).out_info)
    assert (result.shape, result.dtype) == ((2 * shape[0], *shape[1:]), dtype)


@ahead_of_time
def test_a_chain_of_it_makes_no_copies_of_its_array():
    axes = Axes.parse("data=2")
    program = programs.program(
        Chain(("all_reduce",), ("two_shot",)), make_mesh(parse_target("gpu:h200:1x2"), axes), axes, 4 << 20
    )
    large = [
        step
        for step in steps(program.compiled.as_text())
        if isinstance(step, Kernel) and step.bytes >= program.payload_bytes
    ]
    assert len(large) == program.calls == 8
    assert programs.difference(program) is None and program.measurement(1.0, 1.0).messages_stated == 0


@ahead_of_time
def test_a_ledger_says_that_it_does_not_know_what_the_kernel_sends():
    ledger = hlo.read_text(lowered("two_shot", Axes.parse("data=2"), (1 << 16,)).compile().as_text())
    assert not ledger.is_complete and not ledger.transfers
    assert ledger.notes[0].startswith("1 kernel with access to other devices' memory: ")


def test_a_result_that_is_not_that_of_lax_is_not_timed(monkeypatch):
    axes = Axes.parse("data=4")
    mesh, chain = make_mesh(parse_target("cpu:4"), axes), Chain(("all_reduce",), ("ring",))
    monkeypatch.setitem(GPU_KERNELS["all_reduce"], "ring", ALGORITHMS["all_reduce"]["ring"])
    program = programs.program(chain, mesh, axes, 64)
    assert timing._wrong(program, mesh) is None
    monkeypatch.setattr(
        Chain,
        "call",
        lambda chain, x_N, axis: (
            x_N if chain.algorithm == "ring" else jax.lax.pcast(jax.lax.psum(x_N, axis), axis, to="varying")
        ),
    )
    assert timing._wrong(program, mesh) == "its results differ from those of jax.lax"


def test_a_kernel_is_timed_where_it_is_named_and_can_run(monkeypatch):
    def gpus(*_):
        return SimpleNamespace(
            size=2, axis_names=("devices",), devices=SimpleNamespace(flat=[SimpleNamespace(device_kind="NVIDIA H200")])
        )

    assert _kernels(["two_shot"], gpus(), Axes.parse("devices=2"), None) and not _kernels(
        [], gpus(), Axes.parse("devices=2"), None
    )
    for algorithms, target, said in (
        (["two_shot"], "cpu:4", "found 4 x cpu, over devices=4; expected attached H100s"),
        (["ring", "two_shot"], "gpu:h200:1x4", "H200 to estimate for"),
    ):
        with pytest.raises(UsageError, match=said):
            bench(parse_target(target), None, (), algorithms, (1024,), "lab bench")


def test_a_bench_of_gpus_has_them_and_one_of_cpus_has_not():
    one, two = Axes.parse("data=4"), Axes.parse("data=2,tensor=2")
    assert [chain.algorithm for chain in chains(one, kernels=True) if chain.is_in_kernels] == ["two_shot"]
    assert not [
        chain for axes, kernels in ((one, False), (two, True)) for chain in chains(axes, kernels) if chain.is_in_kernels
    ]


def test_it_states_the_bytes_of_a_ring_in_one_step():
    cost = collectives.cost("all_reduce", "two_shot", Axes.parse("data=4"), 1000, 4)
    assert (cost.steps, cost.bytes_sent) == (1, 6000)


def test_one_shot_which_once_did_not_end_is_no_algorithm():
    with pytest.raises(UsageError, match="one_shot"):
        collectives.cost("all_reduce", "one_shot", Axes.parse("data=2"), 1000, 4)


@ahead_of_time
def test_on_gpus_a_jax_whose_graphs_read_addresses_of_old_runs_is_refused(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "__version_info__", (0, 11, 0))
    with pytest.raises(UsageError, match="expected 0.11.1 or later"):
        lowered("two_shot", Axes.parse("data=2"), (64,))
    monkeypatch.setattr(jax, "__version_info__", (0, 11, 1))
    assert "mosaic_gpu_v2" in lowered("two_shot", Axes.parse("data=2"), (64,)).as_text()


@ahead_of_time
@pytest.mark.parametrize(
    "axes, dtype, target, said",
    [
        ("data=2", "float32", "cpu:2", "found devices cpu, expected H100s or H200s"),
        ("data=4", "float32", "gpu:a100:1x4", "found devices NVIDIA A100.*, expected H100s or H200s"),
        ("data=2,tensor=2", "float32", None, "found the axes data=2,tensor=2, expected one"),
        ("data=2", "int8", None, "found int8, expected float32, float16, bfloat16, int32, uint32"),
    ],
)
def test_what_it_cannot_do_it_refuses(axes, dtype, target, said):
    with pytest.raises(UsageError, match=said):
        lowered("two_shot", Axes.parse(axes), (64,), dtype, target)


@ahead_of_time
def test_a_mesh_with_axes_beside_its_own_is_refused():
    axes = Axes.parse("data=2,tensor=2")
    mesh, spec = make_mesh(parse_target("gpu:h200:1x4"), axes), PartitionSpec("tensor")
    call = jax.shard_map(
        lambda x: collectives.all_reduce(x, "tensor", algorithm="two_shot"), mesh=mesh, in_specs=spec, out_specs=spec
    )
    with pytest.raises(
        UsageError, match="found a mesh of data, tensor and 1 processes, expected a mesh of this axis alone"
    ):
        jax.jit(call).lower(jax.ShapeDtypeStruct((64,), "float32"))


ON_GPUS = """
import jax, numpy as np
from lab import collectives
mesh = jax.make_mesh((len(jax.devices()),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
spec = jax.sharding.PartitionSpec("data")
def reduced(numbers, algorithm):
    call = lambda x: collectives.all_reduce(x, "data", algorithm=algorithm)
    run = jax.shard_map(call, mesh=mesh, in_specs=spec, out_specs=spec)
    return np.asarray(jax.jit(run)(jax.device_put(numbers, jax.sharding.NamedSharding(mesh, spec))))
for dtype in ("float32", "bfloat16", "int32"):
    for elements in (1, 1000, 1 << 20, 3000003):
        numbers = np.random.default_rng(0).integers(-30, 30, mesh.size * elements).astype(jax.numpy.dtype(dtype))
        found, expected = reduced(numbers, "two_shot"), reduced(numbers, "lax")
        np.testing.assert_array_equal(found, expected, err_msg=f"{dtype} {elements}")
print("equal")
"""


@pytest.mark.skipif(not Path("/dev/nvidia1").exists(), reason="there are no two GPUs here")
def test_on_gpus_it_is_the_sum():
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS", "CUDA_ROOT")
    }
    run = subprocess.run(
        [sys.executable, "-c", ON_GPUS],
        env=environment | {"CUDA_MODULE_LOADING": "EAGER"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.stdout == "equal\n", run.stderr
