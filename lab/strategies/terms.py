"""Transfers as theory writes them: kind, scope, axis, payload, executions."""

from __future__ import annotations

from math import prod

from lab.ledger import Kind, Transfer
from lab.models.mlp import MlpShape
from lab.strategies.strategy import UP_DF
from meshes.axes import Axes
from meshes.layouts import Layout

UP, DOWN = "layers/mlp/up", "layers/mlp/down"
FORWARD, BACKWARD = "forward", "backward"


def each_layer(kind: Kind, scope: str, axis: str, payload_bytes: int, phase: str, shape: MlpShape, axes: Axes) -> Transfer:
    """A transfer of every layer, in the dtype of the model."""
    return _transfer(kind, scope, axis, payload_bytes, phase, shape.dtype, shape.layers, axes)


def sum_of_loss(axis: str, axes: Axes) -> Transfer:
    """The one number that every device needs of all: 4 bytes of float32."""
    return _transfer(Kind.ALL_REDUCE, "loss", axis, 4, FORWARD, "f32", 1, axes)


def _transfer(kind: Kind, scope: str, axis: str, payload_bytes: int, phase: str, dtype: str, executions: int, axes: Axes) -> Transfer:
    return Transfer(
        kind=kind,
        axes=(axis,),
        group_size=axes[axis],
        groups=axes.size // axes[axis],
        executions=executions,
        dtype=dtype,
        payload_bytes=payload_bytes,
        phase=phase,
        scope=scope,
    )


def matrix_on_device(shape: MlpShape, used: Layout, axes: Axes) -> int:
    """Parameters of one matrix of one layer, as a device multiplies with it."""
    return prod(used.local_shape(UP_DF, (shape.embed, shape.mlp), axes))


def tokens_on_device(shape: MlpShape, used: Layout, axes: Axes) -> int:
    (tokens,) = used.local_shape(("batch",), (shape.batch,), axes)
    return tokens
