"""Chapter 28: what do randomly rounded gradients send, exchanged in pieces or gathered whole from every rank?"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from lab.book.collectives import all_gather_wire_bytes
from lab.book.compression import qsgd_ratio
from lab.core.ledger import Kind, Ledger, Transfer
from lab.harness.claim import Claim, decided
from lab.harness.compressed_sums import (
    STEP,
    Sizes,
    as_sent,
    by_codec,
    compression_experiment,
    exchanged_in_bits,
    gradients,
    in_codes,
    in_full,
    in_pieces,
)
from lab.harness.evidence import counted
from lab.harness.small_programs import FLOAT_BYTES, Part, Sent
from lab.meshes.axes import DATA, Axes
from lab.programs.strategies.exchange import Message
from lab.programs.transforms import codecs
from lab.programs.transforms.quantized import SEED, padded

CODEC = codecs.qsgd()
LEVELS = codecs.QSGD_LEVELS + 1
GATHERED = "gathered"
"""A part: every rank's codes to every rank, as first published."""


def written(g_RC: jax.Array, rank: jax.Array | int) -> tuple[jax.Array, jax.Array]:
    """A rank's codes [K, B] and scales [K]."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(SEED), STEP), rank)
    x_N = jnp.pad(g_RC.ravel(), (0, padded(g_RC.size, 1, CODEC) - g_RC.size))
    return CODEC.encode(x_N.reshape(-1, CODEC.block), key)


def gathered(g_1RC: jax.Array) -> jax.Array:
    codes = written(g_1RC[0], jax.lax.axis_index(DATA))
    total_KB = CODEC.decode(*(jax.lax.all_gather(part, DATA, to="invarying") for part in codes)).sum(0)
    return total_KB.ravel()[: g_1RC.size].reshape(g_1RC.shape[1:])


def gathered_whole(g_PRC: jax.Array) -> jax.Array:
    total_KB = sum(CODEC.decode(*written(g_RC, rank)) for rank, g_RC in enumerate(g_PRC))
    return jnp.ravel(total_KB)[: g_PRC[0].size].reshape(g_PRC.shape[1:])


def of_all_ranks(sizes: Sizes, axes: Axes) -> tuple[Sent, ...]:
    codes, scales = CODEC.bytes(padded(sizes.numbers, 1, CODEC))
    return as_sent(
        tuple(
            Message(Kind.ALL_GATHER, dtype, axes[DATA] * size)
            for dtype, size in ((CODEC.dtype, codes), ("f32", scales))
        )
    )


PARTS = (
    by_codec(CODEC),
    Part(GATHERED, gradients, gathered, P(), gathered_whole, of_all_ranks),
)


def claims(sizes: Sizes, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    ranks = axes[DATA]
    # Filled up to whole blocks of every piece, and of a rank's matrix.
    pieces, at_once = (FLOAT_BYTES * padded(sizes.numbers, parts, CODEC) for parts in (ranks, 1))
    rows, whole = parts_of(sizes, axes, measured)
    codes, of_all = in_codes(CODEC, rows)[0], in_codes(CODEC, whole)[0]
    return (
        exchanged_in_bits(CODEC, sizes, axes, rows),
        decided(
            "ch28.ratio",
            codes.payload_bytes == 2 * qsgd_ratio(LEVELS) * pieces,
            f"a sign and {LEVELS} levels of {sizes.numbers:,} numbers are {counted(codes.payload_bytes)} B there and "
            f"back, {counted(pieces)} B in float32",
            statement="(1 + log2 s) / 32 of the dense size",
        ),
        decided(
            "ch28.compressed_allreduce",
            of_all.wire_bytes == all_gather_wire_bytes(ranks * int(qsgd_ratio(LEVELS) * at_once), ranks),
            f"of codes gathered whole from {ranks} ranks a rank sends {counted(of_all.wire_bytes)} B, "
            f"{float(of_all.wire_bytes / in_full(sizes, axes)):.3g} times an all-reduce in float32; of pieces "
            f"{counted(codes.wire_bytes)} B",
            statement="gathering every rank's codes grows with the ranks",
        ),
    )


def parts_of(sizes: Sizes, axes: Axes, measured: Ledger) -> tuple[list[Transfer], list[Transfer]]:
    """The rows of the exchange, and of the codes and scales that are gathered whole: of more than one rank's, or, of a
    matrix that fills no block, as much as the exchange gathers."""
    codes, scales = CODEC.bytes(padded(sizes.numbers, axes[DATA], CODEC))
    room = {CODEC.dtype: codes, "f32": scales}
    rows = in_pieces(measured)
    whole = [t for t in rows if t.payload_bytes > room[t.dtype]]
    if not whole:
        whole = [*{t.dtype: t for t in rows if t.kind is Kind.ALL_GATHER}.values()]
    return [t for t in rows if not any(t is other for other in whole)], whole


EXPERIMENT = compression_experiment(
    name="ch28_qsgd",
    question="What do randomly rounded gradients send, exchanged in pieces or gathered whole from every rank?",
    parts=PARTS,
    claims=claims,
)
