"""What theory puts on one device between steps: master weights, moments, weights in use, what it keeps of an exchange
of gradients, and the batch."""

from __future__ import annotations

from math import prod

from lab.book.memory import model_state_bytes
from lab.meshes.axes import Axes
from lab.meshes.layouts import Layout
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.exchanged import memory_bytes
from lab.programs.strategies.narrow_moments import block_of
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.terms import elements, local_dims, weights

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
    kept = memory_bytes(strategy, shape, axes) - spared_by_narrow_moments(strategy, shape, axes)
    return int(state) + copy + COUNT_BYTES + batch + kept


def spared_by_narrow_moments(strategy: Strategy, shape: DecoderShape, axes: Axes) -> int:
    """Of both moments of each matrix: float32 numbers, less one of 8 bits and its part of a scale."""
    if strategy.moments is None:
        return 0
    spared = 0
    for weight in (each for each in weights(shape) if each.is_matrix):
        sizes = local_dims(weight, strategy.master, shape, axes)
        scales = prod(sizes) // block_of(strategy.moments, weight.dims, sizes)
        spared += 2 * weight.per_pass * ((FLOAT32_BYTES - 1) * prod(sizes) - FLOAT32_BYTES * scales)
    return spared


def parameters_on_device(layout: Layout, shape: DecoderShape, axes: Axes) -> int:
    return sum(weight.per_pass * elements(weight, layout, shape, axes) for weight in weights(shape))
