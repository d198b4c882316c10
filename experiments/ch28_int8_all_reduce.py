"""Chapter 28: what does an all-reduce in 8-bit integers send, scales included, and what if they are made floats again
before they are summed?"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from lab.book.compression import quantized_all_reduce_wire_bytes
from lab.core.ledger import Kind, Ledger
from lab.harness.claim import Claim, decided
from lab.harness.compressed_sums import (
    Sizes,
    by_codec,
    compression_experiment,
    exchanged_in_bits,
    gradients,
    in_full,
    in_pieces,
    sent_by,
)
from lab.harness.evidence import counted
from lab.harness.small_programs import FLOAT_BYTES, Part, Sent
from lab.meshes.axes import DATA, Axes
from lab.programs.transforms import codecs

CODEC = codecs.int8()
PRINTED = "dequantised"
"""A part: the book's listing."""


def rounded(g_RC: jax.Array) -> jax.Array:
    """With one scale."""
    scale = jnp.max(jnp.abs(g_RC)) / 127
    return jnp.round(g_RC / scale) * scale


def dequantised(g_1RC: jax.Array) -> jax.Array:
    return jax.lax.psum(rounded(g_1RC[0]), DATA)


def one_sum(sizes: Sizes, axes: Axes) -> tuple[Sent]:
    return (Sent(Kind.ALL_REDUCE, (DATA,), sizes.numbers),)


PARTS = (
    by_codec(CODEC),
    Part(PRINTED, gradients, dequantised, P(), lambda g_PRC: jax.vmap(rounded)(g_PRC).sum(0), one_sum),
)


def claims(sizes: Sizes, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    printed = sent_by(measured, Kind.ALL_REDUCE).wire_bytes
    return (
        exchanged_in_bits(CODEC, sizes, axes, in_pieces(measured)),
        decided(
            "ch28.compressed_allreduce",
            printed == in_full(sizes, axes),
            f"integers made floats again before they are summed take {counted(printed)} B",
            statement="dequantised numbers travel at full size",
        ),
        decided(
            "ch28.compressed_allreduce",
            printed == quantized_all_reduce_wire_bytes(FLOAT_BYTES * sizes.numbers, axes[DATA], CODEC.bits),
            f"they take {counted(printed)} B, not a quarter of it",
            statement="dequantising before an all-reduce saves what 8 bits promise",
            disputed="6-8:D-66",
        ),
    )


EXPERIMENT = compression_experiment(
    name="ch28_int8_all_reduce",
    question="What does an all-reduce in 8-bit integers send, and what if they are made floats before they are summed?",
    parts=PARTS,
    claims=claims,
)
