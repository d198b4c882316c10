"""Steps of training: data parallelism, sharded weights, accumulation, experts, pipelines."""

from functools import partial
from functools import reduce as fold

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from tests.cases.compiling import array, compiled, pinned
from tests.data.program import BF16, F32, exchange, gather, kept, permute, reduce, scatter

MICRO_BATCHES = 4


KEYS = 2 * 128 * 4 * 64
KEYS_IN_BF16 = [gather("sp", KEYS * BF16, "bf16")]


@kept("c10", "sp=8", cpu=[gather("sp", KEYS * F32)], gpu=KEYS_IN_BF16, tpu=KEYS_IN_BF16)
def keys_gathered_for_attention(mesh):
    """CPUs widen 16-bit operands of products to f32, here before the gather."""

    def scores(q_BTHK, k_BTHK, angle_T):
        angle = angle_T[:, None, None]
        a, b = jnp.split(k_BTHK.astype(jnp.float32), 2, axis=-1)
        rotated = [a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)]
        k_BTHK = pinned(mesh, jnp.concatenate(rotated, -1).astype(jnp.bfloat16), None, "sp")
        return jnp.einsum("bqhd,bkhd->bhqk", q_BTHK, pinned(mesh, k_BTHK))

    q_BTHK = array(mesh, (2, 128, 4, 64), None, "sp", dtype=jnp.bfloat16)
    return compiled(mesh, scores, q_BTHK, q_BTHK, array(mesh, (128,), "sp"), out=P(None, None, "sp"))


GRADIENT_IN_BF16 = [reduce("data", 128 * 256 * BF16, "bf16")]


@kept("c11", "data=8", cpu=[reduce("data", 128 * 256 * F32)], gpu=GRADIENT_IN_BF16, tpu=GRADIENT_IN_BF16)
def step_in_bf16(mesh):
    """CPUs promote sums of 16-bit numbers to f32."""

    def step(w_DF, x_BD):
        def loss(w_DF):
            return jnp.sum((x_BD @ w_DF.astype(jnp.bfloat16)).astype(jnp.float32) ** 2)

        return w_DF - 0.1 * jax.grad(loss)(w_DF)

    return compiled(mesh, step, array(mesh, (128, 256)), array(mesh, (64, 128), "data", dtype=jnp.bfloat16), out=P())


def layer(h_BD, w_DD):
    return jnp.tanh(h_BD @ w_DD)


def loss(ws, x_BD):
    return jnp.sum(fold(layer, ws, x_BD) ** 2)


GRADIENTS = [reduce("data", 2 * 64 * 64 * F32)]


@kept("combined", "data=8", cpu=GRADIENTS, gpu=GRADIENTS, tpu=GRADIENTS)
def data_parallel(mesh):
    return compiled(mesh, jax.grad(loss), 2 * [array(mesh, (64, 64))], array(mesh, (256, 64), "data"), out=2 * [P()])


def rematerialised_loss(ws, x_BD):
    return jnp.sum(fold(jax.checkpoint(layer), ws, x_BD) ** 2)


def accumulated(ws, xs_MBD):
    def add(g, x_BD):
        return (jax.tree.map(jnp.add, g, jax.grad(loss)(ws, x_BD)), None)

    return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, ws), xs_MBD)[0]


def three_layers(gradients, micro_batches, mesh):
    x = array(mesh, (*micro_batches, 2048, 256), *(None for _ in micro_batches), "fsdp")
    return compiled(mesh, gradients, 3 * [array(mesh, (256, 256), "fsdp")], x, out=3 * [P("fsdp")])


# CPUs reduce the three gradients whole, all combined; GPUs combine the gathers too; TPUs gather in bf16, one by one.
# The backward pass of the rematerialised layers gathers again. Out of the loop only CPUs move the gathers.
LAYER = 256 * 256 * F32
NARROW = 256 * 256 * BF16
kept(
    "c14",
    "fsdp=8",
    name="fsdp",
    cpu=[3 * gather("fsdp", LAYER), reduce("fsdp", 3 * LAYER)],
    gpu=[gather("fsdp", 3 * LAYER), scatter("fsdp", 3 * LAYER)],
    tpu=[3 * gather("fsdp", NARROW, "bf16"), scatter("fsdp", 3 * LAYER)],
)(partial(three_layers, jax.grad(loss), ()))
kept(
    "c14",
    "fsdp=8",
    name="fsdp_with_remat",
    cpu=[6 * gather("fsdp", LAYER), reduce("fsdp", 3 * LAYER)],
    gpu=[gather("fsdp", 3 * LAYER), 3 * gather("fsdp", LAYER), scatter("fsdp", 3 * LAYER)],
    tpu=[6 * gather("fsdp", NARROW, "bf16"), scatter("fsdp", 3 * LAYER)],
)(partial(three_layers, jax.grad(rematerialised_loss), ()))
kept(
    "c14",
    "fsdp=8",
    name="fsdp_accumulated",
    cpu=[3 * gather("fsdp", LAYER), reduce("fsdp", 3 * LAYER).times(MICRO_BATCHES)],
    gpu=[gather("fsdp", 3 * LAYER).times(MICRO_BATCHES), scatter("fsdp", 3 * LAYER).times(MICRO_BATCHES)],
    tpu=[
        3 * gather("fsdp", NARROW, "bf16").times(MICRO_BATCHES),
        scatter("fsdp", 3 * LAYER).times(MICRO_BATCHES),
    ],
)(partial(three_layers, accumulated, (MICRO_BATCHES,)))


