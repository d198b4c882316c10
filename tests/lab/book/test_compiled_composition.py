"""Chapters 24 and 25 compiled: whose work tensor parallelism divides, and how saved activations grow with the
length."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import lab
from lab.book.composition import stage_compute_s
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target

pytestmark = pytest.mark.compiles

EMBED, MLP, TOKENS = 64, 256, 128


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_tensor_parallelism_divides_the_flops_of_a_stage_by_t(tensor):
    mesh = make_mesh(parse_target(f"cpu:{tensor}"), Axes.of({"tensor": tensor}))
    shapes = ((EMBED, MLP), P(None, "tensor")), ((MLP, EMBED), P("tensor")), ((TOKENS, EMBED), P())
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec)) for shape, spec in shapes]

    def both_passes(*arguments):
        out_TD, backward = jax.vjp(lambda w_DF, w_FD, x_TD: x_TD @ w_DF @ w_FD, *arguments)
        return out_TD, backward(out_TD)

    ledger = lab.inspect(jax.jit(both_passes).lower(*arrays).compile(), mesh=mesh)
    assert ledger.flops == stage_compute_s(2 * EMBED * MLP, TOKENS, 1, tensor, 1.0)


def attention(q_SK: jax.Array, k_SK: jax.Array, v_SK: jax.Array) -> jax.Array:
    return jax.nn.softmax(q_SK @ k_SK.T) @ v_SK


def by_blocks(q_SK: jax.Array, k_SK: jax.Array, v_SK: jax.Array) -> jax.Array:
    """64 queries at a time, whose scores are computed anew in the backward pass."""
    q_NBK = q_SK.reshape(-1, 64, q_SK.shape[1])
    return jax.lax.map(jax.checkpoint(lambda q_BK: attention(q_BK, k_SK, v_SK)), q_NBK).reshape(q_SK.shape)


def temporaries(function, length: int) -> int:
    """Bytes beyond arguments and results of a gradient."""
    x_SK = jax.ShapeDtypeStruct((length, 16), jnp.float32)
    gradient = jax.jit(jax.grad(lambda *qkv: jnp.sum(function(*qkv) ** 2), argnums=(0, 1, 2)))
    return gradient.lower(x_SK, x_SK, x_SK).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(("function", "growth"), [(attention, 4), (by_blocks, 2)])
def test_twice_the_length_takes_twice_the_memory_by_blocks_and_four_times_with_all_scores(function, growth):
    assert temporaries(function, 2048) / temporaries(function, 1024) == pytest.approx(growth, rel=0.1)
