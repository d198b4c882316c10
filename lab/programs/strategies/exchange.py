"""How ranks come to the sum of gradients that each made of its own tokens, other than by one all-reduce of each
gradient (Ch. 28)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from lab.core.ledger import Kind
from lab.programs.models.collective_hooks import Dims

Sizes = tuple[int, ...]
"""Of one array."""


class Message(NamedTuple):
    """One collective of an exchange: its payload as the ledger counts it."""

    kind: Kind
    dtype: str
    payload_bytes: int


Run = Callable[[Sequence[jax.Array], Any, jax.Array, tuple[str, ...]], tuple[list[jax.Array], Any]]


def no_memory(sizes: Sequence[Sizes], ranks: int) -> tuple[()]:
    return ()


def is_matrix(dims: Dims) -> bool:
    """Norms and biases are too small to be worth it; a stack of them is no matrix."""
    return len([dim for dim in dims if dim != "layers"]) > 1


@dataclass(frozen=True)
class Exchange:
    """An exchange of the gradients of several weights, inside `jax.shard_map`.

    Attributes:
      run: (this rank's gradients in float32, what it kept, count of steps, axes of the ranks) to (their sum over these
        ranks, equal on all of them, and what it keeps, each rank's own).
      sends: (sizes of the gradients on a device, ranks) to the messages of `run`.
      memory: (the same) to what a rank starts with, a tree of arrays.
      takes: which weights, by their dims; all others' gradients are summed in full.
      of_momentum: what is exchanged is each rank's share of the new first moments, and the second moments stay as they
        are (1-bit Adam).
    """

    run: Run
    sends: Callable[[Sequence[Sizes], int], Iterable[Message]]
    memory: Callable[[Sequence[Sizes], int], Any] = no_memory
    takes: Callable[[Dims], bool] = is_matrix
    of_momentum: bool = False
