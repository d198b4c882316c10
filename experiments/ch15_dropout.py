"""Chapter 15: which ranks must draw the same dropout mask, and which must not?"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from lab.core.ledger import Kind, Ledger
from lab.harness.claim import Claim, decided
from lab.harness.evidence import counted
from lab.harness.experiment import on_one_axis
from lab.harness.small_programs import FLOAT_BYTES, Array, Part, Sent, experiment, moved
from lab.meshes.axes import TENSOR, Axes

KEEP = 0.5
SEED = 15


@dataclass(frozen=True)
class Sizes:
    """Tokens, and the width of what is replicated and of what each rank has of what is split."""

    tokens: int = 256
    embed: int = 512


def dropped(x: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.where(jax.random.bernoulli(key, KEEP, x.shape), x / KEEP, 0)


def keys(ranks: jax.Array) -> jax.Array:
    """One for each rank."""
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(SEED), ranks)


def takes(s: Sizes, axes: Axes) -> tuple[Array]:
    """Each rank's columns."""
    return (Array((axes.size, s.tokens, s.embed), P(TENSOR)),)


def on_split(x_1TD: jax.Array) -> jax.Array:
    """Every rank drops columns of its own by a key of its own; their sum leaves."""
    return jax.lax.psum(dropped(x_1TD[0], keys(jax.lax.axis_index(TENSOR)[None])[0]), TENSOR)


def on_sum(x_1TD: jax.Array) -> jax.Array:
    """Every rank drops the same of the sum, by one key: the copies stay equal."""
    return dropped(jax.lax.psum(x_1TD[0], TENSOR), jax.random.key(SEED))


def on_split_whole(x_PTD: jax.Array) -> jax.Array:
    return jnp.sum(jax.vmap(dropped)(x_PTD, keys(jnp.arange(len(x_PTD)))), 0)


def on_sum_whole(x_PTD: jax.Array) -> jax.Array:
    return dropped(jnp.sum(x_PTD, 0), jax.random.key(SEED))


def one_sum(s: Sizes, axes: Axes) -> tuple[Sent]:
    return (Sent(Kind.ALL_REDUCE, (TENSOR,), s.tokens * s.embed),)


SPLIT, SUM = "split", "sum"
PARTS = (
    Part(SPLIT, takes, on_split, P(), on_split_whole, one_sum),
    Part(SUM, takes, on_sum, P(), on_sum_whole, one_sum),
)


def claims(s: Sizes, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    ranks = axes.size
    if ranks == 1:
        return ()
    sums, book = (moved(measured, scope).payload_bytes for scope in (SPLIT, SUM)), s.tokens * s.embed * FLOAT_BYTES
    found, rest = list(sums), measured.totals().payload_bytes - 2 * book
    same, own = noise(ranks, is_same=True), noise(ranks, is_same=False)
    return (
        decided(
            "ch15.dropout_rng",
            found == [book, book] and rest == 0,
            f"{' and '.join(map(counted, found))} B, one sum of activations each, and {counted(rest)} B for masks: a "
            "key and a rank's number give them",
            statement="masks cost no communication",
        ),
        decided(
            "ch15.dropout_rng",
            same < 1.5 * own,
            f"on columns sharded over {ranks} ranks, one mask for all makes the noise of their sum {same / own:.1f} "
            "times that of a mask each; "
            "on copies, it keeps them equal",
            statement="the mask must be the same on all ranks",
            disputed="4-5:D-17",
        ),
    )


def noise(ranks: int, is_same: bool, elements: int = 20_000) -> float:
    """Variance of a sum over ranks of equal values, each dropped by a mask of its own or by one for all."""
    some = jnp.zeros(ranks, int) if is_same else jnp.arange(ranks)
    return float(np.var(np.asarray(jnp.sum(jax.vmap(dropped)(jnp.ones((ranks, elements)), keys(some)), 0))))


EXPERIMENT = experiment(
    name="ch15_dropout",
    chapter=15,
    question="Which ranks must draw the same dropout mask, and which must not?",
    parts=PARTS,
    sizes=Sizes(),
    small=Sizes(tokens=8, embed=16),
    axes=on_one_axis(TENSOR),
    claims=claims,
)
