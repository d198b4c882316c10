"""Chapter 17: Ulysses between neighbours and a ring beyond them: what does each send once heads are sharded?"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from lab.attention.exchange import ulysses_attention
from lab.attention.mask import CAUSAL
from lab.attention.ring import ring_attention
from lab.book.context import hybrid_hop_bytes, ulysses_wire_bytes
from lab.core.ledger import Kind, Ledger, Phase, Totals
from lab.harness.claim import Claim, decided
from lab.harness.evidence import along, counted
from lab.harness.experiment import on_two_axes
from lab.harness.small_programs import (
    FLOAT_BYTES,
    Array,
    Part,
    Sent,
    experiment,
    with_pullback,
)
from lab.meshes.axes import Axes

RING, ULYSSES = "ring", "ulysses"
SPLIT = P(None, (RING, ULYSSES))


@dataclass(frozen=True)
class Sizes:
    """One sequence of `length` tokens; heads of keys, each with as many queries."""

    length: int = 256
    kv_heads: int = 8
    queries: int = 2
    head_dim: int = 32


def takes(s: Sizes, axes: Axes) -> tuple[Array, ...]:
    """Queries, keys, values, and what comes back to the outputs."""
    q, kv = (1, s.length, s.kv_heads, s.queries, s.head_dim), (1, s.length, s.kv_heads, s.head_dim)
    return Array(q, SPLIT), Array(kv, SPLIT), Array(kv, SPLIT), Array(q, SPLIT)


def hybrid(q_BSKGH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array) -> jax.Array:
    """A ring for each rank's heads, among ranks that each have the tokens of all their neighbours (Fang & Zhao
    2024)."""
    return ulysses_attention(q_BSKGH, k_BTKH, v_BTKH, CAUSAL, ULYSSES, partial(ring_attention, axis=RING))


def on_one_device(q_BSKGH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array) -> jax.Array:
    """Nothing of `lab.attention`, whose mask the ring has: a token sees those before it, and itself."""
    _, S, _, _, H = q_BSKGH.shape
    is_seen_ST = np.array([[key <= query for key in range(S)] for query in range(S)])
    scores_BKGST = jnp.einsum("bskgh,btkh->bkgst", q_BSKGH, k_BTKH) * H**-0.5
    weights_BKGST = jax.nn.softmax(jnp.where(is_seen_ST, scores_BKGST, -jnp.inf))
    return jnp.einsum("bkgst,btkh->bskgh", weights_BKGST, v_BTKH)


def there_and_back(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """At the default precision a TPU multiplies in bf16, and narrows what it sends to that."""
    with jax.default_matmul_precision("highest"):
        return with_pullback(hybrid)(*arrays)


def sends(s: Sizes, axes: Axes) -> tuple[Sent, ...]:
    """All-to-alls of queries, keys, values and outputs, twice; keys and values round twice, their gradients round and
    home."""
    keys = s.length // axes.size * s.kv_heads * s.head_dim
    exchanged = [
        Sent(Kind.ALL_TO_ALL, (ULYSSES,), elements, 2, phase=phase)
        for phase in (Phase.FORWARD, Phase.BACKWARD)
        for elements in (keys * s.queries, keys)
    ]
    hops = 2 * (axes[RING] - 1)
    carried = [
        Sent(Kind.COLLECTIVE_PERMUTE, (RING,), keys, times, phase=phase, shift=1)
        for phase, times in ((Phase.FORWARD, hops), (Phase.BACKWARD, 2 * hops + 2))
    ]
    return (*exchanged, *carried)


PARTS = (Part("hybrid", takes, there_and_back, SPLIT, with_pullback(on_one_device), sends),)


def claims(s: Sizes, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    U, R = axes[ULYSSES], axes[RING]
    if 1 in (U, R):
        return ()
    query_dim, kv_dim = s.kv_heads * s.queries * s.head_dim, s.kv_heads * s.head_dim
    exchanged, round_ = (Totals.of(along(measured, axis, phase=Phase.FORWARD)) for axis in (ULYSSES, RING))
    inner = ulysses_wire_bytes(s.length // R, query_dim, kv_dim, FLOAT_BYTES, U)
    hop, of_node = (
        hybrid_hop_bytes(s.length, kv_dim, FLOAT_BYTES, U, R),
        hybrid_hop_bytes(s.length, kv_dim, FLOAT_BYTES, 1, R),
    )
    found, sent = (
        round_.wire_bytes / (R - 1),
        f"{exchanged.executions} all-to-alls send {counted(exchanged.wire_bytes)} B a rank over {U} ranks",
    )
    outer = f"a hop over {R} ranks carries {counted(found)} B of keys and values"
    of_all = f"{outer}, not {counted(of_node)}"
    return (
        decided(
            "ch17.hybrid_usp",
            exchanged.wire_bytes == inner,
            f"{sent}; of {s.length // R} tokens (P-1)/P^2 (2A+2K) h S e is {counted(inner)} B",
        ),
        decided(
            "ch17.hybrid_usp",
            found == hop,
            f"{outer}; 2 b (S/R) (K h / U) e is {counted(hop)} B",
            statement="heads are split already when the ring starts",
        ),
        decided(
            "ch17.hybrid_usp",
            found == of_node,
            of_all,
            statement="every rank sends all heads of its node's tokens",
            disputed="4-5:D-40",
        ),
    )


EXPERIMENT = experiment(
    name="ch17_hybrid",
    chapter=17,
    question="Ulysses between neighbours and a ring beyond them: what does each send once heads are sharded?",
    parts=PARTS,
    sizes=Sizes(),
    small=Sizes(length=32, head_dim=4),
    axes=on_two_axes(RING, ULYSSES),
    claims=claims,
)
