"""Experiments on the sum of one matrix of gradients from each rank (Ch. 28): as a method exchanges it, and as the book
has it where that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import inf

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from lab.book.collectives import all_reduce_wire_bytes
from lab.book.compression import FLOAT_BITS, quantized_all_reduce_wire_bytes
from lab.core.known import known
from lab.core.ledger import Kind, Ledger, Totals, Transfer
from lab.harness.claim import Claim, decided
from lab.harness.evidence import along, counted
from lab.harness.experiment import Experiment, on_one_axis
from lab.harness.small_programs import FLOAT_BYTES, Array, Part, Sent, experiment
from lab.meshes.axes import DATA, Axes
from lab.programs.strategies.exchange import Exchange, Message
from lab.programs.strategies.strategy import Strategy
from lab.programs.transforms.codecs import Codec
from lab.programs.transforms.quantized import SEED, padded, quantized

TARGETS = ("cpu:8", "gpu:h100:2x8", "tpu:v5p:2x2x4")
WITH_1024_DEVICES = ("gpu:h100:128x8", "tpu:v5p:8x8x16")
EXCHANGED = "exchanged"
"""A part: what the method does. Claims tell it from others by kinds of collectives, since what a compiler combines has
no scope."""
STEP = 0
"""At which random numbers are drawn."""


@dataclass(frozen=True)
class Sizes:
    """Of the matrix that each rank has."""

    rows: int = 4096
    columns: int = 4096

    @property
    def numbers(self) -> int:
        return self.rows * self.columns


SMALL = Sizes(40, 48)


def gradients(sizes: Sizes, axes: Axes) -> tuple[Array]:
    """One of each rank."""
    return (Array((axes[DATA], sizes.rows, sizes.columns), P(DATA)),)


def exchanged(exchange: Exchange, g_1RC: jax.Array) -> jax.Array:
    """The first time, when nothing is fed back yet."""
    g_RC, ranks = g_1RC[0], jax.lax.axis_size(DATA)
    # Behind a barrier, or compilers draw all random numbers while they compile.
    step = jax.lax.optimization_barrier(jnp.int32(STEP))
    sums, _ = exchange.run([g_RC], exchange.memory([g_RC.shape], ranks), step, (DATA,))
    return sums[0]


def as_sent(messages: Sequence[Message]) -> tuple[Sent, ...]:
    return tuple(Sent(kind, (DATA,), size // FLOAT_BYTES, dtype=dtype) for kind, dtype, size in messages)


def by_method(strategy: Strategy, whole: Callable[[jax.Array], jax.Array]) -> Part:
    """Args: whole: of all ranks' matrices [P, R, C], to what the exchange is to come to."""
    exchange = known(strategy.exchange)

    def sends(sizes: Sizes, axes: Axes) -> tuple[Sent, ...]:
        return as_sent(tuple(exchange.sends([(sizes.rows, sizes.columns)], axes[DATA])))

    return Part(EXCHANGED, gradients, partial(exchanged, exchange), P(), whole, sends)


def by_codec(codec: Codec) -> Part:
    """What an exchange of codes does."""
    return by_method(quantized(codec), partial(rounded_twice, codec))


def rounded_twice(codec: Codec, g_PRC: jax.Array) -> jax.Array:
    """What an all-reduce in this codec comes to: every rank's matrix rounded, and the sum rounded again."""
    ranks, numbers = g_PRC.shape[0], g_PRC[0].size
    x_PN = jnp.pad(g_PRC.reshape(ranks, -1), ((0, 0), (0, padded(numbers, ranks, codec) - numbers)))
    x_PPKB = x_PN.reshape(ranks, ranks, -1, codec.block)
    step = jax.random.fold_in(jax.random.key(SEED), STEP)
    keys_P = [jax.random.fold_in(step, rank) for rank in range(ranks)]

    def rounded(x: jax.Array, key: jax.Array, stage: int) -> jax.Array:
        return codec.decode(*codec.encode(x, jax.random.fold_in(key, stage)))

    sum_PKB = jnp.stack([rounded(x_PKB, key, 0) for x_PKB, key in zip(x_PPKB, keys_P, strict=True)]).sum(0)
    again_PKB = jnp.stack([rounded(x_KB, key, 1) for x_KB, key in zip(sum_PKB, keys_P, strict=True)])
    return again_PKB.ravel()[:numbers].reshape(g_PRC.shape[1:])


