"""Chapter 28: what does PowerSGD send for a matrix of gradients, and what if bases are made before they are summed?"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from lab.book.collectives import all_gather_wire_bytes, all_reduce_wire_bytes
from lab.book.compression import low_rank_ratio
from lab.core.ledger import Kind, Ledger
from lab.harness.claim import Claim, decided
from lab.harness.compressed_sums import Sizes, by_method, compression_experiment, gradients, saving, sent_by
from lab.harness.evidence import counted
from lab.harness.small_programs import FLOAT_BYTES, Part, Sent
from lab.meshes.axes import DATA, Axes
from lab.programs.transforms.power_sgd import first_memory, matrices, orthonormal, power_sgd, rank_of

RANK = 4
PRINTED = "gathered"
"""A part: the book's listing."""


def start(g_RC: jax.Array) -> jax.Array:
    """The first right factor [C, k]."""
    return first_memory(RANK, [g_RC.shape], 1).factors[0]


def projected(g_PRC: jax.Array) -> jax.Array:
    """The sum on the span of its product with the right factor."""
    g_RC = g_PRC.sum(0)
    basis_Rk = jnp.linalg.qr(g_RC @ start(g_RC))[0]
    return basis_Rk @ (basis_Rk.T @ g_RC)


def local_factors(g_RC: jax.Array) -> tuple[jax.Array, jax.Array]:
    basis_Rk = orthonormal(g_RC @ start(g_RC))
    return basis_Rk, g_RC.T @ basis_Rk


def summed(left_PRk: jax.Array, right_PCk: jax.Array) -> jax.Array:
    return jnp.einsum("prk,pck->rc", left_PRk, right_PCk, precision=jax.lax.Precision.HIGHEST)


def gathered(g_1RC: jax.Array) -> jax.Array:
    """Bases made locally, so that both factors of every rank have to be gathered."""
    left_PRk, right_PCk = (jax.lax.all_gather(x, DATA, to="invarying") for x in local_factors(g_1RC[0]))
    return summed(left_PRk, right_PCk)


def gathered_whole(g_PRC: jax.Array) -> jax.Array:
    return summed(*jax.vmap(local_factors)(g_PRC))


def rank(sizes: Sizes) -> int:
    """No more than the matrix has."""
    return rank_of(RANK, matrices((sizes.rows, sizes.columns)))


def both_factors(sizes: Sizes, axes: Axes) -> tuple[Sent, ...]:
    return tuple(
        Sent(Kind.ALL_GATHER, (DATA,), axes[DATA] * rank(sizes) * side) for side in (sizes.rows, sizes.columns)
    )


PARTS = (
    by_method(power_sgd(RANK), projected),
    Part(PRINTED, gradients, gathered, P(), gathered_whole, both_factors),
)


def claims(sizes: Sizes, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    ranks, ratio = axes[DATA], low_rank_ratio(sizes.rows, sizes.columns, rank(sizes))
    factors = FLOAT_BYTES * sizes.numbers * ratio
    found, printed = sent_by(measured, Kind.ALL_REDUCE), sent_by(measured, Kind.ALL_GATHER).wire_bytes
    return (
        decided(
            "ch28.powersgd",
            found.payload_bytes == factors and found.wire_bytes == all_reduce_wire_bytes(int(factors), ranks),
            f"two factors of rank {rank(sizes)}, {counted(found.payload_bytes)} B; {saving(sizes, axes, found)}",
            statement="two sums of r (m + n) numbers in all",
        ),
        decided(
            "ch28.powersgd",
            printed == all_gather_wire_bytes(ranks * int(factors), ranks),
            f"of bases made locally a rank sends {counted(printed)} B, summed factors {counted(found.wire_bytes)} B",
            statement="gathering both factors of every rank grows with the ranks",
        ),
        decided(
            "ch28.powersgd",
            printed <= all_reduce_wire_bytes(int(factors), ranks),
            f"gathered factors are {counted(printed)} B of {ranks} ranks, summed ones {counted(found.wire_bytes)} B",
            statement="gathering local factors costs what r (m + n) / (m n) promises",
            disputed="6-8:D-64",
        ),
    )


EXPERIMENT = compression_experiment(
    name="ch28_power_sgd",
    question="What does PowerSGD send for a matrix of gradients, and what if bases are made before they are summed?",
    parts=PARTS,
    claims=claims,
)