def batches(mesh):
    return array(mesh, (MICRO_BATCHES, 64, 128), None, "data")


SQUARE = 128 * 128 * F32
ONCE = [reduce("data", SQUARE)]
IN_EACH = [reduce("data", SQUARE).times(MICRO_BATCHES)]
SCATTERED_IN_EACH = [scatter("data", SQUARE).times(MICRO_BATCHES)]


@kept("c15", "data=8", cpu=IN_EACH, gpu=ONCE, tpu=ONCE)
def accumulated_replicated(mesh):
    return compiled(mesh, accumulated, [array(mesh, (128, 128))], batches(mesh), out=[P()])


@kept("c15", "data=8", cpu=IN_EACH, gpu=SCATTERED_IN_EACH, tpu=SCATTERED_IN_EACH)
def accumulated_sharded(mesh):
    def gradients(w, xs):
        def add(g, x):
            return (g + jax.grad(loss)([w], x)[0], None)

        return jax.lax.scan(add, pinned(mesh, jnp.zeros_like(w), "data"), xs)[0]

    return compiled(mesh, gradients, array(mesh, (128, 128)), batches(mesh), out=P("data"))


@kept("c15", "data=8", cpu=ONCE, gpu=ONCE, tpu=ONCE)
def accumulated_locally(mesh):
    def gradients(w, xs):
        w, zero = (jax.lax.pcast(value, "data", to="varying") for value in (w, jnp.zeros_like(w)))

        def add(g, x):
            return (g + jax.grad(loss)([w], x)[0], None)

        return jax.lax.psum(jax.lax.scan(add, zero, xs)[0], "data")

    mapped = jax.shard_map(gradients, mesh=mesh, in_specs=(P(), P(None, "data")), out_specs=P())
    return compiled(mesh, mapped, array(mesh, (128, 128)), batches(mesh))


def gradient_of_mapped(check, mesh):
    layer = jax.shard_map(
        lambda w, x: jnp.tanh(x @ w), mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"), check_vma=check
    )
    gradient = jax.grad(lambda w, x: jnp.sum(layer(w, x) ** 2))
    return compiled(mesh, gradient, array(mesh, (64, 64)), array(mesh, (32, 64), "data"))


def mapped_gradient(check, mesh):
    def gradient(w, x):
        return jax.lax.pmean(jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w), "data")

    mapped = jax.shard_map(gradient, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=check)
    return compiled(mesh, mapped, array(mesh, (64, 64)), array(mesh, (32, 64), "data"))


WEIGHT = 64 * 64 * F32
for name, program, axes, sites in (
    ("gradient_of_checked_shard_map", partial(gradient_of_mapped, True), "data", 1),
    ("gradient_of_unchecked_shard_map", partial(gradient_of_mapped, False), "data+model", 1),
    ("gradient_in_checked_shard_map", partial(mapped_gradient, True), "data", 2),  # By itself, and by the pmean.
    ("gradient_in_unchecked_shard_map", partial(mapped_gradient, False), "data", 1),
):
    sends = [sites * reduce(axes, WEIGHT)]
    kept("c16", "data=4,model=2", name=name, cpu=sends, gpu=sends, tpu=sends)(program)


def step(h_BD, w_DD):
    return jnp.tanh(h_BD @ w_DD), None


def unrolled(w_LDD, h_BD):
    for w_DD in w_LDD:
        h_BD, _ = step(h_BD, w_DD)
    return h_BD


def scanned(w_LDD, h_BD):
    return jax.lax.scan(step, h_BD, w_LDD)[0]


