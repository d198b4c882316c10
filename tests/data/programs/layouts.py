"""Arrays that move: from one sharding to another, along a sharded dim, through what the partitioner cannot split."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from tests.cases.compiling import array, compiled, pinned
from tests.data.program import BF16, C64, F32, exchange, gather, kept, permute, reduce

INDEX = jax.ShapeDtypeStruct((), jnp.int32)
DEVICES = 8


def doubled(x):
    return 2 * x


CUBE = 8 * 16 * 32 * F32
IN_TWO_STEPS = [gather("x", CUBE // 2), gather("y", CUBE)]


@kept("c01", "x=4,y=2", cpu=IN_TWO_STEPS, gpu=IN_TWO_STEPS, tpu=[gather("x+y", CUBE)])
def clashing_tilings(mesh):
    before, after = P("y", None, "x"), P(None, ("x", "y"), None)
    a, b = array(mesh, (8, 16, 32), *before), array(mesh, (8, 16, 32), *after)
    return compiled(mesh, lambda a, b: b + pinned(mesh, jnp.sin(a), *after), a, b, out=after)


SIGNALS = 16 * 64 * C64


def fft(x):
    return jnp.fft.fft(x, axis=1)


@kept("c02", "d=8", cpu=[gather("d", SIGNALS, "c64")], gpu=[gather("d", SIGNALS, "c64")], tpu=[])
def fft_of_a_sharded_batch(mesh):
    """TPUs compile it to matrix products, which are split."""
    return compiled(mesh, fft, array(mesh, (16, 64), "d", dtype=jnp.complex64), out=P("d"))


@kept("c02", "d=8", cpu=[], gpu=[])
def fft_in_shard_map(mesh):
    mapped = jax.shard_map(fft, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    return compiled(mesh, mapped, array(mesh, (16, 64), "d", dtype=jnp.complex64))


BATCH, COLUMNS, K = 4, 1024, 4
WHOLE = [gather("d", BATCH * COLUMNS * F32)]
ONE_OF_EACH_DEVICE = BATCH * DEVICES * F32
BEST_OF_EACH_DEVICE = BATCH * DEVICES * K * F32


def along_columns(function, out, mesh):
    return compiled(mesh, function, array(mesh, (BATCH, COLUMNS), None, "d"), out=out)


kept(
    "c05",
    "d=8",
    name="top_k",
    cpu=WHOLE,
    gpu=[gather("d", BEST_OF_EACH_DEVICE)],  # Values alone: as indices both compilers give zeros.
    tpu=[gather("d", BEST_OF_EACH_DEVICE)],
)(partial(along_columns, lambda a: jax.lax.top_k(a, K), P()))
kept(
    "c05",
    "d=8",
    name="sort",
    cpu=WHOLE,
    gpu=WHOLE,
    tpu=[*WHOLE, gather("d", BATCH * COLUMNS * F32, "s32")],  # TPUs sort floats by an integer key.
)(partial(along_columns, lambda a: jnp.sort(a, axis=1), P(None, "d")))
kept(
    "c05",
    "d=8",
    name="cumsum",
    cpu=WHOLE,
    gpu=WHOLE,
    tpu=[  # The sum of each device, and those of two blocks before and of one.
        gather("d", ONE_OF_EACH_DEVICE),
        permute("d", BATCH * 2 * F32),
        permute("d", BATCH * F32),
    ],
)(partial(along_columns, lambda a: jnp.cumsum(a, axis=1), P(None, "d")))
VALUES_AND_INDICES = [gather("d", ONE_OF_EACH_DEVICE), gather("d", ONE_OF_EACH_DEVICE, "s32")]
kept(
    "c05",
    "d=8",
    name="argmax",
    cpu=VALUES_AND_INDICES,
    gpu=[gather("d", 2 * ONE_OF_EACH_DEVICE, "s32+f32")],
    tpu=VALUES_AND_INDICES,
)(partial(along_columns, lambda a: jnp.argmax(a, axis=1), P()))
CANDIDATES = [gather("d", BEST_OF_EACH_DEVICE), gather("d", BEST_OF_EACH_DEVICE, "s32")]


@kept("c05", "d=8", cpu=CANDIDATES, gpu=[gather("d", 2 * BEST_OF_EACH_DEVICE, "f32+s32")], tpu=CANDIDATES)
def top_k_in_two_stages(mesh):
    def best_of_candidates(a_BN):
        values_BK, places_BK = jax.lax.top_k(a_BN, K)
        places_BK += jax.lax.axis_index("d") * a_BN.shape[1]
        values_BK, places_BK = (jax.lax.all_gather(x, "d", axis=1, tiled=True) for x in (values_BK, places_BK))
        best_BK, chosen_BK = jax.lax.top_k(values_BK, K)
        return best_BK, jnp.take_along_axis(places_BK, chosen_BK, 1)

    mapped = jax.shard_map(best_of_candidates, mesh=mesh, in_specs=P(None, "d"), out_specs=P(), check_vma=False)
    return compiled(mesh, mapped, array(mesh, (BATCH, COLUMNS), None, "d"))


ROWS, WIDTH = 64, 32
MATRIX, ROW, SHARD = ROWS * WIDTH * F32, WIDTH * F32, ROWS * WIDTH * F32 // DEVICES


def over_rows(function, mesh, *more):
    return compiled(mesh, function, array(mesh, (ROWS, WIDTH), "d"), *more, out=P("d"))


for name, function, rows in (
    ("roll_by_1", lambda a: jnp.roll(a, 1, axis=0), [1]),
    ("roll_by_11", lambda a: jnp.roll(a, 11, axis=0), [3, 5]),  # 11 are a shard of 8 and 3.
    ("shift_without_wrap", lambda a: jnp.pad(a, ((1, 0), (0, 0)))[:-1], [1]),
):
    sends = [permute("d", n * ROW) for n in rows]
    kept("c06", "d=8", name=name, cpu=sends, gpu=sends, tpu=sends)(partial(over_rows, function))

ROLLED = [exchange("d", SHARD), exchange("d", 2 * SHARD), gather("d", 2 * MATRIX)]


@kept("c06", "d=8", cpu=ROLLED, gpu=ROLLED, tpu=ROLLED)
def roll_by_a_traced_shift(mesh):
    return over_rows(lambda a, k: jnp.roll(a, k, axis=0), mesh, INDEX)


def drawn(is_partitionable, mesh):
    with jax.threefry_partitionable(is_partitionable):
        return compiled(
            mesh,
            lambda key: jax.random.normal(key, (ROWS, WIDTH)),
            jax.ShapeDtypeStruct((2,), jnp.uint32),
            out=P("x", "y"),
        )


kept("c12", "x=4,y=2", name="random_numbers", cpu=[], gpu=[])(partial(drawn, True))
MOVED_BITS = [permute("x", 2 * SHARD, "u32"), 3 * permute("x", SHARD, "u32")]
kept(
    "c12",
    "x=4,y=2",
    name="random_numbers_in_order",  # The bits are drawn in two halves of the flat array.
    cpu=[*MOVED_BITS, 2 * gather("x", MATRIX // 2, "u32")],
    gpu=[*MOVED_BITS, gather("x", MATRIX, "u32")],
    tpu=[
        permute("x", SHARD, "u32"),
        3 * permute("x", SHARD // 2, "u32"),
        exchange("x", SHARD, "u32"),
        2 * exchange("x", SHARD // 2, "u32"),
    ],
)(partial(drawn, False))


def on_matrices(function, mesh):
    return compiled(mesh, function, array(mesh, (16, 8, 8), "b"), out=P("b"))


for name, function, on_tpu in (
    ("cholesky", jnp.linalg.cholesky, []),
    ("qr", lambda a: jnp.linalg.qr(a)[0], []),
    ("inverse", jnp.linalg.inv, [gather("b", 16 * 8 * 8 * F32)]),  # The TPU's own LU takes the whole batch.
):
    kept("c18", "b=8", name=f"{name}_of_a_sharded_batch", cpu=[], gpu=[], tpu=on_tpu)(partial(on_matrices, function))


def on_the_host(x):
    def twice(value):
        return 2 * np.asarray(value)

    return jax.pure_callback(twice, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")


@kept("c19", "d=8", cpu=[gather("d", MATRIX), reduce("d", MATRIX)])
def callback(mesh):
    return over_rows(on_the_host, mesh)


@kept("c19", "d=8", cpu=[])
def callback_in_shard_map(mesh):
    return over_rows(jax.shard_map(on_the_host, mesh=mesh, in_specs=P("d"), out_specs=P("d")), mesh)


@kept("c19", "d=8", cpu=[gather("d", 32 * 32 * F32)])
def foreign_function(mesh):
    def factor(a):
        results = (jax.ShapeDtypeStruct(a.shape, a.dtype), jax.ShapeDtypeStruct((), jnp.int32))
        return jax.ffi.ffi_call("lapack_spotrf_ffi", results)(a, uplo=np.uint8(ord("L")))[0]

    return compiled(mesh, factor, array(mesh, (32, 32), "d"), out=P("d"))


@kept("c19", "d=8", tpu=[])
def pallas_kernel_in_shard_map(mesh):
    def kernel(x_ref, o_ref):
        o_ref[...] = 2 * x_ref[...]

    def twice(x):
        return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    mapped = jax.shard_map(twice, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    return compiled(mesh, mapped, array(mesh, (512, 256), "d"), out=P("d"))


def resharded(before, after, mesh):
    return compiled(mesh, doubled, array(mesh, (ROWS, WIDTH), *before), out=P(*after))


for name, before, after, sends in (
    ("other_order_of_axes", [("x", "y")], [("y", "x")], [permute("x+y", SHARD)]),
    ("inner_axis_dropped", [("x", "y")], ["x"], [gather("y", 2 * SHARD)]),
    ("unlike_axes_swapped", ["x", "y"], ["y", "x"], [exchange("?", SHARD), permute("x+y", SHARD)]),  # Half of x.
    ("axis_to_another_dim", ["x"], [None, "x"], [exchange("x", MATRIX // 4)]),
):
    kept("c26", "x=4,y=2", name=name, cpu=sends, gpu=sends, tpu=sends)(partial(resharded, before, after))


@kept("c26", "x=4,y=2", cpu=[reduce("y", SHARD)])
def psum_on_a_reversed_mesh(mesh):
    mesh = Mesh(mesh.devices[::-1, ::-1], mesh.axis_names)
    psum = jax.shard_map(lambda b: jax.lax.psum(b, "y"), mesh=mesh, in_specs=P("x", "y"), out_specs=P("x"))
    return compiled(mesh, psum, array(mesh, (ROWS, WIDTH), "x", "y"))


A, TABLE = ((16, 32), ("x", "y")), ((64, 32), ("y",))


def explicit(function, arguments, mesh):
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        return compiled(mesh, function, *(array(mesh, shape, *spec) for shape, spec in arguments))


LOCAL = 4 * 16 * F32
for name, function, arguments, sends in (
    ("explicit_sum", lambda a: a.sum(1), [A], [reduce("y", 4 * F32)]),
    ("explicit_reshape", lambda a: a.reshape(-1), [A], [exchange("y", LOCAL)]),
    (
        "explicit_concatenate",
        lambda a: jnp.concatenate([a, a], 1),
        [A],
        [exchange("y", LOCAL), exchange("y", 2 * LOCAL)],
    ),
    (
        "explicit_matmul",
        lambda a, t: jnp.dot(a, t[:32], out_sharding=P("x", None)),
        [A, TABLE],
        [reduce("y", 4 * 32 * F32), permute("y", 16 * 32 * F32)],
    ),
):
    kept("c37", "x=4,y=2", name=name, cpu=sends, gpu=sends)(partial(explicit, function, arguments))


ALL = [gather("d", MATRIX)]


def updated(function, mesh):
    x, u, i = array(mesh, (ROWS, WIDTH), "d"), array(mesh, (3, WIDTH)), array(mesh, (3,), dtype=jnp.int32)
    return compiled(mesh, function, x, u, i, INDEX, out=P("d"))


for name, function, on_cpu, elsewhere in (
    ("update_of_a_slice", lambda x, u, i, k: x.at[0:3].set(u), ALL, []),
    ("update_of_a_dynamic_slice", lambda x, u, i, k: jax.lax.dynamic_update_slice(x, u, (k, 0)), ALL, ALL),
    ("update_at_indices", lambda x, u, i, k: x.at[i].set(u), [], []),
):
    kept("c41", "d=8", name=name, cpu=on_cpu, gpu=elsewhere, tpu=elsewhere)(partial(updated, function))


def taken(function, out, mesh):
    x, i, p = array(mesh, (ROWS, WIDTH), "d"), array(mesh, (3,), dtype=jnp.int32), array(mesh, (ROWS,), dtype=jnp.int32)
    return compiled(mesh, function, x, i, p, INDEX, out=out)


for name, function, out, sends in (
    ("row_0", lambda x, i, p, k: x[0], P(), [reduce("d", ROW)]),
    ("row_k", lambda x, i, p, k: x[k], P(), ALL),
    ("first_8_rows", lambda x, i, p, k: x[0:8], P(), [gather("d", 8 * ROW), 7 * permute("d", ROW)]),
    ("rows_backwards", lambda x, i, p, k: x[::-1], P("d"), [permute("d", SHARD)]),
    ("rows_at_indices", lambda x, i, p, k: x[i], P(), [reduce("d", 3 * ROW)]),
    ("rows_permuted", lambda x, i, p, k: x[p], P("d"), ALL),
):
    kept("c41", "d=8", name=name, cpu=sends, gpu=sends, tpu=sends)(partial(taken, function, out))

PADDED = [gather("d", 16 * ROW)]


@kept("c45", "d=8", cpu=PADDED, gpu=PADDED, tpu=PADDED)
def ten_rows_on_eight_devices(mesh):
    return compiled(mesh, lambda a: jnp.sin(pinned(mesh, a, "d")), array(mesh, (10, WIDTH)), out=P())


APPENDED = [exchange("d", 8 * ROW), exchange("d", 9 * ROW), gather("d", 72 * ROW)]
APPENDED_IN_BF16 = [exchange("d", 8 * ROW // 2, "bf16"), exchange("d", 9 * ROW // 2, "bf16"), gather("d", 72 * ROW)]


@kept("c45", "d=8", cpu=APPENDED, gpu=APPENDED, tpu=APPENDED_IN_BF16)
def four_rows_appended_to_64(mesh):
    """68 rows are padded to 9 on each device."""
    a, b, w = array(mesh, (ROWS, WIDTH), "d"), array(mesh, (4, WIDTH)), array(mesh, (WIDTH, WIDTH))
    return compiled(mesh, lambda a, b, w: jnp.concatenate([a, b]) @ w, a, b, w)


def convolution(x_spec, k_spec, stride, mesh):
    x, k = array(mesh, (8, 16, 32, 8), *x_spec), array(mesh, (16, 16, 3, 3), *k_spec)

    def convolved(x, k):
        return jax.lax.conv_general_dilated(x, k, (stride, stride), ((1, 1), (1, 1)))

    return compiled(mesh, convolved, x, k)


KERNEL, HALO = 16 * 16 * 3 * 3, 8 * 16 * 8  # Elements; a halo is one row of the height.
for name, x_spec, k_spec, stride, sends, on_tpu in (
    ("by_output_channels", P("d"), P("d"), 1, gather("d", KERNEL * F32), gather("d", KERNEL * BF16, "bf16")),
    ("by_height", P(None, None, "d"), P(), 1, 2 * permute("d", HALO * F32), 2 * permute("d", HALO * BF16, "bf16")),
    ("by_height_in_twos", P(None, None, "d"), P(), 2, permute("d", HALO * F32), permute("d", HALO * BF16, "bf16")),
    ("by_input_channels", P(None, "d"), P(None, "d"), 1, *2 * [reduce("d", 8 * 16 * 32 * 8 * F32)]),
    ("by_input_channels_in_twos", P(None, "d"), P(None, "d"), 2, *2 * [reduce("d", 8 * 16 * 16 * 4 * F32)]),
):
    kept("c48", "d=8", name=f"convolution_{name}", cpu=[sends], gpu=[sends], tpu=[on_tpu])(
        partial(convolution, x_spec, k_spec, stride)
    )


def constrained(is_mapped, spec, mesh):
    def body(a):
        return jnp.sin(pinned(mesh, jnp.cos(a), *spec))

    x = array(mesh, (8, 16, 32), "data", None, "model")
    return compiled(mesh, jax.vmap(body) if is_mapped else body, x, out=P("data", None, "model"))


for name, is_mapped, spec, sends in (
    ("constraint_under_vmap", True, (None, "model"), []),
    ("constraint_of_none", False, (None, None, "model"), [gather("data", 8 * 16 * 32 * F32 // 2)]),
    ("unconstrained", False, (P.UNCONSTRAINED, None, "model"), []),
):
    kept("c53", "data=4,model=2", name=name, cpu=sends, gpu=sends)(partial(constrained, is_mapped, spec))
