"""Programs that keep values in the host's memory, as `lab inspect` compiles them for GPUs."""

import json

import pytest

from lab.compile import sources
from lab.meshes import plugins

PROGRAMS = """
from functools import partial
import jax, jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec as P

OFFLOAD = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[], names_which_can_be_offloaded=["input"], offload_src="device", offload_dst="pinned_host"
)

@partial(jax.checkpoint, policy=OFFLOAD, prevent_cse=False)
def layer(x, w):
    return jnp.tanh(checkpoint_name(x, "input") @ w), None

def build(mesh):
    def array(shape, *spec):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))

    loss = lambda weights, x: jnp.sum(jax.lax.scan(layer, x, weights)[0])
    return jax.jit(jax.grad(loss)), (array((4, 256, 256)), array((1024, 256), "data"))
"""
BY_SHARDING = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

def build(mesh):
    rows = NamedSharding(mesh, P("data"))
    return jax.jit(lambda x: 2 * x), (jax.ShapeDtypeStruct((64, 8), jnp.float32, sharding=rows.with_memory_kind("HOST")),)
""".replace("HOST", "pinned_host")
needs_gpu = pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")


def inspected(lab, path, program):
    (path / "step.py").write_text(program)
    answer = lab("inspect", "step.py:build", "--mesh", "data=8", "--target", "gpu:h100:1x8", "--json")
    assert answer.status == 0, answer.err
    return json.loads(answer.out)


@pytest.mark.compiles
@needs_gpu
def test_inputs_of_four_layers_wait_on_the_host_and_are_copied_there_and_back(lab, tmp_path):
    found = inspected(lab, tmp_path, PROGRAMS)
    inputs = 4 * (1024 // 8) * 256 * 4
    assert found["memory"]["host_temporaries"] == inputs
    assert found["host_copies"] == {"to_host": inputs, "to_device": inputs, "lower_bound": False}
    assert not found["findings"] and "no_memory_kinds" not in found["note_kinds"]


@pytest.mark.compiles
@needs_gpu
def test_of_arguments_that_a_sharding_places_on_the_host_it_is_said_that_they_count_as_the_devices(lab, tmp_path):
    found = inspected(lab, tmp_path, BY_SHARDING)
    assert "no_memory_kinds" in found["note_kinds"]


@pytest.mark.parametrize(("program", "names"), [(PROGRAMS, False), (BY_SHARDING, True)])
def test_a_builders_own_file_says_whether_it_names_memory_kinds(tmp_path, monkeypatch, program, names):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "placed.py").write_text(program)
    assert sources.names_memory_kinds(sources.builder("placed.py:build")) is names
