"""An all-reduce in few bits (Ch. 28): a sum of codes is no code of the sum, so pieces are exchanged, added up in
float32 by the rank that they are for, written again, and gathered. Scales travel beside the codes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lab.core.ledger import Kind
from lab.programs.strategies.exchange import Exchange, Message, Sizes
from lab.programs.strategies.exchanged import by_exchange
from lab.programs.strategies.strategy import Strategy
from lab.programs.transforms import codecs
from lab.programs.transforms.codecs import Codec
from lab.programs.transforms.flat import LANES, apart, count, flat

MANY = 8
"""Times what a whole row fills at most: an eighth more at worst."""
SEED = 28
"""Of what codecs draw; every step, rank and stage has numbers of its own."""


class Errors(NamedTuple):
    """What was not sent: of a rank's own vector [N], and of the sum of the piece that it adds up [N / ranks]."""

    own: jax.Array
    of_sum: jax.Array


def padded(numbers: int, ranks: int, codec: Codec) -> int:
    """To whole blocks in every rank's piece, and where that adds little, to whole rows of their scales."""
    piece = ranks * codec.block
    rows = LANES if numbers >= MANY * LANES * piece else 1
    return -(-numbers // (rows * piece)) * rows * piece


def sends(codec: Codec, sizes: Sequence[Sizes], ranks: int) -> tuple[Message, ...]:
    codes, scales = codec.bytes(padded(count(sizes), ranks, codec))
    return tuple(
        Message(kind, dtype, payload)
        for kind in (Kind.ALL_TO_ALL, Kind.ALL_GATHER)
        for dtype, payload in ((codec.dtype, codes), ("f32", scales))
    )


def no_errors(codec: Codec, sizes: Sequence[Sizes], ranks: int) -> Errors:
    whole = padded(count(sizes), ranks, codec)
    return Errors(jnp.zeros(whole), jnp.zeros(whole // ranks))


def all_reduce(
    codec: Codec, x_N: jax.Array, errors: Errors | None, step: jax.Array | int, over: tuple[str, ...]
) -> tuple[jax.Array, Errors]:
    """The sum over ranks, equal on all of them, and what was not sent this time.

    Args:
      x_N: a rank's float32 vector of any length.
      errors: what was not sent before, to be sent now; None: it is lost.
      step: of codecs that draw, each has its own numbers.
      over: axes inside `jax.shard_map`.

    Cost: an all_to_all and an all_gather of the codes, and of the scales; `sends`.
    """
    ranks, block = jax.lax.axis_size(over), codec.block
    whole = padded(x_N.size, ranks, codec)
    own_RKB = jnp.pad(x_N, (0, whole - x_N.size)).reshape(ranks, -1, block)
    if errors is not None:
        own_RKB += errors.own.reshape(own_RKB.shape)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(SEED), step), jax.lax.axis_index(over))
    sent = codec.encode(own_RKB, jax.random.fold_in(key, 0))
    pieces_RKB = codec.decode(*(jax.lax.all_to_all(part, over, 0, 0) for part in sent))
    sum_KB = pieces_RKB.sum(0)
    if errors is not None:
        sum_KB += errors.of_sum.reshape(sum_KB.shape)
    written = codec.encode(sum_KB, jax.random.fold_in(key, 1))
    sum_RKB = codec.decode(*(jax.lax.all_gather(part, over, to="invarying") for part in written))
    left = Errors((own_RKB - codec.decode(*sent)).ravel(), (sum_KB - codec.decode(*written)).ravel())
    return sum_RKB.ravel()[: x_N.size], left


def _exchange(
    codec: Codec, gradients: Sequence[jax.Array], memory: tuple[()], step: jax.Array, over: tuple[str, ...]
) -> tuple[list[jax.Array], tuple[()]]:
    total_N, _ = all_reduce(codec, flat(gradients), None, step, over)
    return apart(total_N, [g.shape for g in gradients]), memory


def _exchange_with_feedback(
    codec: Codec, gradients: Sequence[jax.Array], memory: Errors, step: jax.Array, over: tuple[str, ...]
) -> tuple[list[jax.Array], Errors]:
    total_N, left = all_reduce(codec, flat(gradients), memory, step, over)
    return apart(total_N, [g.shape for g in gradients]), left


@cache
def quantized(codec: Codec) -> Strategy:
    """Gradients in this codec; what it rounds away is lost."""
    return by_exchange(Exchange(run=partial(_exchange, codec), sends=partial(sends, codec)))


@cache
def one_bit_adam() -> Strategy:
    """Of steps after a warm-up in full: momenta as signs, what these lose fed back on both sides, and the variance as
    it was. Source: Tang et al. 2021."""
    codec = codecs.signs()
    return by_exchange(
        Exchange(
            run=partial(_exchange_with_feedback, codec),
            sends=partial(sends, codec),
            memory=partial(no_errors, codec),
            of_momentum=True,
        )
    )
