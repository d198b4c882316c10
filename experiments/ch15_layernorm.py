"""Chapter 15: what does LayerNorm over a sharded hidden dim send, and which moments survive float32?"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from lab.book.tensor_parallel import merged_moments, moments_bytes
from lab.core.ledger import Kind, Ledger
from lab.harness.claim import Claim, decided
from lab.harness.evidence import counted
from lab.harness.experiment import on_one_axis
from lab.harness.small_programs import Array, Part, Sent, experiment, moved
from lab.meshes.axes import TENSOR, Axes

SPLIT = P(None, TENSOR)
ACTIVATION_BYTES, PRINTED_RATIO = 2, 2000
"""Of an activation in 16 bits; and the book's for d = 4096."""


@dataclass(frozen=True)
class Sizes:
    """Tokens and hidden dim."""

    tokens: int = 512
    embed: int = 1024


def takes(s: Sizes, axes: Axes) -> tuple[Array]:
    return (Array((s.tokens, s.embed), SPLIT),)


def row_takes(s: Sizes, axes: Axes) -> tuple[Array, Array]:
    return Array((s.tokens, s.embed), SPLIT), Array((s.embed, s.embed), P(TENSOR, None))


def layer_norm(x_TD: jax.Array) -> jax.Array:
    centred = x_TD - jnp.mean(x_TD, 1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, 1, keepdims=True) + 1e-5)


def by_sums(x_Td: jax.Array) -> jax.Array:
    """Sums and sums of squares, in one reduction [T, 2]."""
    D = x_Td.shape[1] * jax.lax.axis_size(TENSOR)
    mean_T, square_T = jax.lax.psum(jnp.stack([jnp.sum(x_Td, 1), jnp.sum(x_Td**2, 1)], 1), TENSOR).T / D
    return (x_Td - mean_T[:, None]) * jax.lax.rsqrt(square_T - mean_T**2 + 1e-5)[:, None]


def by_moments(x_Td: jax.Array) -> jax.Array:
    """The mean first, then squares around it: two reductions [T]."""
    D = x_Td.shape[1] * jax.lax.axis_size(TENSOR)
    centred_Td = x_Td - jax.lax.psum(jnp.sum(x_Td, 1), TENSOR)[:, None] / D
    return centred_Td * jax.lax.rsqrt(jax.lax.psum(jnp.sum(centred_Td**2, 1), TENSOR) / D + 1e-5)[:, None]


def row_product(x_Td: jax.Array, w_dD: jax.Array) -> jax.Array:
    return jax.lax.psum(x_Td @ w_dD, TENSOR)


def sums(*elements: int) -> tuple[Sent, ...]:
    return tuple(Sent(Kind.ALL_REDUCE, (TENSOR,), n) for n in elements)


SUMS, MOMENTS, ACTIVATIONS = "sums", "moments", "activations"
PARTS = (
    Part(SUMS, takes, by_sums, SPLIT, layer_norm, lambda s, axes: sums(2 * s.tokens)),
    Part(MOMENTS, takes, by_moments, SPLIT, layer_norm, lambda s, axes: sums(s.tokens, s.tokens)),
    Part(ACTIVATIONS, row_takes, row_product, P(), jnp.matmul, lambda s, axes: sums(s.tokens * s.embed)),
)


def claims(s: Sizes, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    ranks = axes.size
    if ranks == 1:
        return ()
    once, apart, activations = (moved(measured, scope) for scope in (SUMS, MOMENTS, ACTIVATIONS))
    book = moments_bytes(s.tokens)
    ratio, of_4096 = activations.payload_bytes / once.payload_bytes * ACTIVATION_BYTES / 4, 4096 / 4
    off_sums, off_moments = variances_off(ranks)
    return (
        decided(
            "ch15.layernorm_parallel",
            (once.executions, once.payload_bytes, apart.payload_bytes) == (1, book, book),
            f"{once.executions} reduction of {counted(once.payload_bytes)} B, 2 b s e is {counted(book)} B; "
            f"mean and squares around it take {apart.executions} reductions, {counted(apart.payload_bytes)} B together",
        ),
        decided(
            "ch15.layernorm_parallel",
            ratio * 4096 / s.embed >= PRINTED_RATIO,
            f"a row-parallel product of these tokens moves {ratio:g} times as much where activations have 16 bits: "
            f"d/4, at d = 4096 {of_4096:g} times, "
            f"not {PRINTED_RATIO:,}, which sets a payload against the wire bytes of two reductions",
            statement="2,000 times less than activations",
            disputed="4-5:D-16",
        ),
        decided(
            "ch15.layernorm_parallel",
            off_moments < 1e-4 and off_sums > 100 * off_moments,
            f"in float32 at mean 1,000 and deviation 1, cut over {ranks} ranks: Q/d - mu^2 gives variances up to "
            f"{off_sums:.1%} off, merged moments {off_moments:.1e}",
            statement="Q/d - mu^2 cancels, merged moments do not",
        ),
    )


def variances_off(ranks: int, tokens: int = 64, embed: int = 4096) -> tuple[float, float]:
    """Largest relative error of variances in float32, from sums and from merged moments; float64 is the judge."""
    x_TD = (1000 + np.random.default_rng(15).normal(size=(tokens, embed))).astype(np.float32)
    right_T = x_TD.astype(np.float64).var(1)
    parts = np.split(x_TD, ranks, 1)
    sum_T, square_T = (
        sum(part.sum(1, dtype=np.float32) for part in some) for some in (parts, [part**2 for part in parts])
    )
    moments = [
        (float(part.shape[1]), part.mean(1), ((part - part.mean(1, keepdims=True)) ** 2).sum(1)) for part in parts
    ]
    merged = moments[0]
    for other in moments[1:]:
        merged = merged_moments(*merged, *other)
    found = square_T / np.float32(embed) - (sum_T / np.float32(embed)) ** 2, merged[2] / np.float32(embed)
    of_squares, of_moments = (float(np.abs(variance_T / right_T - 1).max()) for variance_T in found)
    return of_squares, of_moments


EXPERIMENT = experiment(
    name="ch15_layernorm",
    chapter=15,
    question="What does LayerNorm over a sharded hidden dim send, and which moments survive float32?",
    parts=PARTS,
    sizes=Sizes(),
    small=Sizes(tokens=8, embed=64),
    axes=on_one_axis(TENSOR),
    claims=claims,
)
