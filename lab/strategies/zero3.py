"""ZeRO-3, or FSDP (Ch. 20): an all_reduce is a reduce_scatter and an all_gather, so between the two each rank keeps its part only."""

from __future__ import annotations

from functools import partial

import jax

from lab.book.parallelism import gradient_bytes
from lab.ledger import Kind, Transfer
from lab.models.mlp import MlpShape, Seams
from lab.strategies.strategy import Strategy
from lab.strategies.terms import BACKWARD, DOWN, FORWARD, UP, each_layer, matrix_on_device, sum_of_loss
from meshes.axes import FSDP, Axes
from meshes.layouts import Layout

STORED = Layout.of(embed=FSDP)
USED = Layout.of(batch=FSDP)

# The transpose of gathering a weight is to scatter the sum of its gradients.
_gathered = partial(jax.lax.all_gather, axis_name=FSDP, tiled=True)
SEAMS = Seams(up=partial(_gathered, axis=0), down=partial(_gathered, axis=1), total=partial(jax.lax.psum, axis_name=FSDP))


def terms(shape: MlpShape, used: Layout, axes: Axes) -> tuple[Transfer, ...]:
    """Gathers every matrix for each pass that needs it, scatters the sum of its gradients, and sums the loss."""
    W = gradient_bytes(matrix_on_device(shape, used, axes), shape.bytes_per_element)
    gathers = [each_layer(Kind.ALL_GATHER, scope, FSDP, W, phase, shape, axes) for phase in _passes(shape) for scope in (UP, DOWN)]
    scatters = [each_layer(Kind.REDUCE_SCATTER, scope, FSDP, W, BACKWARD, shape, axes) for scope in (DOWN, UP)]
    return (*gathers, sum_of_loss(FSDP, axes), *scatters)


def _passes(shape: MlpShape) -> tuple[str, ...]:
    """Without recomputation the gathered weights are kept for the backward pass, and with them the memory that ZeRO-3 was to save."""
    return (FORWARD, BACKWARD) if shape.remat else (FORWARD,)


ZERO3 = Strategy(stored=STORED, used=USED, seams=SEAMS, terms=terms)