def sent_by(measured: Ledger, *kinds: Kind) -> Totals:
    """What these kinds of collectives send; sums that gather are none."""
    return Totals.of(t for kind in kinds for t in along(measured, DATA, kind=kind) if not t.is_masked_gather)


def in_full(sizes: Sizes, axes: Axes) -> Fraction:
    """Wire bytes of one all-reduce in float32."""
    return all_reduce_wire_bytes(FLOAT_BYTES * sizes.numbers, axes[DATA])


def saving(sizes: Sizes, axes: Axes, found: Totals) -> str:
    """A sentence: what a rank sends beside an all-reduce in float32."""
    times = float(in_full(sizes, axes) / found.wire_bytes) if found.wire_bytes else inf
    gain = f"{times:.4g} times less than" if times > 1 else f"{1 / times:.4g} times as much as"
    return f"a rank of {axes[DATA]} sends {counted(found.wire_bytes)} B of {sizes.numbers:,} numbers, {gain} in float32"


def compression_experiment(
    name: str,
    question: str,
    parts: Sequence[Part],
    claims: Callable[[Sizes, Axes, Ledger], tuple[Claim, ...]],
) -> Experiment:
    """Compiled for 16 devices, and for 1,024 by `lab verify --full`."""
    found = experiment(
        name=name,
        chapter=28,
        question=question,
        parts=parts,
        sizes=Sizes(),
        small=SMALL,
        axes=on_one_axis(DATA),
        claims=lambda sizes, axes, measured: claims(sizes, axes, measured) if axes[DATA] > 1 else (),
    )
    return replace(found, targets=TARGETS, more_targets=WITH_1024_DEVICES)


def codec_experiment(name: str, question: str, codec: Codec) -> Experiment:
    """An exchange of codes, and what they and their scales take."""

    def claims(sizes: Sizes, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
        return (exchanged_in_bits(codec, sizes, axes, in_pieces(measured)),)

    return compression_experiment(name, question, (by_codec(codec),), claims)


def in_codes(codec: Codec, rows: Iterable[Transfer]) -> tuple[Totals, Totals]:
    """What these send of codes, and of their scales."""
    rows = tuple(rows)
    return Totals.of(t for t in rows if t.dtype == codec.dtype), Totals.of(t for t in rows if t.dtype != codec.dtype)


def exchanged_in_bits(codec: Codec, sizes: Sizes, axes: Axes, rows: Sequence[Transfer]) -> Claim:
    """The book's volume of an all-reduce in b bits, and what scales add to it.

    Args:
      rows: of the exchange.
    """
    ranks = axes[DATA]
    full = FLOAT_BYTES * padded(sizes.numbers, ranks, codec)
    codes, scales = in_codes(codec, rows)
    expected = quantized_all_reduce_wire_bytes(full, ranks, codec.bits)
    beside = quantized_all_reduce_wire_bytes(full, ranks, FLOAT_BITS) / codec.block
    return decided(
        "ch28.compressed_allreduce",
        codes.wire_bytes == expected and scales.wire_bytes == beside,
        f"codes of {codec.bits} bits take {counted(codes.wire_bytes)} B and a scale for {codec.block} of them "
        f"{counted(scales.wire_bytes)} B; {saving(sizes, axes, Totals.of(rows))}",
        statement=f"2 (n - 1) / n V b / 32 of b = {codec.bits}, and scales beside it",
    )


def in_pieces(measured: Ledger) -> tuple[Transfer, ...]:
    """The rows of an exchange in pieces."""
    return tuple(t for kind in (Kind.ALL_TO_ALL, Kind.ALL_GATHER) for t in along(measured, DATA, kind=kind))
