"""Cases c10, c29, c33: what the partitioner moves for matrix products, attention and mixtures of experts."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from lab.core.ledger import Ledger
from tests.cases.compiling import ahead_of_time_tpu, array, cpu, pinned, read, rows, tpu

pytestmark = pytest.mark.compiles


def rope(k_BTHK, positions_T):
    """Rotary embedding in f32, cast to bf16."""
    half = k_BTHK.shape[-1] // 2
    angle_T1K = positions_T[:, None, None] / 10_000 ** (jnp.arange(half, dtype=jnp.float32) / half)
    a, b = jnp.split(k_BTHK.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angle_T1K), jnp.sin(angle_T1K)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(jnp.bfloat16)


def scores_of_gathered_keys(mesh: Mesh, barrier: bool) -> Ledger:
    """Attention scores with queries split by sequence and keys gathered over it."""

    def scores(q_BTHK, k_BTHK, positions_T):
        k_BTHK = pinned(mesh, rope(k_BTHK, positions_T), None, "sp")
        k_BTHK = jax.lax.optimization_barrier(k_BTHK) if barrier else k_BTHK
        return jnp.einsum("bqhd,bkhd->bhqk", q_BTHK, pinned(mesh, k_BTHK))

    q_BTHK = array(mesh, (2, 1024, 8, 128), None, "sp", dtype=jnp.bfloat16)
    return read(mesh, scores, q_BTHK, q_BTHK, array(mesh, (1024,), "sp"), out=P(None, None, "sp"))


barriers = pytest.mark.parametrize("barrier", [False, True], ids=["plain", "barrier"])


@barriers
def test_cpu_gathers_bf16_keys_in_f32(barrier):
    """c10: 8,388,608 B; the CPU widens 16-bit operands, so judge bf16 elsewhere."""
    ledger = scores_of_gathered_keys(cpu(sp=8), barrier)
    assert rows(ledger) == [("all_gather", "sp", 1, 8_388_608)]
    assert ledger.transfers[0].dtype == "f32"


@ahead_of_time_tpu
@barriers
def test_tpu_gathers_bf16_keys_in_bf16(barrier):
    """c10: 4,194,304 B."""
    ledger = scores_of_gathered_keys(tpu(sp=8), barrier)
    assert rows(ledger) == [("all_gather", "sp", 1, 4_194_304)]
    assert ledger.transfers[0].dtype == "bf16"


ROWS, COLUMNS, REPLICATED = P("d", None), P(None, "d"), P()
SHAPES = [(64, 1024, 1024), (8192, 1024, 1024), (8192, 128, 128)]


@pytest.mark.parametrize(("B", "D", "F"), SHAPES)
@pytest.mark.parametrize(
    ("x_spec", "w_spec", "out", "kind", "moved"),
    [
        (ROWS, ROWS, ROWS, "all_gather", "w"),
        (ROWS, COLUMNS, ROWS, "all_gather", "w"),
        (COLUMNS, COLUMNS, COLUMNS, "all_gather", "x"),
        (COLUMNS, ROWS, ROWS, "all_reduce", "out"),
        (COLUMNS, ROWS, REPLICATED, "all_reduce", "out"),
    ],
    ids=["gathers w for x rows", "gathers w columns", "gathers x", "reduces to rows", "reduces to all"],
)
def test_which_side_of_a_matmul_moves_follows_from_the_specs_and_not_from_the_sizes(
    B, D, F, x_spec, w_spec, out, kind, moved
):
    """c29: with 64 rows a weight of 4,194,304 B is gathered where activations of 262,144 B would do."""
    mesh = cpu(d=8)
    ledger = read(mesh, jnp.matmul, array(mesh, (B, D), *x_spec), array(mesh, (D, F), *w_spec), out=out)
    assert rows(ledger) == [(kind, "d", 1, 4 * {"x": B * D, "w": D * F, "out": B * F}[moved])]


G, T, E, D, F, C = 8, 64, 16, 128, 256, 8  # token groups, tokens a group, experts, model width, expert width, capacity


def dispatch(x_GTD, router_DE):
    """One-hot [G, T, E, C] of every token's expert and place in it, and the expert itself."""
    expert_GT = jnp.argmax(jax.nn.softmax(x_GTD @ router_DE, -1), -1)
    onehot_GTE = jax.nn.one_hot(expert_GT, E)
    place_GT = (jnp.cumsum(onehot_GTE, axis=1) * onehot_GTE - onehot_GTE).sum(-1)
    place_GTC = jax.nn.one_hot(place_GT.astype(jnp.int32), C) * (place_GT < C)[..., None]
    return onehot_GTE[..., None] * place_GTC[:, :, None], expert_GT


