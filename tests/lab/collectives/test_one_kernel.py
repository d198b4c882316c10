"""All-reduces in one GPU kernel: that they compile to it and to nothing else, that no ledger passes them over, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from lab import collectives, hlo
from lab.bench import programs
from lab.bench.chains import Chain, chains
from lab.collectives import GPU_KERNELS
from lab.hlo.kernels import Kernel, steps
from meshes import plugins
from meshes.axes import Axes
from meshes.errors import Unusable
from meshes.targets import make_mesh, parse_target

NAMES = tuple(GPU_KERNELS["all_reduce"])
ahead_of_time = pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only GPU plugin is not installed")
FORBIDDEN = ("multimem", "multicast", "nvshmem", "symmetric_memory_parameters")


def lowered(name, axes, shape, dtype="float32", target=None):
    mesh = make_mesh(parse_target(target or f"gpu:h200:1x{axes.size}"), axes)
    spec = PartitionSpec(axes.names)
    x = jax.ShapeDtypeStruct((axes.size * shape[0], *shape[1:]), dtype, sharding=NamedSharding(mesh, spec))
    call = lambda x: collectives.all_reduce(x, axes.names, algorithm=name)
    return jax.jit(jax.shard_map(call, mesh=mesh, in_specs=spec, out_specs=spec)).lower(x)


@ahead_of_time
@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_it_is_one_kernel_for_all_gpus_without_multicast(name, devices):
    program = lowered(name, Axes.parse(f"data={devices}"), (1 << 16,))
    assert not [word for word in FORBIDDEN if word in program.as_text()]
    text = program.compile().as_text()
    assert text.count('custom_call_target="mosaic_gpu_v2"') == 1
    assert f'xla_replica_ids = "{",".join(map(str, range(devices)))}"' in text


@ahead_of_time
@pytest.mark.parametrize("dtype, shape", [("bfloat16", (77, 3)), ("int32", (1,)), ("float16", (5, 1000)), ("float32", (0, 4))])
@pytest.mark.parametrize("name", NAMES)
def test_any_shape_comes_out_as_it_went_in(name, dtype, shape):
    (result,) = jax.tree.leaves(lowered(name, Axes.parse("data=2"), shape, dtype).out_info)
    assert (result.shape, result.dtype) == ((2 * shape[0], *shape[1:]), dtype)


@ahead_of_time
def test_a_chain_of_it_makes_no_copies_of_its_array():
    axes = Axes.parse("data=2")
    program = programs.program(Chain(("all_reduce",), ("two_shot",)), make_mesh(parse_target("gpu:h200:1x2"), axes), axes, 4 << 20)
    large = [step for step in steps(program.compiled.as_text()) if isinstance(step, Kernel) and step.bytes >= program.payload_bytes]
    assert len(large) == program.calls == 8
    assert programs.difference(program) is None and program.measurement(1.0, 1.0).messages_stated == 0


@ahead_of_time
def test_a_ledger_says_that_it_does_not_know_what_the_kernel_sends():
    ledger = hlo.read_text(lowered("one_shot", Axes.parse("data=2"), (1 << 16,)).compile().as_text())
    assert not ledger.is_complete and not ledger.transfers
    assert ledger.notes[0].startswith("kernels reach other devices' memory by themselves (1 of them)")


def test_a_bench_of_gpus_has_them_and_one_of_cpus_has_not():
    one, two = Axes.parse("data=4"), Axes.parse("data=2,tensor=2")
    assert [chain.algorithm for chain in chains(one, kernels=True) if chain.is_in_kernels] == list(NAMES)
    assert not [chain for axes, kernels in ((one, False), (two, True)) for chain in chains(axes, kernels) if chain.is_in_kernels]


def test_one_shot_states_what_every_device_reads_and_two_shot_the_bytes_of_a_ring():
    axes = Axes.parse("data=4")
    stated = {name: collectives.cost("all_reduce", name, axes, 1000, 4) for name in NAMES}
    assert {name: (cost.steps, cost.bytes_sent) for name, cost in stated.items()} == {"one_shot": (1, 12000), "two_shot": (1, 6000)}


@ahead_of_time
@pytest.mark.parametrize(
    "axes, dtype, target, said",
    [
        ("data=2", "float32", "cpu:2", "found cpu devices, expected GPUs"),
        ("data=2,tensor=2", "float32", None, "found the axes data=2,tensor=2, expected one"),
        ("data=2", "int8", None, "found op .* of int8, expected jnp.add of float32"),
    ],
)
def test_what_it_cannot_do_it_refuses(axes, dtype, target, said):
    with pytest.raises(Unusable, match=said):
        lowered("two_shot", Axes.parse(axes), (64,), dtype, target)


@ahead_of_time
def test_a_mesh_with_axes_beside_its_own_is_refused():
    axes = Axes.parse("data=2,tensor=2")
    mesh, spec = make_mesh(parse_target("gpu:h200:1x4"), axes), PartitionSpec("tensor")
    call = jax.shard_map(lambda x: collectives.all_reduce(x, "tensor", algorithm="one_shot"), mesh=mesh, in_specs=spec, out_specs=spec)
    with pytest.raises(Unusable, match="found a mesh of data, tensor, expected one of the one axis"):
        jax.jit(call).lower(jax.ShapeDtypeStruct((64,), "float32"))


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="there are no GPUs here")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("elements", [1, 1000, 1 << 20])
@pytest.mark.parametrize("name", NAMES)
def test_on_gpus_it_is_the_sum(name, elements, dtype):
    mesh = jax.make_mesh((len(jax.devices()),), ("data",))
    spec = PartitionSpec("data")
    numbers = np.random.default_rng(0).integers(-100, 100, mesh.size * elements).astype(dtype)
    both = [
        jax.jit(jax.shard_map(lambda x: collectives.all_reduce(x, "data", algorithm=algorithm), mesh=mesh, in_specs=spec, out_specs=spec))
        for algorithm in (name, "lax")
    ]
    ours, theirs = (run(numbers) for run in both)
    assert jnp.array_equal(ours, theirs)
