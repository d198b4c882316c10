"""A residual MLP of two matrices a layer, scanned over its layers, with seams at which a strategy acts.

Shape suffixes: L layers, B batch (tokens), D embed, F mlp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

Seam = Callable[[jax.Array], jax.Array]


class Weights(NamedTuple):
    """Stacked over the layers: `up_LDF`, `down_LFD`; one layer's slices have the same names' last two dims."""

    up: jax.Array
    down: jax.Array


def unchanged(x: jax.Array) -> jax.Array:
    return x


@dataclass(frozen=True)
class Seams:
    """Where a sharded MLP may communicate; each seam is the identity on one device.

    Attributes:
      enter: x_BD as it enters the block.
      up, down: the stored w_DF, w_FD as the layer uses them.
      hidden: h_BF after the activation.
      leave: y_BD as it leaves the block.
      total: the loss, summed over this device's tokens, to the sum over all.
    """

    enter: Seam = unchanged
    up: Seam = unchanged
    down: Seam = unchanged
    hidden: Seam = unchanged
    leave: Seam = unchanged
    total: Seam = unchanged


def mlp(x_BD: jax.Array, layer: Weights, seams: Seams) -> jax.Array:
    """One residual block: x + gelu(x up) down."""
    with jax.named_scope("up"):
        h_BF = seams.hidden(jax.nn.gelu(seams.enter(x_BD) @ seams.up(layer.up)))
    with jax.named_scope("down"):
        return x_BD + seams.leave(h_BF @ seams.down(layer.down))


def loss(weights: Weights, x_BD: jax.Array, y_BD: jax.Array, *, tokens: int, remat: bool = True, seams: Seams = Seams()) -> jax.Array:
    """Mean square error of the last layer's output against y_BD over the batch's `tokens`, in float32."""

    @jax.named_scope("mlp")
    def step(x_BD: jax.Array, layer: Weights) -> tuple[jax.Array, None]:
        return mlp(x_BD, layer, seams), None

    with jax.named_scope("layers"):
        x_BD, _ = jax.lax.scan(jax.checkpoint(step, prevent_cse=False) if remat else step, x_BD, weights)
    with jax.named_scope("loss"):
        square_BD = jnp.square(x_BD.astype(jnp.float32) - y_BD.astype(jnp.float32))
        return seams.total(jnp.sum(square_BD)) / (tokens * x_BD.shape[1])
