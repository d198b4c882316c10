"""Chapters 1, 2, 7 and 10 compiled for 8 devices: FLOPs over bytes sent, what memory holds, and how often gradients are
reduced."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import lab
from lab.book.batch_size import lars_ratio
from lab.book.data_parallel import training_flops
from lab.book.memory import model_state_bytes
from lab.book.roofline import dp_intensity, pp_intensity, tp_intensity
from lab.core.ledger import Kind, Ledger
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target

pytestmark = pytest.mark.compiles

RANKS, TOKENS, H, L = 8, 64, 32, 2
FLOAT = 4


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(parse_target("cpu:8"), Axes.of({"ranks": RANKS}))


def inspected(mesh, function, specs, shapes, leaving):
    arrays = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    mapped = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=leaving, check_vma=False))
    return lab.inspect(mapped.lower(*arrays).compile(), mesh=mesh)


def wire_bytes(ledger: Ledger):
    return sum(transfer.executions * transfer.wire_bytes for transfer in ledger.transfers)


def mlp(x_BH, w_LHH):
    for w_HH in w_LHH:
        x_BH = jnp.sin(x_BH @ w_HH)
    return jnp.sum(x_BH)


def data_parallel(x_BH, w_LHH):
    dx_BH, dw_LHH = jax.grad(mlp, argnums=(0, 1))(x_BH, w_LHH)
    return dx_BH, jax.lax.pmean(dw_LHH, "ranks")


def test_data_parallelism_runs_3_tokens_of_a_rank_over_element_bytes_flops_a_byte_sent(mesh):
    ledger = inspected(mesh, data_parallel, (P("ranks"), P()), [(RANKS * TOKENS, H), (L, H, H)], (P("ranks"), P()))
    assert ledger.flops == training_flops(L * H * H, TOKENS)
    assert ledger.flops / wire_bytes(ledger) == pytest.approx(dp_intensity(TOKENS, RANKS, FLOAT))


def gpt_layer(x_BH, qkv_H3C, o_CH, up_HF, down_FH, entering=lambda x: x, leaving=lambda x: x):
    """A GPT layer's products with weights alone, 24 H^2 FLOPs a token forward; what enters and leaves its two blocks
    may communicate."""
    q_BC, k_BC, v_BC = jnp.moveaxis(jnp.einsum("bh,hnc->bnc", entering(x_BH), qkv_H3C), 1, 0)
    x_BH = x_BH + leaving((jnp.sin(q_BC + k_BC) * v_BC) @ o_CH)
    return x_BH + leaving(jnp.sin(entering(x_BH) @ up_HF) @ down_FH)


@jax.custom_vjp
def copied(x_BH):
    return x_BH


copied.defvjp(lambda x_BH: (x_BH, None), lambda _, g_BH: (jax.lax.psum(g_BH, "ranks"),))


@jax.custom_vjp
def summed(x_BH):
    return jax.lax.psum(x_BH, "ranks")


summed.defvjp(lambda x_BH: (summed(x_BH), None), lambda _, g_BH: (g_BH,))


def tensor_parallel(*args):
    """Megatron's f and g: identity forward and all_reduce backward, and the reverse."""
    return jnp.sum(jnp.sin(gpt_layer(*args, entering=copied, leaving=summed)))


def test_tensor_parallelism_runs_9_h_over_7_ranks_and_element_bytes_flops_a_byte_sent(mesh):
    column, row = P(None, "ranks"), P("ranks")
    specs = (P(), P(None, None, "ranks"), row, column, row)
    ledger = inspected(
        mesh,
        jax.grad(tensor_parallel, argnums=range(5)),
        specs,
        [(TOKENS, H), (H, 3, H), (H, H), (H, 4 * H), (4 * H, H)],
        specs,
    )
    assert [(t.kind, t.payload_bytes) for t in ledger.transfers] == 4 * [(Kind.ALL_REDUCE, TOKENS * H * FLOAT)]
    assert ledger.flops == 72 * TOKENS * H * H / RANKS
    assert ledger.flops / wire_bytes(ledger) == pytest.approx(tp_intensity(H, RANKS, FLOAT))


def stage(x_BH, *weights):
    """Two layers of one stage: its output goes to the next, the gradient of its input back."""
    arrived_BH = jax.lax.ppermute(x_BH, "ranks", [(i, (i + 1) % RANKS) for i in range(RANKS)])
    for _ in range(L):
        arrived_BH = gpt_layer(arrived_BH, *weights)
    return jnp.sum(jnp.sin(arrived_BH))


