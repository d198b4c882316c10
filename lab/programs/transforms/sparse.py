"""A few of the gradients' numbers, and what was not sent fed back (Ch. 28): the largest of each rank, whose indices
travel beside them, or the same random ones of all ranks, whose values are summed as they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from math import ceil

import jax
import jax.numpy as jnp

from lab.core.ledger import Kind
from lab.meshes.errors import UsageError
from lab.programs.strategies.exchange import Exchange, Message, Sizes
from lab.programs.strategies.exchanged import by_exchange
from lab.programs.strategies.strategy import Strategy
from lab.programs.transforms.flat import LANES, apart, count, flat

SEED = 28
"""Of the random indices, which all ranks draw alike."""
NUMBER_BYTES = 4
"""Of a value, and of an index."""


def kept(share: float, numbers: int) -> int:
    """Of so many, whole rows of `LANES`."""
    return min(numbers, ceil(share * numbers / LANES) * LANES)


def no_errors(sizes: Sequence[Sizes], ranks: int) -> jax.Array:
    return jnp.zeros(count(sizes))


def top_k_sends(share: float, sizes: Sequence[Sizes], ranks: int) -> tuple[Message, ...]:
    gathered = ranks * kept(share, count(sizes)) * NUMBER_BYTES
    return Message(Kind.ALL_GATHER, "f32", gathered), Message(Kind.ALL_GATHER, "s32", gathered)


def random_k_sends(share: float, sizes: Sequence[Sizes], ranks: int) -> tuple[Message, ...]:
    return (Message(Kind.ALL_REDUCE, "f32", kept(share, count(sizes)) * NUMBER_BYTES),)


def top_k_sum(share: float, x_N: jax.Array, over: tuple[str, ...]) -> tuple[jax.Array, jax.Array]:
    """The sum of every rank's largest numbers, equal on all ranks, and what a rank did not send.

    Args:
      x_N: a rank's float32 vector.
      over: axes inside `jax.shard_map`.

    Cost: an all_gather of values and one of indices; `top_k_sends`.
    """
    index_K = jax.lax.top_k(jnp.abs(x_N), kept(share, x_N.size))[1]
    value_RK, index_RK = (jax.lax.all_gather(x_K, over, to="invarying") for x_K in (x_N[index_K], index_K))
    # Added up where ranks chose the same index.
    return jnp.zeros(x_N.size).at[index_RK].add(value_RK), x_N.at[index_K].set(0)


def random_indices(share: float, numbers: int, key: jax.Array) -> jax.Array:
    """[K], no two alike: a permutation would sort all numbers."""
    return jax.lax.top_k(jax.random.uniform(key, (numbers,)), kept(share, numbers))[1]


def random_k_sum(share: float, x_N: jax.Array, step: jax.Array, over: tuple[str, ...]) -> tuple[jax.Array, jax.Array]:
    """The sum of some numbers, at the same random indices on all ranks, and what a rank did not send.

    Cost: an all_reduce of the values; `random_k_sends`.
    """
    index_K = random_indices(share, x_N.size, jax.random.fold_in(jax.random.key(SEED), step))
    value_K = jax.lax.psum(x_N[index_K], over)
    return jnp.zeros(x_N.size).at[index_K].set(value_K), x_N.at[index_K].set(0)


def _top_k(
    share: float, gradients: Sequence[jax.Array], error_N: jax.Array, step: jax.Array, over: tuple[str, ...]
) -> tuple[list[jax.Array], jax.Array]:
    total_N, error_N = top_k_sum(share, flat(gradients) + error_N, over)
    return apart(total_N, [g.shape for g in gradients]), error_N


def _random_k(
    share: float, gradients: Sequence[jax.Array], error_N: jax.Array, step: jax.Array, over: tuple[str, ...]
) -> tuple[list[jax.Array], jax.Array]:
    total_N, error_N = random_k_sum(share, flat(gradients) + error_N, step, over)
    return apart(total_N, [g.shape for g in gradients]), error_N


def _check(share: float) -> None:
    if not 0 < share <= 1:
        raise UsageError(f"share={share:g}: expected a share above 0, at most 1")


@cache
def top_k(share: float = 0.01) -> Strategy:
    """The largest numbers of each rank's gradients. Raises UsageError for a share of none, or of more than all.

    Source: Stich et al. 2018."""
    _check(share)
    return by_exchange(Exchange(run=partial(_top_k, share), sends=partial(top_k_sends, share), memory=no_errors))


@cache
def random_k(share: float = 0.01) -> Strategy:
    """Random numbers of the gradients, drawn by all ranks alike. Raises UsageError as `top_k`.

    Source: Stich et al. 2018."""
    _check(share)
    return by_exchange(Exchange(run=partial(_random_k, share), sends=partial(random_k_sends, share), memory=no_errors))
