"""Chapter 28: what do random numbers of the gradients cost where all ranks draw the same ones, and where each draws its
own?"""

from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from lab.book.collectives import all_reduce_wire_bytes
from lab.book.compression import sparse_all_reduce_wire_bytes, sparse_ratio
from lab.core.ledger import Kind, Ledger
from lab.harness.claim import Claim, decided
from lab.harness.compressed_sums import (
    STEP,
    Sizes,
    by_method,
    compression_experiment,
    gradients,
    in_full,
    saving,
    sent_by,
)
from lab.harness.evidence import counted
from lab.harness.small_programs import FLOAT_BYTES, Part, Sent
from lab.meshes.axes import DATA, Axes
from lab.programs.transforms.sparse import SEED, kept, random_indices, random_k

SHARE = 0.01
OWN = "own_indices"


def at_the_same(g_PRC: jax.Array) -> jax.Array:
    """The sum where it was drawn, zeros elsewhere."""
    total_N = g_PRC.sum(0).ravel()
    index_K = random_indices(SHARE, total_N.size, jax.random.fold_in(jax.random.key(SEED), STEP))
    is_kept_N = jnp.zeros(total_N.size, bool).at[index_K].set(True)
    return jnp.where(is_kept_N, total_N, 0).reshape(g_PRC.shape[1:])


def drawn(x_N: jax.Array, rank: jax.Array | int) -> tuple[jax.Array, jax.Array]:
    """Values and indices of a rank's own."""
    index_K = random_indices(SHARE, x_N.size, jax.random.fold_in(jax.random.key(SEED), rank))
    return x_N[index_K], index_K


def at_own(g_1RC: jax.Array) -> jax.Array:
    pairs = drawn(g_1RC.ravel(), jax.lax.axis_index(DATA))
    value_PK, index_PK = (jax.lax.all_gather(x_K, DATA, to="invarying") for x_K in pairs)
    return jnp.zeros(g_1RC.size).at[index_PK].add(value_PK).reshape(g_1RC.shape[1:])


def at_own_whole(g_PRC: jax.Array) -> jax.Array:
    value_PK, index_PK = map(jnp.stack, zip(*(drawn(g_RC.ravel(), r) for r, g_RC in enumerate(g_PRC)), strict=True))
    return jnp.zeros(g_PRC[0].size).at[index_PK].add(value_PK).reshape(g_PRC.shape[1:])


def pairs(sizes: Sizes, axes: Axes) -> tuple[Sent, ...]:
    gathered = partial(Sent, Kind.ALL_GATHER, (DATA,), axes[DATA] * kept(SHARE, sizes.numbers))
    return gathered(dtype="f32"), gathered(dtype="s32")


PARTS = (
    by_method(random_k(SHARE), at_the_same),
    Part(OWN, gradients, at_own, P(), at_own_whole, pairs),
)


def claims(sizes: Sizes, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    ranks, k = axes[DATA], kept(SHARE, sizes.numbers)
    found, own = sent_by(measured, Kind.ALL_REDUCE), sent_by(measured, Kind.ALL_GATHER)
    ratio = Fraction(found.payload_bytes, FLOAT_BYTES * sizes.numbers)
    return (
        decided(
            "ch28.ratio",
            abs(float(ratio) - sparse_ratio(k / sizes.numbers, index_bits=0)) < 1e-9
            and found.wire_bytes == all_reduce_wire_bytes(FLOAT_BYTES * k, ranks),
            f"{k:,} values at the same indices are summed as they are, a share of {float(ratio):.4g}; "
            f"{saving(sizes, axes, found)}",
            statement="a shared key takes no index",
        ),
        decided(
            "ch28.compressed_allreduce",
            own.wire_bytes == sparse_all_reduce_wire_bytes(k, ranks),
            f"at indices of its own a rank sends {counted(own.wire_bytes)} B, "
            f"{float(own.wire_bytes / in_full(sizes, axes)):.4g} times what all numbers take",
            statement="random numbers at indices of each rank's own cost what the largest do",
        ),
    )


EXPERIMENT = compression_experiment(
    name="ch28_random_k",
    question="What do random 1 % of the gradients cost, drawn by all ranks alike or by each for itself?",
    parts=PARTS,
    claims=claims,
)