def experts(mesh: Mesh, *constraints: tuple) -> Ledger:
    """Dispatch, experts and combine by einsum, the dispatched tokens [E, G, C, D] pinned to `constraints` in turn, and
    back."""

    def layer(x_GTD, w_EDF, router_DE):
        sent_GTEC, _ = dispatch(x_GTD, router_DE)
        z_EGCD = jnp.einsum("gtec,gtd->egcd", sent_GTEC, x_GTD)
        for spec in constraints:
            z_EGCD = pinned(mesh, z_EGCD, *spec)
        h_EGCF = jnp.einsum("egcd,edf->egcf", z_EGCD, w_EDF)
        for spec in reversed(constraints):
            h_EGCF = pinned(mesh, h_EGCF, *spec)
        return jnp.einsum("gtec,egcf->gtf", sent_GTEC, h_EGCF)

    return read(mesh, layer, *moe_arguments(mesh), out=P("ep"))


def moe_arguments(mesh: Mesh) -> tuple[jax.ShapeDtypeStruct, ...]:
    return array(mesh, (G, T, D), "ep"), array(mesh, (E, D, F), "ep"), array(mesh, (D, E))


BY_GROUP, BY_EXPERT = (None, "ep"), ("ep",)


@pytest.mark.parametrize("constraints", [(), (BY_GROUP, BY_EXPERT)], ids=["free", "by group then by expert"])
def test_experts_exchange_their_tokens_in_two_all_to_alls(constraints):
    """c33: [E, C, D] there, 65,536 B, and [E, C, F] back, 131,072 B."""
    assert rows(experts(cpu(ep=8), *constraints)) == [("all_to_all", "ep", 1, 65_536), ("all_to_all", "ep", 1, 131_072)]


def test_the_textbook_constraint_on_experts_gathers_tokens_and_reduces_the_output():
    """c33: four times the bytes of the all-to-alls; the small ones are of the routing."""
    routing, tokens, output = 2_048, 262_144, 524_288
    gathers = [("all_gather", "ep", 1, payload) for payload in (routing, tokens)]
    assert rows(experts(cpu(ep=8), BY_EXPERT)) == [
        *gathers,
        *(("all_reduce", "ep", 1, payload) for payload in (routing, output)),
    ]


def test_sorted_tokens_through_ragged_dot_are_all_reduced():
    """c33: 262,144 B of tokens and 524,288 B of output."""

    def layer(x_GTD, w_EDF, router_DE):
        expert_N = dispatch(x_GTD, router_DE)[1].reshape(-1)
        order_N = jnp.argsort(expert_N)
        y_NF = jax.lax.ragged_dot(x_GTD.reshape(-1, D)[order_N], w_EDF, jnp.bincount(expert_N, length=E))
        return jnp.zeros_like(y_NF).at[order_N].set(y_NF).reshape(G, T, F)

    mesh = cpu(ep=8)
    reduced = [row[-1] for row in rows(read(mesh, layer, *moe_arguments(mesh), out=P("ep"))) if row[0] == "all_reduce"]
    assert reduced == [64, 262_144, 524_288]
