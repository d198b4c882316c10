"""What compilers do with values of 8 bits."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import lab
from lab.settle import named_refusal
from lab.settle.behaviours.behaviour import INSTALLED
from tests.cases.compiling import ahead_of_time_gpu, ahead_of_time_tpu, array, cpu, mesh_on, tpu

pytestmark = pytest.mark.compiles

F8, N, WHOLE = jnp.float8_e4m3fn, 65536, P()


def gpu(**axes):
    return mesh_on("gpu:h100:1x8", **axes)


def sent(mesh, function, dtype=jnp.float32, out=WHOLE):
    """(kind, dtype, payload) of each transfer of a function of one device's part of [N]."""
    on_ranks = jax.shard_map(function, mesh=mesh, in_specs=P("data"), out_specs=out, check_vma=False)
    ledger = lab.inspect(on_ranks, array(mesh, (N,), "data", dtype=dtype), mesh=mesh)
    return [(str(t.kind), t.dtype, t.payload_bytes) for t in ledger.transfers]


def summed_rounded(narrow, held=lambda x: x):
    return lambda x: jax.lax.psum(held(x.astype(narrow)).astype(jnp.float32), "data")


@ahead_of_time_gpu
def test_gpus_drop_a_float_that_is_rounded_and_widened_again():
    """G14."""

    def text(function):
        mesh = gpu(data=8)
        on_ranks = jax.shard_map(function, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)
        return jax.jit(on_ranks).lower(array(mesh, (N,), "data")).compile().as_text()

    assert "f8e4m3fn[" not in text(summed_rounded(F8))
    assert "f8e4m3fn[" in text(summed_rounded(F8, jax.lax.optimization_barrier))
    assert "s8[" in text(summed_rounded(jnp.int8))


@ahead_of_time_gpu
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int8"])
def test_gpus_sum_8_bits_in_8_bits(dtype):
    """G15."""
    found = sent(gpu(data=8), lambda x: jax.lax.psum(x, "data"), dtype)
    assert found == [
        ("all_reduce", {"float8_e4m3fn": "f8e4m3fn", "float8_e5m2": "f8e5m2", "int8": "s8"}[dtype], N // 8)
    ]


@ahead_of_time_tpu
@pytest.mark.parametrize("dtype", [F8, jnp.int8])
def test_tpus_scatter_a_sum_of_8_bits_as_an_all_reduce_of_lanes_of_32(dtype):
    """T21."""

    def scattered(x):
        return jax.lax.psum_scatter(x, "data", tiled=True)

    assert sent(tpu(data=8), scattered, dtype, P("data")) == [("all_reduce", "u32", N // 8)]


@ahead_of_time_tpu
@ahead_of_time_gpu
def test_tpus_move_a_value_in_the_type_that_it_has_there():
    """T22; GPUs move the narrow one."""

    def cast_after(x):
        return jax.lax.all_gather(x, "data", tiled=True).astype(F8)

    assert sent(tpu(data=8), cast_after, jnp.bfloat16) == [("all_gather", "bf16", 2 * N)]
    assert sent(gpu(data=8), cast_after, jnp.bfloat16) == [("all_gather", "f8e4m3fn", N)]


def test_fake_cpus_widen_floats_of_8_bits_and_no_integers():
    """C8."""

    def gathered(x):
        return jax.lax.all_gather(x, "data", tiled=True)

    assert sent(cpu(data=8), gathered, F8) == [("all_gather", "f16", 2 * N)]
    assert sent(cpu(data=8), gathered, jnp.int8) == [("all_gather", "s8", N)]


def block_scaled(mesh):
    sizes = ((1, 256, 512), (1, 256, 512), (1, 256, 16), (1, 256, 16))
    dtypes = (F8, F8, jnp.float8_e8m0fnu, jnp.float8_e8m0fnu)
    shapes = (array(mesh, size, dtype=dtype) for size, dtype in zip(sizes, dtypes, strict=True))
    return jax.jit(jax.nn.scaled_matmul).lower(*shapes)


@ahead_of_time_gpu
@pytest.mark.parametrize("chip", ["h100", "b200"])
def test_gpus_dequantise_blocks_that_have_scales_of_their_own_but_b200s_with_jax_0_11(chip):
    """G16: both matrices lie in memory once more, wide."""
    text = block_scaled(mesh_on(f"gpu:{chip}:1x1", data=1)).compile().as_text()
    is_dequantised = len(re.findall(r"= (?:f32|bf16)\[1,256,512\]\S* fusion\(", text)) >= 2
    is_native = "__cudnn$blockScaledDot" in text
    assert (is_dequantised, is_native) == ((False, True) if chip == "b200" and INSTALLED >= (0, 11) else (True, False))


@ahead_of_time_tpu
def test_tpus_refuse_blocks_that_have_scales_of_their_own():
    """T23."""
    with pytest.raises(jax.errors.JaxRuntimeError) as refusal:
        block_scaled(mesh_on("tpu:v5p:2x2x1", data=4)).compile()
    assert named_refusal(str(refusal.value), "tpu").startswith("T23: ")
