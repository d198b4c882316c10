"""Tensor parallelism (Ch. 15): a product is linear, so columns of one matrix and the same rows of the next can be multiplied apart
and summed once, where the block leaves. Beside it, on an axis of its own, data parallelism."""

from __future__ import annotations

from functools import partial

import jax

from lab.book.parallelism import activation_bytes
from lab.ledger import Kind, Transfer
from lab.models.mlp import MlpShape, Seams
from lab.strategies.data_parallel import DATA_PARALLEL
from lab.strategies.strategy import Strategy
from lab.strategies.terms import BACKWARD, DOWN, FORWARD, UP, each_layer, tokens_on_device
from meshes.axes import TENSOR, Axes
from meshes.layouts import Layout

LAYOUT = Layout.of(mlp=TENSOR)

# One copy enters, each rank uses it: the transpose sums the ranks' gradients. Partial sums leave: their transpose is free.
SEAMS = Seams(
    enter=partial(jax.lax.pcast, axis_name=TENSOR, to="varying"),
    leave=partial(jax.lax.psum, axis_name=TENSOR),
)


def terms(shape: MlpShape, used: Layout, axes: Axes) -> tuple[Transfer, ...]:
    """Sums activations where the block leaves, and their gradients where it was entered; the recomputed sum is used by nothing."""
    X = activation_bytes(tokens_on_device(shape, used, axes), shape.embed, shape.bytes_per_element)
    return (
        each_layer(Kind.ALL_REDUCE, DOWN, TENSOR, X, FORWARD, shape, axes),
        each_layer(Kind.ALL_REDUCE, UP, TENSOR, X, BACKWARD, shape, axes),
    )


TENSOR_PARALLEL = Strategy(stored=LAYOUT, used=LAYOUT, seams=SEAMS, terms=terms)
DATA_TENSOR = DATA_PARALLEL | TENSOR_PARALLEL
