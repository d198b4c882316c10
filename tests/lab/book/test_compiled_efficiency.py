"""Chapters 25 to 31a compiled for 8 devices: which collectives such programs hold, and how many bytes these send."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import lab
from lab.core.ledger import Kind, Ledger
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target

pytestmark = pytest.mark.compiles

RANKS = 8


@pytest.fixture(scope="module")
def ring() -> Mesh:
    return make_mesh(parse_target("cpu:8"), Axes.of({"ring": RANKS}))


def program(mesh: Mesh, function: Callable, entering, leaving) -> Callable:
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=entering, out_specs=leaving, check_vma=False))


def compiled(mesh: Mesh, function: Callable, specs, shapes, leaving) -> Ledger:
    arrays = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    return lab.inspect(program(mesh, function, specs, leaving).lower(*arrays).compile(), mesh=mesh)


def in_parts(x_BD: jax.Array, w_DF: jax.Array) -> jax.Array:
    """All-gather and product of rows split over the ring, a shard at a time."""
    rank, out_RBF = jax.lax.axis_index("ring"), jnp.zeros((RANKS, x_BD.shape[0], w_DF.shape[1]))
    for step in range(RANKS):
        out_RBF = out_RBF.at[(rank + step) % RANKS].set(x_BD @ w_DF)
        if step < RANKS - 1:
            x_BD = jax.lax.ppermute(x_BD, "ring", [(i, (i - 1) % RANKS) for i in range(RANKS)])
    return out_RBF.reshape(-1, w_DF.shape[1])


def test_a_collective_matmul_permutes_7_shards_of_8_beside_8_products(ring):
    ledger = compiled(ring, in_parts, (P("ring"), P()), [(64, 32), (32, 16)], P())
    assert {(str(t.kind), t.payload_bytes) for t in ledger.transfers} == {("collective_permute", 8 * 32 * 4)}
    assert sum(t.executions for t in ledger.transfers) == RANKS - 1
    x_BD, w_DF = np.ones((64, 32), np.float32) * np.arange(64)[:, None], np.ones((32, 16), np.float32)
    assert np.array_equal(program(ring, in_parts, (P("ring"), P()), P())(x_BD, w_DF), x_BD @ w_DF)


def grouped_attention(
    x_SD: jax.Array, q_DHK: jax.Array, k_DGK: jax.Array, v_DGK: jax.Array, o_HKD: jax.Array
) -> jax.Array:
    q_SHK, k_SGK, v_SGK = (jnp.einsum("sd,dhk->shk", x_SD, w) for w in (q_DHK, k_DGK, v_DGK))
    q_SGMK = q_SHK.reshape(q_SHK.shape[0], k_SGK.shape[1], -1, q_SHK.shape[2])
    weights_GMST = jax.nn.softmax(jnp.einsum("sgmk,tgk->gmst", q_SGMK, k_SGK))
    out_SHK = jnp.einsum("gmst,tgk->sgmk", weights_GMST, v_SGK).reshape(q_SHK.shape)
    return jnp.einsum("shk,hkd->sd", out_SHK, o_HKD)


@pytest.mark.parametrize("kv_heads", [8, 32])
def test_attention_with_its_heads_split_gathers_no_keys_however_these_are_grouped(ring, kv_heads):
    heads = P(None, "ring")
    shapes = {"x": (128, 64), "q": (64, 32, 4), "k": (64, kv_heads, 4), "v": (64, kv_heads, 4), "o": (32, 4, 64)}
    specs = {"x": P(), "q": heads, "k": heads, "v": heads, "o": P("ring")}
    arrays = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(ring, specs[name]))
        for name, shape in shapes.items()
    ]
    ledger = lab.inspect(
        jax.jit(grouped_attention, out_shardings=NamedSharding(ring, P())).lower(*arrays).compile(), mesh=ring
    )
    assert [(t.kind, t.payload_bytes) for t in ledger.transfers] == [(Kind.ALL_REDUCE, 128 * 64 * 4)]
