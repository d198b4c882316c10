"""Chapter 28: what do the largest numbers of every rank's gradients cost, indices included, and up to how many ranks is
that less than all of them?"""

from fractions import Fraction

import jax
import jax.numpy as jnp

from lab.book.compression import sparse_all_reduce_wire_bytes, sparse_break_even_density, sparse_ratio
from lab.core.ledger import Kind, Ledger
from lab.harness.claim import Claim, decided
from lab.harness.compressed_sums import Sizes, by_method, compression_experiment, in_full, saving, sent_by
from lab.harness.evidence import counted
from lab.harness.small_programs import FLOAT_BYTES
from lab.meshes.axes import DATA, Axes
from lab.programs.transforms.sparse import kept, top_k

SHARE = 0.01


def largest(g_PRC: jax.Array) -> jax.Array:
    """The sum of every rank's largest numbers."""
    x_PN = g_PRC.reshape(len(g_PRC), -1)
    last_P1 = jnp.sort(jnp.abs(x_PN), -1)[:, -kept(SHARE, x_PN.shape[1])][:, None]
    return jnp.where(jnp.abs(x_PN) >= last_P1, x_PN, 0).sum(0).reshape(g_PRC.shape[1:])


PARTS = (by_method(top_k(SHARE), largest),)


def claims(sizes: Sizes, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    ranks, k = axes[DATA], kept(SHARE, sizes.numbers)
    share = Fraction(k, sizes.numbers)
    found, full = sent_by(measured, Kind.ALL_GATHER), FLOAT_BYTES * sizes.numbers
    of_one_rank = Fraction(found.payload_bytes, ranks * full)
    even = share * in_full(sizes, axes) / found.wire_bytes if found.wire_bytes else None
    told = saving(sizes, axes, found)
    return (
        decided(
            "ch28.compressed_allreduce",
            found.wire_bytes == sparse_all_reduce_wire_bytes(k, ranks),
            f"{k:,} values and as many indices; {told}",
            statement="a gather of k pairs of 8 bytes from each rank",
        ),
        decided(
            "ch28.compressed_allreduce",
            even == sparse_break_even_density(ranks),
            f"{told}; at a share of {float(even or 0):.4g} of {ranks} ranks' numbers pairs would take as much",
            statement="less than the dense ring below a density of 1/n",
        ),
        decided(
            "ch28.ratio",
            abs(float(of_one_rank) - sparse_ratio(float(share))) < 1e-9,
            f"a rank's pairs are {float(of_one_rank):.4g} of its matrix, {counted(full)} B",
            statement="two words for each number kept",
        ),
        decided(
            "ch28.ratio",
            of_one_rank <= share,
            f"a rank's pairs are {float(of_one_rank):.4g} of its matrix, not {float(share):.4g}: {FLOAT_BYTES} B of "
            "each pair are its index",
            statement="top 1% is 100 times smaller",
            disputed="6-8:D-58",
        ),
    )


EXPERIMENT = compression_experiment(
    name="ch28_top_k",
    question="What do the largest 1 % of every rank's gradients cost, and up to how many ranks is it less than all?",
    parts=PARTS,
    claims=claims,
)