def scanned_by_three(w_LDD, h_BD):
    return jax.lax.scan(step, h_BD, w_LDD, unroll=3)[0]


def looped(w_LDD, h_BD, bound):
    return jax.lax.fori_loop(0, bound, lambda i, h_BD: step(h_BD, w_LDD[i])[0], h_BD)


def six_layers(function, scalars, mesh):
    return compiled(mesh, function, array(mesh, (6, 128, 128), None, None, "m"), array(mesh, (64, 128)), *scalars)


HIDDEN = 64 * 128
for name, function, scalars, sites, executions in (
    ("layers_unrolled", unrolled, (), 5, 1),  # The last output may stay sharded.
    ("layers_scanned", scanned, (), 1, 6),
    ("layers_scanned_by_three", scanned_by_three, (), 3, 2),
    ("layers_to_a_traced_bound", looped, (jax.ShapeDtypeStruct((), jnp.int32),), 1, None),
):
    sends = [sites * gather("m", HIDDEN * F32).times(executions)]
    narrow = [sites * gather("m", HIDDEN * BF16, "bf16").times(executions)]
    kept("c21", "m=8", name=name, cpu=sends, gpu=sends, tpu=narrow)(partial(six_layers, function, scalars))


@kept("c23", "x=8", cpu=[], gpu=[], tpu=[])
def donated_state(mesh):
    state = array(mesh, (128, 32), "x")
    return compiled(mesh, lambda a, g: a - g, state, state, donate_argnums=0)


STATE = [gather("x", 128 * 32 * F32)]


@kept("c23", "x=8", cpu=STATE, gpu=STATE, tpu=STATE)
def donated_state_sharded_inside(mesh):
    state = array(mesh, (128, 32))
    return compiled(mesh, lambda a, g: pinned(mesh, a - g, "x"), state, state, out=P(), donate_argnums=0)


def adam_step(w, m, v, x):
    g = jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    return w - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


def one_adam_step(state_spec, mesh):
    w, x = array(mesh, (128, 64), "fsdp"), array(mesh, (1024, 128), "fsdp")
    state = array(mesh, w.shape, *state_spec)
    return compiled(mesh, adam_step, w, state, state, x, out=(P("fsdp"), P(*state_spec), P(*state_spec)))


