"""Data parallelism (Ch. 14): a gradient is a sum over examples, and sums are associative, so each rank may sum its own share first."""

from __future__ import annotations

from functools import partial

import jax

from lab.book.parallelism import gradient_bytes
from lab.ledger import Kind, Transfer
from lab.models.mlp import MlpShape, Seams
from lab.strategies.strategy import Strategy
from lab.strategies.terms import BACKWARD, DOWN, UP, each_layer, matrix_on_device, sum_of_loss
from meshes.axes import DATA, Axes
from meshes.layouts import Layout

LAYOUT = Layout.of(batch=DATA)

# Every rank may use the one copy of a weight freely; the transpose of that is to sum the ranks' gradients.
_replicas = partial(jax.lax.pcast, axis_name=DATA, to="varying")
SEAMS = Seams(up=_replicas, down=_replicas, total=partial(jax.lax.psum, axis_name=DATA))


def terms(shape: MlpShape, used: Layout, axes: Axes) -> tuple[Transfer, ...]:
    """Sums the gradient of every matrix, and the loss."""
    W = gradient_bytes(matrix_on_device(shape, used, axes), shape.bytes_per_element)
    return (
        sum_of_loss(DATA, axes),
        each_layer(Kind.ALL_REDUCE, DOWN, DATA, W, BACKWARD, shape, axes),
        each_layer(Kind.ALL_REDUCE, UP, DATA, W, BACKWARD, shape, axes),
    )


DATA_PARALLEL = Strategy(stored=LAYOUT, used=LAYOUT, seams=SEAMS, terms=terms)
