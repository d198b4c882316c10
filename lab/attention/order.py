"""How a sequence lies on ranks, and which pieces of two ranks' chunks a causal mask lets meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from lab.meshes.errors import UsageError

Index = Any
"""An int, or an int32 scalar of the program."""
Pair = tuple[Index, Index]
"""A piece of the queries and a piece of the keys."""


@dataclass(frozen=True)
class Order:
    """
    Attributes:
      name: for people.
      pieces: of a rank's chunk, each consecutive tokens.
      piece: (rank, i, ranks) to which of all pieces, in the order of the sequence, a rank's i-th is.
      own: the pairs of pieces that meet where a rank attends to itself.
      others: (rank, source) to those that meet where it attends to another's keys: as many for every two ranks.
    """

    name: str
    pieces: int
    piece: Callable[[Index, int, int], Index]
    own: tuple[Pair, ...]
    others: Callable[[Index, Index], tuple[Pair, ...]]

    def piece_size(self, length: int, ranks: int) -> int:
        """Tokens of a piece.

        Raises:
          UsageError: the length is no multiple of all pieces.
        """
        if length % (self.pieces * ranks):
            pieces = f"{ranks} ranks with {self.pieces} pieces each" if self.pieces > 1 else f"{ranks} ranks"
            raise UsageError(
                f"length={length} is not divisible by {pieces}; make it a multiple of {self.pieces * ranks}"
            )
        return length // (self.pieces * ranks)

    def positions(self, length: int, rank: Index, ranks: int) -> jax.Array:
        """[length / ranks], of a rank's tokens; raises as `piece_size`."""
        size = self.piece_size(length, ranks)
        return jnp.concatenate([self.piece(rank, i, ranks) * size + jnp.arange(size) for i in range(self.pieces)])

    def whole(self, length: int, ranks: int) -> jax.Array:
        """[length], the positions of all tokens, one rank's after the other's: a batch comes with its tokens in this
        order."""
        return jnp.concatenate([self.positions(length, rank, ranks) for rank in range(ranks)])


def _zigzag_others(rank: Index, source: Index) -> tuple[Pair, ...]:
    """The late piece sees every early one; of the others the one that lies before: the source's early one, or both late
    ones' pair."""
    i = jnp.where(source < rank, 0, 1)
    return (1, 0), (i, i)


CONTIGUOUS = Order("contiguous", 1, lambda rank, i, ranks: rank, ((0, 0),), lambda rank, source: ((0, 0),))
"""Rank r has chunk r; under a causal mask it has r + 1/2 blocks to work on, and goes through all."""
ZIGZAG = Order(
    "zigzag", 2, lambda rank, i, ranks: (2 * ranks - 1 - rank) if i else rank, ((0, 0), (1, 0), (1, 1)), _zigzag_others
)
"""Rank r has pieces r and 2 P - 1 - r of 2 P: under a causal mask every rank has half a block to work on at every hop
(Ch. 17, `ch17.causal_skip`)."""
