"""A residual MLP of two matrices a layer, scanned over its layers, with seams at which a strategy acts.

Shape suffixes: L layers, B batch (tokens), D embed, F mlp. Weights, activations and gradients are of one dtype, so that no
cast stands between a weight and its collective; the loss is float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

import jax
import jax.numpy as jnp

from meshes.errors import Unusable

DTYPES = {"bf16": jnp.bfloat16, "f32": jnp.float32}


@dataclass(frozen=True)
class MlpShape:
    """Sizes of the model and its batch.

    Attributes:
      layers: two or more: of a loop that runs once XLA leaves no loop, and merges the gathers of forward and backward pass.
      batch: tokens of one step, over all devices.
      dtype: of weights and activations, as XLA names it: "bf16" or "f32".
      remat: recompute each layer in the backward pass, from its input.

    Raises:
      Unusable: a size below the least, or another dtype.
    """

    layers: int = 4
    batch: int = 512
    embed: int = 1024
    mlp: int = 1536
    dtype: str = "bf16"
    remat: bool = True

    def __post_init__(self) -> None:
        for name, least in (("layers", 2), ("batch", 1), ("embed", 1), ("mlp", 1)):
            if getattr(self, name) < least:
                raise Unusable(f"{name}={getattr(self, name)}: expected {least} or more")
        if self.dtype not in DTYPES:
            raise Unusable(f"dtype={self.dtype}: expected {' or '.join(DTYPES)}")

    @property
    def bytes_per_element(self) -> int:
        return jnp.dtype(DTYPES[self.dtype]).itemsize

    @property
    def matrix(self) -> int:
        """Parameters of one matrix of one layer."""
        return self.embed * self.mlp

    @property
    def parameters(self) -> int:
        return self.layers * 2 * self.matrix


SMALL = MlpShape(layers=3, batch=32, embed=48, mlp=64, dtype="f32")
"""To run rather than to compile: pairwise different sizes that split over 8 or 16 devices."""


class Weights(NamedTuple):
    """Stacked over the layers: `up` is w_LDF, `down` is w_LFD; one layer's are w_DF and w_FD."""

    up: jax.Array
    down: jax.Array


Seam = Callable[[jax.Array], jax.Array]


def unchanged(x: jax.Array) -> jax.Array:
    return x


@dataclass(frozen=True)
class Seams:
    """Where a sharded MLP may communicate: each seam takes a value as it was made to what the next step needs.

    `a | b` does at each seam what `a` does, then what `b` does; on axes apart the order does not matter.

    Attributes:
      enter: x_BD into the block.
      up, down: w_DF and w_FD as stored, for use.
      hidden: h_BF between the two matrices.
      leave: y_BD out of the block.
      total: a sum over this device's tokens, to the sum over all.
    """

    enter: Seam = unchanged
    up: Seam = unchanged
    hidden: Seam = unchanged
    down: Seam = unchanged
    leave: Seam = unchanged
    total: Seam = unchanged

    def __or__(self, other: Seams) -> Seams:
        return Seams(*(_then(getattr(self, seam.name), getattr(other, seam.name)) for seam in fields(Seams)))


def _then(first: Seam, second: Seam) -> Seam:
    return lambda x: second(first(x))


def mlp(x_BD: jax.Array, layer: Weights, seams: Seams) -> jax.Array:
    """One residual block, [B, D] to [B, D]: x + gelu(x up) down."""
    with jax.named_scope("up"):
        h_BF = seams.hidden(jax.nn.gelu(seams.enter(x_BD) @ seams.up(layer.up)))
    with jax.named_scope("down"):
        return x_BD + seams.leave(h_BF @ seams.down(layer.down))


def loss(weights: Weights, x_BD: jax.Array, y_BD: jax.Array, shape: MlpShape, seams: Seams = Seams()) -> jax.Array:
    """Mean square difference between the last layer's output and y_BD, over the whole batch, in float32."""

    def block(x_BD: jax.Array, layer: Weights) -> tuple[jax.Array, None]:
        with jax.named_scope("mlp"):
            return mlp(x_BD, layer, seams), None

    with jax.named_scope("layers"):
        # A scan keeps the recomputation apart by itself, without the barriers that prevent_cse adds.
        x_BD, _ = jax.lax.scan(jax.checkpoint(block, prevent_cse=False) if shape.remat else block, x_BD, weights)
    with jax.named_scope("loss"):
        square_BD = jnp.square(x_BD.astype(jnp.float32) - y_BD.astype(jnp.float32))
        return seams.total(jnp.sum(square_BD)) / float(shape.batch * shape.embed)
