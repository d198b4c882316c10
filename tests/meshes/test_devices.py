from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.hardware import chip_names
from lab.meshes.targets import domains, parse_target

needs_gpu = pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only GPU plugin is not installed")
needs_tpu = pytest.mark.skipif(not plugins.installed("tpu"), reason="libtpu is not installed")

AHEAD_OF_TIME = [
    pytest.param("gpu:h100:2x8", "data=4,tensor=4", marks=needs_gpu),
    pytest.param("gpu:h100:4x4", "fsdp=16", marks=needs_gpu),
    pytest.param("tpu:v5p:2x2x4", "data=2,tensor=8", marks=needs_tpu),
    pytest.param("tpu:v5e:2x4", "data=8", marks=needs_tpu),
    pytest.param("tpu:v5e:2x4*2", "data=4,tensor=4", marks=needs_tpu),
    pytest.param("tpu:v5e:2x2*2", "data=1,tensor=8", marks=needs_tpu),
    pytest.param("tpu:v4:2x2x2", "data=2,tensor=4", marks=needs_tpu),
    pytest.param("tpu:v4:2x2x2*2", "data=2,tensor=8", marks=needs_tpu),
    pytest.param("tpu:v5p:4x4x4", "data=2,tensor=32", marks=needs_tpu),
    pytest.param("tpu:v5p:4x8x64", "data=16,tensor=128", marks=needs_tpu),
    pytest.param("tpu:v6e:4x4", "data=16", marks=needs_tpu),
    pytest.param("tpu:7x:2x2x1", "data=2,tensor=4", marks=needs_tpu),
]


def test_fake_cpu_devices_stand_in_row_major_order():
    mesh = make_mesh(parse_target("cpu:8"), Axes.parse("data=2,tensor=4"))
    assert dict(mesh.shape) == {"data": 2, "tensor": 4}
    assert [device.id for device in mesh.devices.flat] == list(range(8))


@pytest.mark.parametrize("text, axes", AHEAD_OF_TIME)
def test_a_mesh_has_the_devices_that_the_target_counts_and_the_domains_that_it_tells(text, axes):
    target, axes = parse_target(text), Axes.parse(axes)
    mesh = make_mesh(target, axes)
    assert mesh.devices.shape == axes.sizes
    assert len(set(mesh.devices.flat)) == target.devices
    np.testing.assert_array_equal(domains(target, axes), [_domain(device) for device in mesh.devices.flat])


def _domain(device) -> int:
    return device.process_index if device.platform != "tpu" else getattr(device, "slice_index", 0)


@needs_gpu
def test_two_meshes_of_one_target_are_equal():
    target, axes = parse_target("gpu:h100:1x8"), Axes.parse("data=8")
    assert make_mesh(target, axes) == make_mesh(target, axes)


def test_more_fake_devices_than_jax_started_with_are_refused():
    with pytest.raises(UsageError, match="needs 64 fake CPU devices and JAX has started with 8"):
        make_mesh(parse_target("cpu:64"), Axes.parse("data=64"))


def test_a_mesh_of_another_size_than_the_target_is_refused():
    with pytest.raises(UsageError, match="mesh data=4 has 4 devices and target cpu:8 has 8"):
        make_mesh(parse_target("cpu:8"), Axes.parse("data=4"))


def test_a_mesh_of_another_size_than_the_attached_devices_is_refused():
    with pytest.raises(UsageError, match=r"mesh data=3 has 3 devices and target attached has \d+; make them equal"):
        make_mesh(parse_target("attached"), Axes.parse("data=3"))


@needs_tpu
def test_slices_that_no_axis_spans_are_refused():
    with pytest.raises(UsageError, match="^no axis of mesh a=2,b=2,c=2,d=2 is a multiple of the 4 slices"):
        make_mesh(parse_target("tpu:v5e:2x2*4"), Axes.parse("a=2,b=2,c=2,d=2"))


@needs_tpu
def test_a_topology_that_the_plugin_refuses_is_refused_in_its_words():
    with pytest.raises(UsageError, match="not divisible by the given .*chips_per_host_bounds"):
        make_mesh(parse_target("tpu:v5e:3x5"), Axes.parse("data=15"))


@pytest.mark.parametrize("text, extra", [("gpu:a100:1x2", "gpu"), ("tpu:v6e:2x1", "tpu")])
def test_a_missing_plugin_is_named_with_its_install_command(monkeypatch, text, extra):
    monkeypatch.setattr(plugins, "find_spec", lambda package: None)
    with pytest.raises(UsageError, match=rf"run: pip install 'sharding-lab\[{extra}\]'"):
        make_mesh(parse_target(text), Axes.parse("data=2"))


@pytest.mark.compiles
@pytest.mark.parametrize(
    "text",
    [
        "cpu:8",
        *(pytest.param(f"gpu:{chip}:1x8", marks=needs_gpu) for chip in chip_names("gpu")),
        *(
            pytest.param(f"tpu:{topology}", marks=needs_tpu)
            for topology in ("v4:2x2x2", "v5e:2x4", "v5p:2x2x2", "v6e:2x4", "7x:2x2x1")
        ),
    ],
)
def test_one_process_compiles_a_sharded_product_for_every_chip(text):
    mesh = make_mesh(parse_target(text), Axes.parse("data=2,tensor=4"))
    x_BD = jax.ShapeDtypeStruct((64, 256), jnp.bfloat16, sharding=NamedSharding(mesh, P("data", "tensor")))
    w_DF = jax.ShapeDtypeStruct((256, 512), jnp.bfloat16, sharding=NamedSharding(mesh, P("tensor")))
    out = NamedSharding(mesh, P("data"))
    compiled = jax.jit(jnp.matmul, out_shardings=out).lower(x_BD, w_DF).compile()
    assert "all-reduce" in compiled.as_text()
    assert compiled.memory_analysis().output_size_in_bytes == 32 * 512 * 2


@pytest.mark.skipif(find_spec("jax_cuda13_plugin") is None, reason="the compile-only GPU plugin is not installed")
def test_what_gpu_compilers_need_of_cuda_comes_with_the_extra():
    """On a machine with CUDA nothing would be missed, so that only the files tell."""
    found = plugins.ptxas()
    assert (
        found and found.parents[2].name == "nvidia" and (found.parents[1] / "nvvm/libdevice/libdevice.10.bc").exists()
    )
