"""`jax.lax.with_sharding_constraint` outside of jit, as a builder and flax.nnx use it, on devices that only compile."""

import json

import pytest

from lab.meshes import plugins

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed"),
]

PROGRAMS = """
import jax, jax.numpy as jnp
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

def columns(x, up, down):
    return jnp.sum(jax.nn.relu(x @ up) @ down)

def build(_):
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    def array(shape, *spec):
        return jax.lax.with_sharding_constraint(jnp.ones(shape), NamedSharding(mesh, P(*spec)))
    return jax.jit(columns), (array((64, 32), "data"), array((32, 64), None, "model"), array((64, 32), "model"))

def module(mesh):
    def split(*spec):
        return nnx.with_partitioning(nnx.initializers.lecun_normal(), spec)
    with jax.set_mesh(mesh):
        up = nnx.Linear(32, 64, use_bias=False, kernel_init=split(None, "model"), rngs=nnx.Rngs(0))
        down = nnx.Linear(64, 32, use_bias=False, kernel_init=split("model", None), rngs=nnx.Rngs(1))
    x = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    return jax.jit(columns), (x, up.kernel[...], down.kernel[...])

def without_a_mesh(mesh):
    return jax.jit(jnp.sum), (jax.lax.with_sharding_constraint(jax.device_put(jnp.ones((64, 32))), P("data")),)
"""


@pytest.mark.parametrize("build", ["build", "module"])
def test_weights_that_are_constrained_as_they_are_made_stay_split(lab, tmp_path, build):
    (tmp_path / "step.py").write_text(PROGRAMS)
    answer = lab("inspect", f"step.py:{build}", "--mesh", "data=2,model=4", "--target", "gpu:h100:1x8", "--json")
    assert answer.status == 0, answer.err
    found = json.loads(answer.out)
    assert found["findings"] == []
    assert found["memory"]["arguments"] == 4 * (64 * 32 // 2 + 2 * 32 * 64 // 4)
    assert any("model" in t["axes"] for t in found["transfers"])


def test_a_spec_without_a_mesh_is_refused_as_jax_refuses_it(lab, tmp_path):
    (tmp_path / "step.py").write_text(PROGRAMS)
    answer = lab("inspect", "step.py:without_a_mesh", "--mesh", "data=2,model=4", "--target", "gpu:h100:1x8")
    assert answer.status == 2 and "mesh" in answer.err.splitlines()[-1]
