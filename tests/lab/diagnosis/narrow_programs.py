"""Programs that mean to send 8 bits, of which the wire carries 16 or 32; and some that lose nothing."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

F8, BF16, F32 = jnp.float8_e4m3fn, jnp.bfloat16, jnp.float32
Program = tuple[Callable[..., Any], tuple[Any, ...]]
ROWS, WHOLE = P("fsdp", None), P()


def given(mesh: Mesh, *sizes: int, dtype: Any = BF16, spec: P = ROWS) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, spec))


def held(mesh: Mesh, x: jax.Array, *spec: Any) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


def on_ranks(mesh: Mesh, function: Callable[..., Any], ins: Any = ROWS, out: Any = WHOLE) -> Callable[..., Any]:
    return jax.shard_map(function, mesh=mesh, in_specs=ins, out_specs=out, check_vma=False)


def weight_cast_to_f8(mesh: Mesh) -> Program:
    """Asked for whole as float8: the compiler gathers what it is cast of."""

    def product(w, x):
        return x @ held(mesh, (w * 16).astype(F8)).astype(BF16)

    return product, (given(mesh, 1024, 1024), given(mesh, 4096, 1024))


def weight_cast_to_int8(mesh: Mesh) -> Program:
    def product(w, x):
        q = jnp.round(w.astype(F32) * 127).astype(jnp.int8)
        return x @ held(mesh, q).astype(BF16)

    return product, (given(mesh, 1024, 1024), given(mesh, 4096, 1024))


def weight_scaled_by_its_largest(mesh: Mesh) -> Program:
    """One scale, computed from the weight."""

    def product(w, x):
        scale = jnp.max(jnp.abs(w)).astype(F32) / 448
        q = held(mesh, (w / scale).astype(F8))
        return x @ (q.astype(F32) * scale).astype(BF16)

    return product, (given(mesh, 1024, 1024), given(mesh, 4096, 1024))


def weight_scaled_in_blocks(mesh: Mesh) -> Program:
    """A scale for each 128 columns of a row."""

    def product(w, x):
        w_RBC = w.reshape(1024, 8, 128).astype(F32)
        scale = jnp.max(jnp.abs(w_RBC), -1, keepdims=True) / 448
        q = held(mesh, (w_RBC / scale).astype(F8))
        whole = (q.astype(F32) * held(mesh, scale)).astype(BF16).reshape(1024, 1024)
        return x @ whole

    return product, (given(mesh, 1024, 1024), given(mesh, 4096, 1024))


def weight_gathered_then_cast(mesh: Mesh) -> Program:
    """Written out, and in the wrong order."""

    def gathered(w):
        return jax.lax.all_gather(w, "fsdp", tiled=True).astype(F8)

    return on_ranks(mesh, gathered), (given(mesh, 1024, 1024),)


def tokens_redistributed_wide(mesh: Mesh) -> Program:
    """Rounded to float8, each with a scale, and asked for by expert where they were split by token."""

    def product(x_TED, w_EDF):
        scale_TE1 = jnp.max(jnp.abs(x_TED), -1, keepdims=True) / 448
        x_TED = held(mesh, (x_TED / scale_TE1).astype(F8).astype(BF16) * scale_TE1, None, "fsdp", None)
        return jnp.einsum("TED,EDF->TEF", x_TED, w_EDF)

    return product, (given(mesh, 64, 8, 1024), given(mesh, 8, 1024, 128))


def blocks_flattened_first(mesh: Mesh) -> Program:
    """Rounded in blocks that are rows of their own, and gathered as a matrix."""

    def product(w, x):
        w_RBC = w.reshape(-1, 8, 128)
        scale = jnp.max(jnp.abs(w_RBC), -1, keepdims=True) / 448
        rounded = ((w_RBC / scale).astype(F8).astype(BF16) * scale).reshape(w.shape)
        return x @ jax.lax.all_gather(rounded, "fsdp", tiled=True)

    return on_ranks(mesh, product, (ROWS, ROWS), ROWS), (given(mesh, 1024, 1024), given(mesh, 4096, 1024))


def int8_weight_dequantised_first(mesh: Mesh) -> Program:
    """Stored in int8 with one scale; asked for whole in bfloat16."""

    def product(q, scale, x):
        return x @ held(mesh, q.astype(BF16) * scale)

    return product, (
        given(mesh, 1024, 1024, dtype=jnp.int8),
        given(mesh, dtype=BF16, spec=P()),
        given(mesh, 4096, 1024),
    )


def f8_weight_dequantised_in_blocks(mesh: Mesh) -> Program:
    """Stored in float8 with a scale a row; written out, dequantised before the gather."""

    def gathered(q, scale):
        return jax.lax.all_gather(q.astype(BF16) * scale, "fsdp", tiled=True)

    return on_ranks(mesh, gathered, (ROWS, ROWS)), (given(mesh, 1024, 1024, dtype=F8), given(mesh, 1024, 1))


def layers_scanned(mesh: Mesh) -> Program:
    """Stacked float8 weights, one a step of the loop, widened before they are whole."""

    def stacked(q_LDF, x):
        def layer(x, q_DF):
            return jnp.tanh(x @ held(mesh, q_DF.astype(BF16) / 16)), None

        return jax.lax.scan(layer, x, q_LDF)[0]

    layers = given(mesh, 4, 1024, 1024, dtype=F8, spec=P(None, "fsdp", None))
    return stacked, (layers, given(mesh, 4096, 1024))


def cache_dequantised_first(mesh: Mesh) -> Program:
    """Keys in int8, split along the sequence, gathered for the scores in bfloat16."""

    def scores(q_BSH, scale_BS1, x_BH):
        k_BSH = held(mesh, q_BSH.astype(BF16) * scale_BS1)
        return jnp.einsum("bh,bsh->bs", x_BH, k_BSH)

    along = P(None, "fsdp", None)
    return scores, (
        given(mesh, 8, 2048, 128, dtype=jnp.int8, spec=along),
        given(mesh, 8, 2048, 1, spec=along),
        given(mesh, 8, 128, spec=P()),
    )


def tokens_dispatched_wide(mesh: Mesh) -> Program:
    """Quantised for the all-to-all of experts, and dequantised before it."""

    def dispatched(x_EC, w_CC):
        scale = jnp.max(jnp.abs(x_EC)).astype(F32) / 448
        q_EC = (x_EC / scale).astype(F8)
        y_EC = jax.lax.all_to_all((q_EC.astype(F32) * scale).astype(BF16), "fsdp", 0, 0, tiled=True)
        return y_EC @ w_CC

    return on_ranks(mesh, dispatched, (ROWS, P()), ROWS), (given(mesh, 4096, 1024), given(mesh, 1024, 1024, spec=P()))


def activation_passed_on_wide(mesh: Mesh) -> Program:
    """A ring whose messages are rounded to float8 and travel in bfloat16."""

    def passed(x, w):
        q = (x * 8).astype(F8)
        y = jax.lax.ppermute(q.astype(BF16), "fsdp", [(i, (i + 1) % 8) for i in range(8)])
        return (y / 8) @ w

    return on_ranks(mesh, passed, (ROWS, P()), ROWS), (given(mesh, 4096, 1024), given(mesh, 1024, 1024, spec=P()))


def gradient_scattered_wide(mesh: Mesh) -> Program:
    """A gradient is quantised, dequantised, and summed in float32: no byte is spared."""

    def summed(g):
        scale = jnp.max(jnp.abs(g)) / 127
        q = jnp.round(g / scale).astype(jnp.int8)
        return jax.lax.psum_scatter(q.astype(F32) * scale, "fsdp", tiled=True)

    return on_ranks(mesh, summed, ROWS, ROWS), (given(mesh, 8192, 1024, dtype=F32),)


def quantised_sum_in_float32(mesh: Mesh) -> Program:
    """The same of an all-reduce."""

    def summed(g):
        scale = jnp.max(jnp.abs(g)) / 448
        return jax.lax.psum((g / scale).astype(F8).astype(F32) * scale, "fsdp")

    return on_ranks(mesh, summed), (given(mesh, 8192, 1024, dtype=F32),)


def gradient_scattered_in_blocks(mesh: Mesh) -> Program:
    """A scale a row, each of which goes with its row."""

    def summed(q, scale):
        return jax.lax.psum_scatter(q.astype(F32) * scale, "fsdp", tiled=True)

    rows = given(mesh, 8192, 1024, dtype=jnp.int8), given(mesh, 8192, 1, dtype=F32)
    return on_ranks(mesh, summed, (ROWS, ROWS), ROWS), rows


LOSING = (
    weight_cast_to_f8,
    weight_cast_to_int8,
    weight_scaled_by_its_largest,
    weight_scaled_in_blocks,
    weight_gathered_then_cast,
    int8_weight_dequantised_first,
    f8_weight_dequantised_in_blocks,
    layers_scanned,
    cache_dequantised_first,
    tokens_dispatched_wide,
    activation_passed_on_wide,
    gradient_scattered_wide,
    gradient_scattered_in_blocks,
    quantised_sum_in_float32,
)


def weight_pinned_narrow(mesh: Mesh) -> Program:
    """Held where it is, as float8, and then asked for whole."""

    def product(w, x):
        q = held(mesh, (w * 16).astype(F8), "fsdp", None)
        return x @ held(mesh, q).astype(BF16)

    return product, (given(mesh, 1024, 1024), given(mesh, 4096, 1024))


def weight_used_in_two_types(mesh: Mesh) -> Program:
    """Written out: it is needed in bfloat16 as well."""

    def gathered(w):
        whole = jax.lax.all_gather(w, "fsdp", tiled=True)
        return whole.astype(F8), whole * 2

    return on_ranks(mesh, gathered, out=(P(), P())), (given(mesh, 1024, 1024),)


def sum_of_float32(mesh: Mesh) -> Program:
    def summed(g):
        return jax.lax.psum_scatter(g * 0.5, "fsdp", tiled=True)

    return on_ranks(mesh, summed, ROWS, ROWS), (given(mesh, 8192, 1024, dtype=F32),)


def int8_added_to(mesh: Mesh) -> Program:
    """Made of more than a value of 8 bits and its scale."""

    def gathered(q, x):
        return jax.lax.all_gather(q.astype(BF16) + x, "fsdp", tiled=True)

    return on_ranks(mesh, gathered, (ROWS, ROWS)), (given(mesh, 1024, 1024, dtype=jnp.int8), given(mesh, 1024, 1024))


def gathered_under_one_name(mesh: Mesh) -> Program:
    """Float8, its scales, what is cast to float8 too late, and float32 that is needed as it is."""

    def gathered(w, late, wide):
        whole = partial(jax.lax.all_gather, axis_name="fsdp", tiled=True)
        w_RBC = w.reshape(w.shape[0], -1, 8)
        scale = jnp.max(jnp.abs(w_RBC), -1, keepdims=True) / 448
        values = whole((w_RBC / scale).astype(F8)).astype(F32) * whole(scale)
        return values, whole(late).T.astype(F8), whole(wide)

    sizes = (1024, 1024), (512, 1024), (512, 512)
    return on_ranks(mesh, gathered, (ROWS,) * 3, (P(),) * 3), tuple(given(mesh, *each, dtype=F32) for each in sizes)


LOSING_NOTHING = (weight_pinned_narrow, weight_used_in_two_types, sum_of_float32, int8_added_to)
