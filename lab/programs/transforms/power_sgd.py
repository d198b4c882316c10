"""PowerSGD (Ch. 28): a gradient as two thin factors. A product is linear in each, so both are summed over ranks as they
are, and what comes out is the compression of the sum. Source: Vogels et al. 2019."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lab.core.ledger import Kind
from lab.meshes.errors import UsageError
from lab.programs.strategies.exchange import Exchange, Message, Sizes
from lab.programs.strategies.exchanged import by_exchange
from lab.programs.strategies.strategy import Strategy

SEED = 28
"""Of the first right factors, which all ranks draw alike."""
FLOAT_BYTES = 4
_product = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


class Memory(NamedTuple):
    """Of each gradient: what was not sent, and the right factor [..., columns, rank] that the next step begins with."""

    errors: list[jax.Array]
    factors: list[jax.Array]


class Matrices(NamedTuple):
    """A gradient as a stack of matrices; layers are a stack already, and a matrix of several dims is cut where its two
    factors are smallest."""

    stack: tuple[int, ...]
    rows: int
    columns: int

    @property
    def sizes(self) -> Sizes:
        return (*self.stack, self.rows, self.columns)


def matrices(sizes: Sizes) -> Matrices:
    stack, dims = (sizes[:1], sizes[1:]) if len(sizes) > 2 else ((), sizes)
    return min(
        (Matrices(stack, prod(dims[:cut]), prod(dims[cut:])) for cut in range(1, len(dims))),
        key=lambda found: found.rows + found.columns,
    )


def rank_of(rank: int, found: Matrices) -> int:
    """No more than a matrix has."""
    return min(rank, found.rows, found.columns)


def sends(rank: int, sizes: Sequence[Sizes], ranks: int) -> tuple[Message, ...]:
    """All left factors at once, then all right ones."""
    some = [matrices(each) for each in sizes]
    sides = [[found.rows for found in some], [found.columns for found in some]]
    return tuple(
        Message(Kind.ALL_REDUCE, "f32", prod(found.stack) * rank_of(rank, found) * length * FLOAT_BYTES)
        for lengths in sides
        for found, length in zip(some, lengths, strict=True)
    )


def first_memory(rank: int, sizes: Sequence[Sizes], ranks: int) -> Memory:
    def factor(at: int, found: Matrices) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(SEED), at)
        return jax.random.normal(key, (*found.stack, found.columns, rank_of(rank, found)))

    some = [matrices(each) for each in sizes]
    return Memory([jnp.zeros(found.sizes) for found in some], [factor(at, found) for at, found in enumerate(some)])


def orthonormal(x: jax.Array) -> jax.Array:
    """Columns [..., rows, rank] of the same span at right angles and of length 1, or 0 (Gram & Schmidt, twice)."""

    def with_column(at: int, done: jax.Array) -> jax.Array:
        column = jax.lax.dynamic_slice_in_dim(x, at, 1, -1)
        for _ in range(2):
            column = column - _product(done, _product(done.mT, column))
        length = jnp.sqrt(jnp.sum(jnp.square(column), -2, keepdims=True))
        return jax.lax.dynamic_update_slice_in_dim(done, column / jnp.where(length > 0, length, 1), at, -1)

    return jax.lax.fori_loop(0, x.shape[-1], with_column, jnp.zeros_like(x))


def low_rank_sum(
    own: Sequence[jax.Array], factors: Sequence[jax.Array], over: tuple[str, ...]
) -> tuple[list[jax.Array], list[jax.Array]]:
    """The sum over ranks of matrices [..., rows, columns] in low rank, equal on all ranks, and its right factors.

    Cost: an all_reduce of all left factors, then one of all right ones; `sends`.
    """
    left = jax.lax.psum([_product(m, q) for m, q in zip(own, factors, strict=True)], over)
    # Once they are summed: bases made locally are not one basis.
    bases = [orthonormal(p) for p in left]
    right = jax.lax.psum([_product(m.mT, p) for m, p in zip(own, bases, strict=True)], over)
    return [_product(p, q.mT) for p, q in zip(bases, right, strict=True)], right


def _exchange(
    gradients: Sequence[jax.Array], memory: Memory, step: jax.Array, over: tuple[str, ...]
) -> tuple[list[jax.Array], Memory]:
    own = [g.reshape(e.shape) + e for g, e in zip(gradients, memory.errors, strict=True)]
    sums, right = low_rank_sum(own, memory.factors, over)
    ranks = jax.lax.axis_size(over)
    errors = [m - total / ranks for m, total in zip(own, sums, strict=True)]
    right = jax.lax.pcast(right, over, to="varying")
    return [total.reshape(g.shape) for total, g in zip(sums, gradients, strict=True)], Memory(errors, right)


@cache
def power_sgd(rank: int = 4) -> Strategy:
    """Gradients of this rank, what it loses fed back. Raises UsageError for a rank below 1."""
    if rank < 1:
        raise UsageError(f"power_sgd(rank={rank}): expected 1 or more")
    return by_exchange(Exchange(run=_exchange, sends=partial(sends, rank), memory=partial(first_memory, rank)))
