"""What theory puts on one device between steps: master weights, moments, weights in use, what it keeps of an exchange
of gradients, and the batch."""

from __future__ import annotations

from math import prod

from lab.book.memory import model_state_bytes
from lab.meshes.axes import Axes
from lab.meshes.layouts import Layout
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.exchanged import memory_bytes
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.terms import elements, weights

COUNT_BYTES, TOKEN_BYTES, FLOAT32_BYTES = 4, 4, 4


def static_bytes(strategy: Strategy, shape: DecoderShape, axes: Axes) -> int:
    """Arguments of a step on one device: 12 bytes a parameter of its part (float32 and Adam's moments), the copy that
    products use where there is one, AdamW's count of steps, two int32 for each of its tokens, and what it keeps of an
    exchange of gradients. Source: Ch. 19, `ch19.model_state`."""
    state = model_state_bytes(parameters_on_device(strategy.master, shape, axes), weight_bytes=0, gradient_bytes=0)
    # A router's bias is float32 in use, too.
    wide = (FLOAT32_BYTES - shape.bytes_per_element) * shape.biases
    used = shape.bytes_per_element * parameters_on_device(strategy.weights, shape, axes) + wide
    copy = 0 if strategy.state is None else used
    tokens = prod(strategy.inside.local_shape(("batch", "length"), (shape.batch, shape.length), axes))
    batch = 2 * TOKEN_BYTES * tokens
    return int(state) + copy + COUNT_BYTES + batch + memory_bytes(strategy, shape, axes)


def parameters_on_device(layout: Layout, shape: DecoderShape, axes: Axes) -> int:
    return sum(weight.per_pass * elements(weight, layout, shape, axes) for weight in weights(shape))