# Replicated state is updated in shards and gathered whole, m and v.
ADAM = 128 * 64 * F32
kept(
    "c28",
    "fsdp=8",
    name="adam_with_replicated_state",
    cpu=[3 * gather("fsdp", ADAM), reduce("fsdp", ADAM)],
    gpu=[gather("fsdp", ADAM), scatter("fsdp", ADAM), gather("fsdp", 2 * ADAM)],
    tpu=[gather("fsdp", ADAM // 2, "bf16"), scatter("fsdp", ADAM), 2 * gather("fsdp", ADAM)],
)(partial(one_adam_step, ()))
kept(
    "c28",
    "fsdp=8",
    name="adam_with_sharded_state",
    cpu=[gather("fsdp", ADAM), reduce("fsdp", ADAM)],
    gpu=[gather("fsdp", ADAM), scatter("fsdp", ADAM)],
    tpu=[gather("fsdp", ADAM // 2, "bf16"), scatter("fsdp", ADAM)],
)(partial(one_adam_step, ("fsdp",)))


ROWS, COLUMNS = ("d", None), (None, "d")


def product(x_spec, w_spec, out, mesh):
    return compiled(mesh, jnp.matmul, array(mesh, (64, 128), *x_spec), array(mesh, (128, 256), *w_spec), out=P(*out))


X, W, OUT = 64 * 128, 128 * 256, 64 * 256
for name, x_spec, w_spec, gathered in (
    ("matmul_rows_rows", ROWS, ROWS, W),
    ("matmul_rows_columns", ROWS, COLUMNS, W),
    ("matmul_columns_columns", COLUMNS, COLUMNS, X),
):
    sends, narrow = [gather("d", gathered * F32)], [gather("d", gathered * BF16, "bf16")]
    out = COLUMNS if gathered == X else ROWS
    kept("c29", "d=8", name=name, cpu=sends, gpu=sends, tpu=narrow)(partial(product, x_spec, w_spec, out))

SUMMED, SCATTERED = [reduce("d", OUT * F32)], [scatter("d", OUT * F32)]
kept("c29", "d=8", name="matmul_columns_rows", cpu=SUMMED, gpu=SCATTERED, tpu=SCATTERED)(
    partial(product, COLUMNS, ROWS, ROWS)
)
kept("c29", "d=8", name="matmul_columns_rows_replicated", cpu=SUMMED, gpu=SUMMED, tpu=SUMMED)(
    partial(product, COLUMNS, ROWS, ())
)


STAGES, ROWS_OF_A_BATCH, WIDTH, TICKS = 4, 16, 32, 7


def first_stage(x_RD, others_SRD):
    return jnp.where((jnp.arange(STAGES) == 0)[:, None, None], x_RD[None], others_SRD)


def by_concatenation(mesh, state_SRD, x_RD):
    return jnp.concatenate([x_RD[None], state_SRD[:-1]])


def by_roll(mesh, state_SRD, x_RD):
    return jnp.roll(state_SRD, 1, 0).at[0].set(x_RD)


def by_permute(mesh, state_SRD, x_RD):
    ring = [(i, (i + 1) % STAGES) for i in range(STAGES)]
    spec = P("stage", "data")
    shifted = jax.shard_map(lambda a: jax.lax.ppermute(a, "stage", ring), mesh=mesh, in_specs=spec, out_specs=spec)
    return first_stage(x_RD, shifted(state_SRD))


def pipeline(shift, mesh):
    def run(w_SDE, xs_TRD):
        def tick(state_SRD, x_RD):
            state_SRD = jnp.tanh(jnp.einsum("srd,sde->sre", shift(mesh, state_SRD, x_RD), w_SDE))
            state_SRD = pinned(mesh, state_SRD, "stage", "data")
            return state_SRD, state_SRD[-1]

        state_SRD = pinned(mesh, jnp.zeros((STAGES, ROWS_OF_A_BATCH, WIDTH)), "stage", "data")
        return jax.lax.scan(tick, state_SRD, xs_TRD)[1]

    weights = array(mesh, (STAGES, WIDTH, WIDTH), "stage")
    inputs = array(mesh, (TICKS, ROWS_OF_A_BATCH, WIDTH), None, "data")
    return compiled(mesh, run, weights, inputs, out=P(None, "data"))


# What a stage has of the state, in a tick. The last stage's output goes to all stages: on CPUs in each tick, elsewhere
# after the loop. GPUs and TPUs gather the whole input in each tick of the pipeline by concatenation.
STATE_OF_A_STAGE = ROWS_OF_A_BATCH // 2 * WIDTH
TICK = STATE_OF_A_STAGE * F32
NARROW_SHIFT = permute("stage", STATE_OF_A_STAGE * BF16, "bf16").times(TICKS)
LAST_ON_CPU = [permute("stage", TICK).times(TICKS), reduce("stage", TICK).times(TICKS)]
LAST_ELSEWHERE = [permute("stage", TICK).times(TICKS), reduce("stage", TICKS * TICK)]
INPUTS = TICKS * ROWS_OF_A_BATCH * WIDTH
kept(
    "c32",
    "stage=4,data=2",
    name="pipeline_by_concatenation",
    cpu=[3 * exchange("stage", TICK).times(TICKS), *LAST_ON_CPU],
    gpu=[3 * exchange("stage", TICK).times(TICKS), gather("data", INPUTS * F32).times(TICKS), *LAST_ELSEWHERE],
    tpu=[NARROW_SHIFT, gather("data", INPUTS * BF16, "bf16").times(TICKS), *LAST_ELSEWHERE],
)(partial(pipeline, by_concatenation))
for shift in (by_roll, by_permute):
    kept(
        "c32",
        "stage=4,data=2",
        name=f"pipeline_{shift.__name__}",
        cpu=[permute("stage", TICK).times(TICKS), *LAST_ON_CPU],
        gpu=[permute("stage", TICK).times(TICKS), *LAST_ELSEWHERE],
        tpu=[NARROW_SHIFT, *LAST_ELSEWHERE],
    )(partial(pipeline, shift))


G, T, E, D, F, C = 8, 16, 8, 32, 64, 4  # token groups, tokens a group, experts, model width, expert width, capacity


def dispatch(x_GTD, router_DE):
    """One-hot [G, T, E, C] of every token's expert and place in it."""
    onehot_GTE = jax.nn.one_hot(jnp.argmax(x_GTD @ router_DE, -1), E)
    place_GT = (jnp.cumsum(onehot_GTE, axis=1) * onehot_GTE - onehot_GTE).sum(-1)
    place_GTC = jax.nn.one_hot(place_GT.astype(jnp.int32), C) * (place_GT < C)[..., None]
    return onehot_GTE[..., None] * place_GTC[:, :, None]


def experts(constraints, mesh):
    def layer(x_GTD, w_EDF, router_DE):
        sent_GTEC = dispatch(x_GTD, router_DE)
        z_EGCD = jnp.einsum("gtec,gtd->egcd", sent_GTEC, x_GTD)
        for spec in constraints:
            z_EGCD = pinned(mesh, z_EGCD, *spec)
        h_EGCF = jnp.einsum("egcd,edf->egcf", z_EGCD, w_EDF)
        for spec in reversed(constraints):
            h_EGCF = pinned(mesh, h_EGCF, *spec)
        return jnp.einsum("gtec,egcf->gtf", sent_GTEC, h_EGCF)

    x_GTD, w_EDF, router_DE = array(mesh, (G, T, D), "ep"), array(mesh, (E, D, F), "ep"), array(mesh, (D, E))
    return compiled(mesh, layer, x_GTD, w_EDF, router_DE, out=P("ep"))


BY_GROUP, BY_EXPERT = (None, "ep"), ("ep",)
SENT, RETURNED = E * C * D, E * C * F  # Of one token group, which is on one device.
EXCHANGED = [exchange("ep", SENT * F32), exchange("ep", RETURNED * F32)]
EXCHANGED_IN_BF16 = [exchange("ep", SENT * BF16, "bf16"), exchange("ep", RETURNED * BF16, "bf16")]
kept(
    "c33",
    "ep=8",
    name="experts_by_group_then_by_expert",
    cpu=EXCHANGED,
    gpu=EXCHANGED,
    tpu=EXCHANGED_IN_BF16,
)(partial(experts, (BY_GROUP, BY_EXPERT)))
TOKENS, CHOICES, OUTPUTS = G * T * D, G * T, G * T * F
ROUTED = [gather("ep", CHOICES * 4, "s32"), reduce("ep", CHOICES * F32)]
kept(
    "c33",
    "ep=8",
    name="experts_by_expert",
    cpu=[*ROUTED, gather("ep", TOKENS * F32), reduce("ep", OUTPUTS * F32)],
    gpu=[
        gather("ep", (CHOICES + TOKENS) * F32, "s32+f32"),
        reduce("ep", CHOICES * F32),
        scatter("ep", OUTPUTS * F32),
    ],
    tpu=[*ROUTED, gather("ep", TOKENS * BF16, "bf16"), scatter("ep", OUTPUTS * F32)],
)(partial(experts, (BY_EXPERT,)))


WIDE = 2048 * 2048


@kept(
    "c42",
    "fsdp=8",
    cpu=[4 * gather("fsdp", WIDE * F32), reduce("fsdp", 4 * WIDE * F32)],
    gpu=[
        gather("fsdp", 3 * WIDE * BF16, "bf16"),
        gather("fsdp", WIDE * BF16, "bf16"),
        scatter("fsdp", 4 * WIDE * BF16, "bf16"),
    ],
    tpu=[
        3 * gather("fsdp", WIDE * BF16, "bf16"),
        20 * permute("fsdp", WIDE * BF16 // 8, "bf16").times(2),
        5 * permute("fsdp", WIDE * BF16 // 8, "bf16"),
    ],
)
def four_wide_layers(mesh):
    """Wide enough for a TPU to make a gather and four reduce-scatters loops of permutes, which hide behind products:
    each of two trips with four permutes of a shard, and one more after it."""
    weights = [array(mesh, (2048, 2048), "fsdp", dtype=jnp.bfloat16)] * 4
    x = array(mesh, (32_768, 2048), "fsdp", dtype=jnp.bfloat16)
    return compiled(mesh, jax.grad(loss), weights, x, out=[P("fsdp")] * 4)


@kept("c44", "d=8", cpu=[], gpu=[], tpu=[])
def replicated_matmul(mesh):
    return compiled(mesh, jnp.matmul, array(mesh, (256, 64)), array(mesh, (64, 64)), out=P())


PRODUCT = [gather("d", 256 * 64 * F32)]


@kept("c44", "d=8", cpu=PRODUCT, gpu=PRODUCT, tpu=PRODUCT)
def matmul_split_inside(mesh):
    def split(x, w):
        return pinned(mesh, x, "d") @ w

    return compiled(mesh, split, array(mesh, (256, 64)), array(mesh, (64, 64)), out=P())


NUMBER = [reduce("d", F32)]


@kept("c44", "d=8", cpu=NUMBER, gpu=NUMBER, tpu=NUMBER)
def sum_split_inside(mesh):
    return compiled(mesh, lambda x: jnp.sum(jnp.abs(pinned(mesh, x, "d"))), array(mesh, (256, 64)), out=P())
