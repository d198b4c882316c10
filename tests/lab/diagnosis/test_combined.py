"""Sums that compilers combine: GPUs pack their operands into one flat array, CPUs widen them and name all after the
first. What is wrong with each is found all the same."""

import jax
import jax.numpy as jnp
import pytest

from tests.cases.compiling import ahead_of_time_gpu, array, mesh_on
from tests.lab.diagnosis.diagnosing import diagnosed

pytestmark = pytest.mark.compiles

TARGETS = pytest.mark.parametrize("target", ["cpu:8", pytest.param("gpu:h100:2x4", marks=ahead_of_time_gpu)])


def loss(w_up, w_down, x):
    return jnp.mean(jnp.square(jax.nn.relu(x @ w_up) @ w_down))


def step(target: str, *out):
    mesh = mesh_on(target, fsdp=2, tensor=4)
    w_up = array(mesh, (256, 512), "fsdp", "tensor", dtype=jnp.bfloat16)
    w_down = array(mesh, (512, 256), "tensor", "fsdp", dtype=jnp.bfloat16)
    x = array(mesh, (2048, 256), "fsdp", dtype=jnp.bfloat16)
    function = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)), **({"out_shardings": out} if out else {}))
    return diagnosed(mesh, function, w_up, w_down, x, target=target), (w_up.sharding, w_down.sharding)


@TARGETS
def test_each_gradient_of_a_combined_sum_is_returned_whole_with_the_bytes_of_the_output(target):
    found, shardings = step(target)
    gradients = [f for f in found.findings if f.kind == "given_back_whole"]
    assert sorted((f.sentence.split()[3], f.memory_bytes) for f in gradients) == [("w_down", 65_536), ("w_up", 65_536)]
    assert all(f.axes == ("fsdp",) and f.totals.executions == 1 for f in gradients)
    kept, _ = step(target, None, shardings)
    assert "given_back_whole" not in {f.kind for f in kept.findings}
