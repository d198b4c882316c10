"""Chapter 15: what does tensor parallelism cost beyond the number of key-value heads?"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from lab.book.tensor_parallel import divisors, kv_replicas, padded_share
from lab.core.ledger import Kind, Ledger, Phase, Totals
from lab.harness.claim import Claim, decided
from lab.harness.evidence import along, counted
from lab.harness.experiment import with_tensor_inside_host
from lab.harness.small_programs import (
    FLOAT_BYTES,
    Array,
    Part,
    Sent,
    experiment,
    with_pullback,
)
from lab.meshes.axes import DATA, TENSOR, Axes

BOTH = (TENSOR, DATA)
"""The ranks of one tensor-parallel group: those along `tensor` have other key-value heads, those along `data` copies of
one."""


@dataclass(frozen=True)
class Sizes:
    """Tokens of one sequence and widths; queries of one rank."""

    tokens: int = 128
    embed: int = 256
    queries: int = 2
    head_dim: int = 32


def takes(s: Sizes, axes: Axes) -> tuple[Array, ...]:
    """Activations, the weights of queries, keys and values, the weight that leaves, and what comes back to it."""
    kv_heads, heads, D, H = axes[TENSOR], s.queries * axes.size, s.embed, s.head_dim
    kv = Array((D, kv_heads, H), P(None, TENSOR))
    return (
        Array((s.tokens, D)),
        Array((D, heads, H), P(None, BOTH)),
        kv,
        kv,
        Array((heads, H, D), P(BOTH)),
        Array((s.tokens, D)),
    )


def attention(x_TD: jax.Array, q_DnH: jax.Array, k_DKH: jax.Array, v_DKH: jax.Array, out_nHD: jax.Array) -> jax.Array:
    """Causal; each key-value head serves equally many queries."""
    T, K = x_TD.shape[0], k_DKH.shape[1]
    q_TKGH = jnp.einsum("td,dnh->tnh", x_TD, q_DnH).reshape(T, K, -1, q_DnH.shape[-1])
    scores_KGTT = jnp.einsum("tkgh,skh->kgts", q_TKGH, jnp.einsum("td,dkh->tkh", x_TD, k_DKH))
    weights_KGTT = jax.nn.softmax(jnp.where(jnp.tri(T, dtype=bool), scores_KGTT, -jnp.inf))
    y_TKGH = jnp.einsum("kgts,skh->tkgh", weights_KGTT, jnp.einsum("td,dkh->tkh", x_TD, v_DKH))
    return jnp.einsum("tnh,nhd->td", y_TKGH.reshape(T, -1, y_TKGH.shape[-1]), out_nHD)


def split_attention(
    x_TD: jax.Array, q_DnH: jax.Array, k_DKH: jax.Array, v_DKH: jax.Array, out_nHD: jax.Array
) -> jax.Array:
    """A rank's queries with its copy of their key-value head."""
    own_x_TD = jax.lax.pcast(x_TD, BOTH, to="varying")
    k, v = (jax.lax.pcast(w_DKH, DATA, to="varying") for w_DKH in (k_DKH, v_DKH))
    return jax.lax.psum(attention(own_x_TD, q_DnH, k, v, out_nHD), BOTH)


def sums(s: Sizes, axes: Axes) -> tuple[Sent, ...]:
    """Of activations forward, of their gradients backward, and of the copies' gradients of keys and values."""
    activations, head = s.tokens * s.embed, s.embed * s.head_dim
    return *(
        Sent(Kind.ALL_REDUCE, axes.ordered(BOTH), activations, phase=phase) for phase in (Phase.FORWARD, Phase.BACKWARD)
    ), *(Sent(Kind.ALL_REDUCE, (DATA,), head),) * 2


PARTS = (
    Part(
        "attention",
        takes,
        with_pullback(split_attention),
        (P(), P(), P(None, BOTH), P(None, TENSOR), P(None, TENSOR), P(BOTH)),
        with_pullback(attention),
        sums,
    ),
)


def claims(s: Sizes, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    ranks, kv_heads = axes.size, axes[TENSOR]
    if axes[DATA] == 1:
        return ()
    copies, book = Totals.of(along(measured, DATA)), 2 * s.embed * s.head_dim * FLOAT_BYTES
    return (
        decided(
            "ch15.tp_limits",
            copies.payload_bytes == book and axes[DATA] == kv_replicas(kv_heads, ranks),
            f"{kv_heads} key-value heads on {ranks} ranks: {axes[DATA]} copies of each, whose gradients of "
            f"{counted(copies.payload_bytes)} B are summed; "
            f"ceil(P/K) is {kv_replicas(kv_heads, ranks)}, 2 d h e is {counted(book)} B",
            statement="above K ranks key-value heads are replicated ceil(P/K) times and their gradients summed",
        ),
        decided(
            "ch15.tp_limits",
            6 in divisors(8),
            "neither 32 heads nor 8 key-value heads are divisible by 6 ranks; padded to 36, there are "
            f"{float(padded_share(32, 6)):.1%} more heads",
            statement="8 key-value heads are a cure for 6 ranks",
            disputed="4-5:D-18",
        ),
    )


EXPERIMENT = experiment(
    name="ch15_kv_heads",
    chapter=15,
    question="What does tensor parallelism cost beyond the number of key-value heads?",
    parts=PARTS,
    sizes=Sizes(),
    small=Sizes(tokens=8, embed=16, head_dim=4),
    axes=with_tensor_inside_host(DATA),
    claims=claims,
)
