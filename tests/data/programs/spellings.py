"""How compilers write groups, asynchronous pairs, branches and names."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from tests.cases.compiling import array, compiled
from tests.data.program import (
    BF16,
    F32,
    Sends,
    across_slices,
    exchange,
    gather,
    kept,
    permute,
    reduce,
    scatter,
)
from tests.data.programs.training import loss

ROWS, WIDTH = 64, 32
MATRIX = ROWS * WIDTH * F32
SHARD = MATRIX // 8


def mapped(function, in_spec, out_spec, mesh):
    body = jax.shard_map(function, mesh=mesh, in_specs=in_spec, out_specs=out_spec, check_vma=False)
    return compiled(mesh, body, array(mesh, (ROWS, WIDTH), *in_spec))


XY, X, Y = P("x", "y"), P("x"), P(None, "y")
RING = [(i, (i + 1) % 4) for i in range(4)]
for name, function, in_spec, out_spec, sends in (
    ("psum_y", lambda a: jax.lax.psum(a, "y"), XY, X, [reduce("y", SHARD)]),
    ("psum_x_y", lambda a: jax.lax.psum(a, ("x", "y")), XY, P(), [reduce("x+y", SHARD)]),
    (
        "psum_scatter_x",
        lambda a: jax.lax.psum_scatter(a, "x", scatter_dimension=0, tiled=True),
        Y,
        XY,
        [scatter("x", MATRIX // 2)],
    ),
    ("all_gather_x", lambda a: jax.lax.all_gather(a, "x", tiled=True), XY, Y, [gather("x", MATRIX // 2)]),
    ("all_to_all_x", lambda a: jax.lax.all_to_all(a, "x", 1, 0, tiled=True), XY, XY, [exchange("x", SHARD)]),
    ("ppermute_x", lambda a: jax.lax.ppermute(a, "x", [(0, 1)]), XY, XY, [permute("x", SHARD)]),
    ("ppermute_ring_x", lambda a: jax.lax.ppermute(a, "x", RING), XY, XY, [permute("x", SHARD)]),
    (
        "psum_of_two_arrays",
        lambda a: jax.lax.psum((a, 2 * a.astype(jnp.int32)), "x"),
        XY,
        (Y, Y),
        [reduce("x", SHARD), reduce("x", SHARD, "s32")],
    ),
    ("psum_of_booleans", lambda a: jax.lax.psum(a > 0, "x"), XY, Y, [reduce("x", SHARD, "s32")]),
    ("psum_of_nothing", lambda a: jax.lax.psum(a[:0], "x"), XY, Y, []),
):
    kept("c27", "x=4,y=2", name=name, cpu=sends, gpu=sends, tpu=sends)(partial(mapped, function, in_spec, out_spec))

kept("broadcast", "x=4,y=2", name="pbroadcast_x", gpu=[Sends("collective_broadcast", "x", SHARD)])(
    partial(mapped, lambda a: jax.lax.pbroadcast(a, "x", 1), XY, XY)
)
HAND_MADE = [[0, 3], [1, 2]]
kept("c27", "x=4,y=2", name="psum_of_groups_by_hand", cpu=[reduce("?", SHARD)], gpu=[reduce("?", SHARD)])(
    partial(mapped, lambda a: jax.lax.psum(a, "x", axis_index_groups=HAND_MADE), XY, XY)
)
IN_TWO_STEPS = [gather("y", 2 * SHARD), gather("x", MATRIX)]
AT_ONCE = [gather("x+y", MATRIX)]


@kept("c27", "x=4,y=2", cpu=IN_TWO_STEPS, gpu=IN_TWO_STEPS, tpu=AT_ONCE)
def gathered_whole(mesh):
    return compiled(mesh, lambda a: 2 * a, array(mesh, (ROWS, WIDTH), "x", "y"), out=P())


kept("c27", "x=4,y=4", name="gathered_whole", targets={"tpu16": "tpu:v5e:4x4"}, tpu16=AT_ONCE)(gathered_whole)
TAKEN = [reduce("y", 8 * 8 * F32), reduce("x", 32 * 8 * F32)]  # Rows of a device's indices; its half of the table.


@kept("c27", "x=4,y=2", cpu=TAKEN, gpu=TAKEN, tpu=TAKEN)
def gradient_of_a_lookup(mesh):
    gradient = jax.grad(lambda table, i: jnp.sum(table[i] ** 2))
    return compiled(mesh, gradient, array(mesh, (64, 8), "y"), array(mesh, (32,), "x", dtype=jnp.int32), out=P("y"))


@kept("c27", "i=8", cpu=[reduce("i", 16 * F32)])
def pmap(mesh):
    summed = jax.pmap(lambda a: jax.lax.psum(a, "i"), axis_name="i", devices=list(mesh.devices.flat))
    return summed.lower(jax.ShapeDtypeStruct((8, 16), jnp.float32)).compile()


OVER_D = [reduce("d", SHARD)]


@kept("c55", "d=8", cpu=OVER_D, gpu=OVER_D, tpu=OVER_D)
def misleading_names(mesh):
    def all_gather(a):
        return jnp.sin(a)

    def reduced(a):
        with jax.named_scope("all-reduce(fake)"):
            a = jax.jit(all_gather)(a)
        return jax.shard_map(lambda b: jax.lax.psum(b, "d"), mesh=mesh, in_specs=P("d"), out_specs=P())(a)

    return compiled(mesh, reduced, array(mesh, (ROWS, WIDTH), "d"))


@kept("c55", "d=8,one=1", cpu=[reduce("", SHARD)], gpu=[], tpu=[])
def psum_over_an_axis_of_one(mesh):
    spec = P("d", "one")
    psum = jax.shard_map(lambda b: jax.lax.psum(b, "one"), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return compiled(mesh, psum, array(mesh, (ROWS, WIDTH), *spec))


@kept("branch", "d=8", cpu=OVER_D, gpu=OVER_D, tpu=OVER_D)
def psum_in_a_branch(mesh):
    def body(a, is_wanted):
        return jax.lax.cond(is_wanted, lambda a: jax.lax.psum(a, "d"), lambda a: 2 * a, a)

    branch = jax.shard_map(body, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"), check_vma=False)
    return compiled(mesh, branch, array(mesh, (ROWS, WIDTH), "d"), jax.ShapeDtypeStruct((), jnp.bool))


NESTED = [reduce("d", SHARD).times(3 * 5)]


@kept("loops in loops", "d=8", cpu=NESTED, gpu=NESTED, tpu=NESTED)
def psum_in_nested_loops(mesh):
    def body(a):
        def inner(i, a):
            return jnp.sin(jax.lax.psum(a, "d"))

        def outer(i, a):
            return jax.lax.fori_loop(0, 5, inner, jnp.cos(a))

        return jax.lax.fori_loop(0, 3, outer, a)

    mapped = jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    return compiled(mesh, mapped, array(mesh, (ROWS, WIDTH), "d"))


UNKNOWN = [reduce("d", F32).times(None)]


@kept("condition", "d=8", cpu=UNKNOWN, gpu=UNKNOWN, tpu=UNKNOWN)
def psum_in_a_condition(mesh):
    def body(a):
        return jax.lax.while_loop(lambda a: jax.lax.psum(jnp.sum(a), "d") < 100, lambda a: 2 * a, a)

    mapped = jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    return compiled(mesh, mapped, array(mesh, (ROWS, WIDTH), "d"))


@kept(
    "ragged",
    "d=8",
    gpu=[Sends("ragged_all_to_all", "d", 16 * WIDTH * F32)],
    tpu=[Sends("ragged_all_to_all", "d", 16 * 128 * F32)],
)
def ragged_all_to_all(mesh):
    """TPUs pad the rows to 128 columns."""

    def body(a, out, *offsets_and_sizes):
        return jax.lax.ragged_all_to_all(a, out, *offsets_and_sizes, axis_name="d")

    mapped = jax.shard_map(body, mesh=mesh, in_specs=6 * (P("d"),), out_specs=P("d"), check_vma=False)
    x, sizes = array(mesh, (128, 32), "d"), array(mesh, (64,), "d", dtype=jnp.int32)
    return compiled(mesh, mapped, x, x, sizes, sizes, sizes, sizes)


@kept(
    "narrow types",
    "d=8",
    cpu=[gather("d", ROWS * WIDTH, "s8")],
    gpu=[gather("d", ROWS * WIDTH // 2, "s8")],
    tpu=[gather("d", ROWS * WIDTH // 2, "s4")],
)
def gather_of_4_bit_numbers(mesh):
    """CPUs widen them to bytes, GPUs put two in a byte."""
    mapped = jax.shard_map(
        lambda a: jax.lax.all_gather(a, "d", tiled=True), mesh=mesh, in_specs=P("d"), out_specs=P(), check_vma=False
    )
    return compiled(mesh, mapped, array(mesh, (ROWS, WIDTH), "d", dtype=jnp.int4))


SPARSE_CORES = {"tpu7x": "tpu:7x:2x2x1"}
NARROW = 1024 * 1024 * BF16


@kept(
    "sparse cores",
    "fsdp=8",
    targets=SPARSE_CORES,
    tpu7x=[2 * gather("fsdp", NARROW, "bf16"), 2 * scatter("fsdp", NARROW, "bf16")],
)
def layers_on_sparse_cores(mesh):
    weights = [array(mesh, (1024, 1024), "fsdp", dtype=jnp.bfloat16)] * 2
    x = array(mesh, (4096, 1024), "fsdp", dtype=jnp.bfloat16)
    return compiled(mesh, jax.grad(loss), weights, x, out=[P("fsdp")] * 2)


@kept("sparse cores", "d=8", targets=SPARSE_CORES, tpu7x=[reduce("d", 1024 * 512 * F32)])
def psum_on_sparse_cores(mesh):
    psum = jax.shard_map(lambda b: jax.lax.psum(b, "d"), mesh=mesh, in_specs=P("d"), out_specs=P(), check_vma=False)
    return compiled(mesh, psum, array(mesh, (8 * 1024, 512), "d"))


@kept("messages", "d=8", gpu=[Sends("send_recv", "d", SHARD).times(3)])
def permutes_as_messages(mesh):
    """GPUs can send what a pipeline's permute moves while the next tick runs."""

    def body(a):
        chain = [(i, i + 1) for i in range(7)]
        return jax.lax.fori_loop(0, 3, lambda i, a: jnp.sin(jax.lax.ppermute(a, "d", chain)), a)

    mapped = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
    return mapped.lower(array(mesh, (ROWS, WIDTH), "d")).compile(
        {"xla_gpu_experimental_pipeline_parallelism_opt_level": "PIPELINE_PARALLELISM_OPT_LEVEL_ENABLE"}
    )


