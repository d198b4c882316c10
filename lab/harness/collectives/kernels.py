"""One collective of an experiment, and the buffer that it works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax

from lab import collectives
from lab.collectives import ALGORITHMS, Cost
from lab.core.dtypes import DTYPES
from lab.core.ledger import Ledger
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError

OF_BUFFERS = "s32", "f32"
GATHERED = ("all_gather", "gather")


@dataclass(frozen=True)
class Buffer:
    """What every collective of a program works on.

    Attributes:
      elements: the n of the book: of the result of an all_gather or gather, else of what enters, on each rank.
      dtype: as XLA names it: "s32" or "f32".

    Raises:
      UsageError: a size below one, or another dtype.
    """

    elements: int = 50400
    dtype: str = "s32"

    def __post_init__(self) -> None:
        if self.elements < 1:
            raise UsageError(f"elements={self.elements}: expected 1 or more")
        if self.dtype not in OF_BUFFERS:
            raise UsageError(f"dtype={self.dtype}: expected {' or '.join(OF_BUFFERS)}")

    @property
    def size_bytes(self) -> int:
        return self.elements * _bytes(self.dtype)

    def entering(self, primitive: str, ranks: int) -> jax.ShapeDtypeStruct:
        """What one rank brings.

        Raises:
          UsageError: the buffer does not split over the ranks.
        """
        if self.elements % ranks:
            raise UsageError(f"elements={self.elements}: expected a multiple of the {ranks} ranks")
        elements = self.elements // ranks if primitive in GATHERED else self.elements
        return jax.ShapeDtypeStruct((elements,), DTYPES[self.dtype][0])


class Kernel(NamedTuple):
    """One collective over all axes of the mesh, outermost first; a permute goes from every rank to the next.

    Attributes:
      dtype: that numbers travel in, where it is not the buffer's.
    """

    primitive: str
    algorithm: str
    dtype: str | None = None

    @property
    def scope(self) -> str:
        return "/".join(filter(None, self))

    def serves(self, axes: Axes) -> bool:
        return ALGORITHMS[self.primitive][self.algorithm].misfit(axes) is None

    def run(self, x_N: jax.Array, axes: Sequence[str]) -> jax.Array:
        sent_N = x_N.astype(DTYPES[self.dtype][0]) if self.dtype else x_N
        with jax.named_scope(self.scope):
            return getattr(collectives, self.primitive)(sent_N, axes, algorithm=self.algorithm).astype(x_N.dtype)

    def cost(self, buffer: Buffer, axes: Axes) -> Cost:
        return collectives.cost(
            self.primitive, self.algorithm, axes, buffer.elements, _bytes(self.dtype or buffer.dtype)
        )

    def ledger(self, buffer: Buffer, axes: Axes) -> Ledger:
        """What its statement asks of the compiled program."""
        return self.cost(buffer, axes).ledger(axes, self.dtype or buffer.dtype)


def _bytes(dtype: str) -> int:
    return DTYPES[dtype][1]
