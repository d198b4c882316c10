"""One collective of an experiment, and the buffer that it works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lab import collectives
from lab.collectives import ALGORITHMS, Cost
from meshes.axes import Axes
from meshes.errors import Unusable

DTYPES = {"s32": jnp.int32, "f32": jnp.float32}
GATHERED = ("all_gather", "gather")


@dataclass(frozen=True)
class Buffer:
    """What every collective of a program works on.

    Attributes:
      elements: the n of the book: of the result of an all_gather or gather, else of what enters, on each rank.
      dtype: as XLA names it: "s32" or "f32".

    Raises:
      Unusable: a size below one, or another dtype.
    """

    elements: int = 50400
    dtype: str = "s32"

    def __post_init__(self) -> None:
        if self.elements < 1:
            raise Unusable(f"elements={self.elements}: expected 1 or more")
        if self.dtype not in DTYPES:
            raise Unusable(f"dtype={self.dtype}: expected {' or '.join(DTYPES)}")

    @property
    def bytes_per_element(self) -> int:
        return jnp.dtype(DTYPES[self.dtype]).itemsize

    @property
    def size_bytes(self) -> int:
        return self.elements * self.bytes_per_element

    def entering(self, primitive: str, ranks: int) -> jax.ShapeDtypeStruct:
        """What one rank brings.

        Raises:
          Unusable: the buffer does not split over the ranks.
        """
        if self.elements % ranks:
            raise Unusable(f"elements={self.elements}: expected a multiple of the {ranks} ranks")
        elements = self.elements // ranks if primitive in GATHERED else self.elements
        return jax.ShapeDtypeStruct((elements,), DTYPES[self.dtype])


class Kernel(NamedTuple):
    """One collective over all axes of the mesh, outermost first; a permute goes from every rank to the next."""

    primitive: str
    algorithm: str

    @property
    def scope(self) -> str:
        return f"{self.primitive}/{self.algorithm}"

    def serves(self, axes: Axes) -> bool:
        return ALGORITHMS[self.primitive][self.algorithm].misfit(axes) is None

    def run(self, x_N: jax.Array, axes: Sequence[str]) -> jax.Array:
        with jax.named_scope(self.primitive), jax.named_scope(self.algorithm):
            return getattr(collectives, self.primitive)(x_N, axes, algorithm=self.algorithm)

    def cost(self, buffer: Buffer, axes: Axes) -> Cost:
        return collectives.cost(self.primitive, self.algorithm, axes, buffer.elements, buffer.bytes_per_element)
