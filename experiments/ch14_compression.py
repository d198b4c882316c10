"""Chapter 14: what does sending only the largest gradients save, and up to how many ranks?"""

from dataclasses import dataclass
from math import inf

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from lab.book.data_parallel import top_k_gain
from lab.core.ledger import Kind, Ledger, Totals
from lab.harness.claim import Claim, decided
from lab.harness.evidence import along, counted
from lab.harness.experiment import on_one_axis
from lab.harness.small_programs import Array, Part, Sent, experiment
from lab.meshes.axes import DATA, Axes

KEPT = 0.01
"""The share of elements that a rank sends."""


@dataclass(frozen=True)
class Sizes:
    """Elements of the gradient."""

    elements: int = 1_024_000

    @property
    def kept(self) -> int:
        return int(self.elements * KEPT)


def takes(sizes: Sizes, axes: Axes) -> tuple[Array]:
    """A gradient of each rank."""
    return (Array((axes.size, 1, sizes.elements), P(DATA)),)


def largest(g_N: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Values and indices."""
    index_K = jax.lax.top_k(jnp.abs(g_N), int(g_N.size * KEPT))[1]
    return g_N[index_K], index_K


def placed(value_K: jax.Array, index_K: jax.Array, elements: int) -> jax.Array:
    """Added up where ranks chose the same index."""
    return jnp.zeros(elements).at[index_K.ravel()].add(value_K.ravel())


def dense(g_11N: jax.Array) -> jax.Array:
    return jax.lax.psum(g_11N[0, 0], DATA)


def sparse(g_11N: jax.Array) -> jax.Array:
    index_K, value_K = (jax.lax.all_gather(x_K, DATA, tiled=True, to="invarying") for x_K in largest(g_11N[0, 0]))
    return placed(index_K, value_K, g_11N.size)


def dense_whole(g_P1N: jax.Array) -> jax.Array:
    return jnp.sum(g_P1N, (0, 1))


def sparse_whole(g_P1N: jax.Array) -> jax.Array:
    return placed(*jax.vmap(largest)(g_P1N[:, 0]), g_P1N.shape[-1])


def one_sum(sizes: Sizes, axes: Axes) -> tuple[Sent]:
    return (Sent(Kind.ALL_REDUCE, (DATA,), sizes.elements),)


def two_gathers(sizes: Sizes, axes: Axes) -> tuple[Sent, ...]:
    """Indices differ from rank to rank, so that every rank needs all pairs."""
    return tuple(Sent(Kind.ALL_GATHER, (DATA,), axes.size * sizes.kept, dtype=dtype) for dtype in ("f32", "s32"))


PARTS = (
    Part("dense", takes, dense, P(), dense_whole, one_sum),
    Part("top_k", takes, sparse, P(), sparse_whole, two_gathers),
)


def claims(sizes: Sizes, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    ranks = axes.size
    if ranks == 1:
        return ()
    # By kind, since gathers that compilers combine lose their scope.
    whole, some = (
        Totals.of(along(measured, DATA, kind=kind)).wire_bytes for kind in (Kind.ALL_REDUCE, Kind.ALL_GATHER)
    )
    book, printed = top_k_gain(KEPT, ranks, value_bytes=4), 1 / (2 * KEPT)
    gain = float(whole / some) if some else inf
    at_two_bytes = ", ".join(f"{top_k_gain(KEPT, P, value_bytes=2):.2f} at P={P}" for P in (8, 64, 128))
    evidence = (
        f"a rank sends {counted(whole)} B for the full gradient, {counted(some)} B for the largest {KEPT:.0%} of it: "
        f"{gain:g} times less"
    )
    return (
        decided(
            "ch14.topk_compression",
            abs(gain - book) < 1e-9 * book,
            f"{evidence}; 2e/(P k (4 + e)) is {book:g} at P={ranks}, k={KEPT:g}, e=4, and for values of 2 bytes "
            f"{at_two_bytes}",
            statement="the gain falls with the ranks: every rank's choice is gathered",
        ),
        decided(
            "ch14.topk_compression",
            gain >= printed,
            f"{evidence}, not the {printed:g} that values and indices of 4 bytes promise of {sizes.kept:,} elements, "
            "nor 33 of values of 2",
            statement="the gain is that of the payload, however many ranks there are",
            disputed="4-5:D-08",
        ),
    )


EXPERIMENT = experiment(
    name="ch14_compression",
    chapter=14,
    question="What does sending only the largest gradients save, and up to how many ranks?",
    parts=PARTS,
    sizes=Sizes(),
    small=Sizes(elements=1000),
    axes=on_one_axis(DATA),
    claims=claims,
)
