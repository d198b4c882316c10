"""Chapter 14: what do ranks average when they have different numbers of tokens?"""

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
from lab.meshes.axes import DATA, Axes

TOKENS_MORE = 2
"""On each rank than on the one before."""


@dataclass(frozen=True)
class Sizes:
    """Places for tokens on a rank, of which rank r fills 2 (r + 1), and the side of the matrix that is learned."""

    tokens: int = 64
    embed: int = 256


def takes(sizes: Sizes, axes: Axes) -> tuple[Array, Array]:
    """The places of each rank, and the matrix."""
    return Array((axes.size, sizes.tokens, sizes.embed), P(DATA)), Array((sizes.embed, sizes.embed))


def filled(rank: jax.Array | int, tokens: int) -> jax.Array:
    """Which places hold a token."""
    return jnp.arange(tokens) < TOKENS_MORE * (rank + 1)


def gradient(x_TD: jax.Array, w_DD: jax.Array, is_token_T: jax.Array) -> jax.Array:
    """Of a loss summed over the tokens that are there."""
    return jax.grad(lambda w: jnp.sum(jnp.where(is_token_T[:, None], jnp.tanh(x_TD @ w) ** 2, 0)))(w_DD)


def own_gradient(x_1TD: jax.Array, w_DD: jax.Array) -> tuple[jax.Array, jax.Array]:
    """This rank's, and its number of tokens."""
    is_token_T = filled(jax.lax.axis_index(DATA), x_1TD.shape[1])
    return gradient(x_1TD[0], jax.lax.pcast(w_DD, DATA, to="varying"), is_token_T), jnp.sum(
        is_token_T, dtype=jnp.float32
    )


def weighted(x_1TD: jax.Array, w_DD: jax.Array) -> jax.Array:
    g_DD, count = own_gradient(x_1TD, w_DD)
    return jax.lax.psum(g_DD, DATA) / jax.lax.psum(count, DATA)


def mean_of_means(x_1TD: jax.Array, w_DD: jax.Array) -> jax.Array:
    g_DD, count = own_gradient(x_1TD, w_DD)
    return jax.lax.pmean(g_DD / count, DATA)


def every_rank(x_PTD: jax.Array, w_DD: jax.Array) -> tuple[jax.Array, jax.Array]:
    is_token_PT = jax.vmap(filled, (0, None))(jnp.arange(x_PTD.shape[0]), x_PTD.shape[1])
    return jax.vmap(gradient, (0, None, 0))(x_PTD, w_DD, is_token_PT), jnp.sum(is_token_PT, 1, dtype=jnp.float32)


def weighted_whole(x_PTD: jax.Array, w_DD: jax.Array) -> jax.Array:
    """One gradient, of all tokens at once."""
    P, T, D = x_PTD.shape
    is_token = jnp.concatenate([filled(rank, T) for rank in range(P)])
    return gradient(x_PTD.reshape(P * T, D), w_DD, is_token) / jnp.sum(is_token)


def mean_of_means_whole(x_PTD: jax.Array, w_DD: jax.Array) -> jax.Array:
    g_PDD, count_P = every_rank(x_PTD, w_DD)
    return jnp.mean(g_PDD / count_P[:, None, None], 0)


def sums(sizes: Sizes, axes: Axes) -> tuple[Sent, Sent]:
    """Of gradients and of numbers of tokens."""
    return Sent(Kind.ALL_REDUCE, (DATA,), sizes.embed**2), Sent(Kind.ALL_REDUCE, (DATA,), 1)


WEIGHTED, MEAN_OF_MEANS = "weighted", "mean_of_means"
PARTS = (
    Part(WEIGHTED, takes, weighted, P(), weighted_whole, sums),
    Part(MEAN_OF_MEANS, takes, mean_of_means, P(), mean_of_means_whole, lambda sizes, axes: sums(sizes, axes)[:1]),
)


def claims(sizes: Sizes, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if axes.size == 1:
        return ()
    right, plain = (moved(measured, scope) for scope in (WEIGHTED, MEAN_OF_MEANS))
    more = right.payload_bytes - plain.payload_bytes
    off, predicted = quarter_and_three_quarters()
    return (
        decided(
            "ch14.partition_weighted",
            more == FLOAT_BYTES,
            f"sums over counts are the gradient of all tokens at once, for {counted(more)} B more than a mean of means",
            statement="each rank's gradient weighs as much as its share of the tokens",
        ),
        decided(
            "ch14.partition_weighted",
            abs(off - predicted) < 1e-4 * predicted,
            f"with shares of 1/4 and 3/4 a mean of means is {off:.6f} off in its largest entry, (g_1 - g_2)/4 is "
            f"{predicted:.6f}",
            statement="a mean of means is off by (g_1 - g_2)/4 at w = (1/4, 3/4)",
            structural=True,
        ),
    )


def quarter_and_three_quarters() -> tuple[float, float]:
    """Largest entry of what a mean of means of two ranks is off by, and of (g_1 - g_2)/4, on one device."""
    draw = np.random.default_rng(0)
    x_TD, w_DD = (jnp.asarray(draw.normal(size=size), jnp.float32) for size in ((32, 16), (16, 16)))
    means = [
        gradient(x_TD[rows], w_DD, jnp.ones(size, bool)) / size for rows, size in ((slice(0, 8), 8), (slice(8, 32), 24))
    ]
    whole = gradient(x_TD, w_DD, jnp.ones(32, bool)) / 32
    return float(jnp.abs(sum(means) / 2 - whole).max()), float(jnp.abs(means[0] - means[1]).max() / 4)


EXPERIMENT = experiment(
    name="ch14_shares",
    chapter=14,
    question="What do ranks average when they have different numbers of tokens?",
    parts=PARTS,
    sizes=Sizes(),
    small=Sizes(tokens=32, embed=8),
    axes=on_one_axis(DATA),
    claims=claims,
)