def test_a_pipeline_stage_runs_36_h_a_layer_over_element_bytes_flops_a_byte_sent(mesh):
    specs = 5 * (P(),)
    shapes = [(TOKENS, H), (H, 3, H), (H, H), (H, 4 * H), (4 * H, H)]
    ledger = inspected(mesh, jax.grad(stage, argnums=range(5)), specs, shapes, specs)
    assert [(t.kind, t.payload_bytes) for t in ledger.transfers] == 2 * [(Kind.COLLECTIVE_PERMUTE, TOKENS * H * FLOAT)]
    assert ledger.flops / wire_bytes(ledger) == pp_intensity(H, L * RANKS, RANKS, FLOAT)


def accumulated(x_MBH, w_LHH):
    gradient = jax.grad(mlp, argnums=1)
    total_LHH, _ = jax.lax.scan(
        lambda sum_LHH, x_BH: (sum_LHH + gradient(x_BH, w_LHH), None), jnp.zeros_like(w_LHH), x_MBH
    )
    return jax.lax.pmean(total_LHH, "ranks") / len(x_MBH)


def test_eight_accumulated_micro_batches_reduce_gradients_once(mesh):
    ledger = inspected(mesh, accumulated, (P(None, "ranks"), P()), [(8, RANKS * TOKENS, H), (L, H, H)], P())
    assert [(t.kind, t.executions, t.payload_bytes) for t in ledger.transfers] == [
        (Kind.ALL_REDUCE, 1, L * H * H * FLOAT)
    ]


def norm_ratio(w_DH, g_DH, reduced):
    """[1], of one rank's rows."""
    square_w, square_g = (reduced(jnp.sum(x**2)) for x in (w_DH, g_DH))
    return jnp.sqrt(square_w / square_g)[None]


def test_a_layer_split_over_8_has_one_lars_ratio_only_if_its_norms_are_reduced(mesh):
    w_DH, g_DH = (
        np.random.default_rng(10).normal(size=(2, RANKS, H))
        * np.geomspace(1, 30, RANKS)[[range(RANKS), range(RANKS)[::-1]], None]
    )
    rows = P("ranks")
    reductions = partial(jax.lax.psum, axis_name="ranks"), lambda x: x
    programs = [
        jax.shard_map(partial(norm_ratio, reduced=reduced), mesh=mesh, in_specs=rows, out_specs=rows)
        for reduced in reductions
    ]
    whole, local = (jax.jit(program)(w_DH, g_DH) for program in programs)
    right = lars_ratio(np.linalg.norm(w_DH), np.linalg.norm(g_DH))
    assert whole == pytest.approx(np.full(RANKS, right), rel=1e-5)
    assert max(local) / min(local) > 10


def adam(state, x_BH):
    """Weights in 16 bits, their master copy and both moments in 32."""
    master, m, v = state["master"], state["m"], state["v"]
    g = jax.grad(mlp, argnums=1)(x_BH, state["weights"]).astype(jnp.float32)
    m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
    master = master - 1e-3 * m / (jnp.sqrt(v) + 1e-8)
    return {"weights": master.astype(jnp.bfloat16), "master": master, "m": m, "v": v}


def test_a_mixed_precision_adam_step_is_given_14_bytes_a_parameter_and_works_on_2_more():
    shape = (4, 256, 256)
    state = {
        name: jax.ShapeDtypeStruct(shape, jnp.bfloat16 if name == "weights" else jnp.float32)
        for name in ("weights", "master", "m", "v")
    }
    x_BH = jax.ShapeDtypeStruct((1, 256), jnp.bfloat16)
    memory = jax.jit(adam, donate_argnums=0).lower(state, x_BH).compile().memory_analysis()
    parameters = int(np.prod(shape))
    assert memory.argument_size_in_bytes - 2 * 256 == model_state_bytes(parameters, gradient_bytes=0) == 14 * parameters
    assert memory.alias_size_in_bytes == 14 * parameters


def trained(w_LHH, x_BH, steps):
    return jax.lax.scan(lambda w, _: (w - 0.1 * jax.grad(mlp, argnums=1)(x_BH, w), None), w_LHH, length=steps)[0]


def temporary_bytes(function, *arrays):
    return jax.jit(function).lower(*arrays).compile().memory_analysis().temp_size_in_bytes


def test_a_hundred_times_the_tokens_take_no_more_memory():
    arrays = jax.ShapeDtypeStruct((L, H, H), jnp.float32), jax.ShapeDtypeStruct((TOKENS, H), jnp.float32)
    few, many = (temporary_bytes(lambda w, x, n=n: trained(w, x, n), *arrays) for n in (10, 1000))
    assert few == many