def gradient_step(w, x_BD):
    gradient = jax.grad(lambda w: jnp.sum((jnp.tanh(x_BD @ w["in"]) @ w["out"]) ** 2))(w)
    return jax.tree.map(jnp.subtract, w, gradient)


def two_by_eight(arranged, mesh):
    """A step of two layers on 2 replicas of 8, whose devices `arranged` takes from 2 domains of 2 x 4."""
    mesh = Mesh(arranged(mesh.devices.reshape(2, 2, 4)).reshape(2, 8), ("data", "model"))
    weights = {"in": array(mesh, (256, 512), None, "model"), "out": array(mesh, (512, 256), "model")}
    out = {"in": P(None, "model"), "out": P("model")}
    return compiled(mesh, gradient_step, weights, array(mesh, (128, 256), "data"), out=out)


ACTIVATIONS, GRADIENTS = 128 // 2 * 256 * F32, 2 * 256 * 512 // 8 * F32
SLICES, HOSTS = {"slices": "tpu:v5e:2x4*2"}, {"hosts": "gpu:h100:2x8"}
kept(
    "c35",
    "data=2,model=8",
    name="replica_on_each",
    targets=SLICES | HOSTS,
    slices=[reduce("model", ACTIVATIONS), across_slices("data", GRADIENTS)],
    hosts=[reduce("model", ACTIVATIONS), reduce("data", GRADIENTS)],
)(partial(two_by_eight, lambda devices: devices))
kept(
    "c35",
    "model_high=2,data=2,model_low=4",
    name="replicas_across",
    targets=SLICES,
    slices=[
        scatter("model_low", ACTIVATIONS),
        across_slices("model_high", ACTIVATIONS // 4),
        gather("model_low", ACTIVATIONS),
        reduce("data", GRADIENTS),
    ],
)(partial(two_by_eight, lambda devices: devices.swapaxes(0, 1)))
