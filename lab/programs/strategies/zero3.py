"""ZeRO-3, or FSDP (Ch. 20): an all_reduce is a reduce_scatter and an all_gather, so between the two each rank keeps its
part only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod

import jax

from lab.book.parallelism import gradient_bytes
from lab.core.ledger import Kind, Phase, Provenance, Transfer
from lab.meshes.axes import FSDP, Axes
from lab.meshes.layouts import Layout
from lab.programs.models.collective_hooks import CollectiveHooks, Dims
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.strategy import SPLIT, Strategy, is_split, split_dim
from lab.programs.strategies.terms import (
    BACKWARD,
    FORWARD,
    RECOMPUTING,
    Weight,
    elements,
    local_dims,
    norm_of_gradients,
    of_gradient,
    sum_of_loss,
    sums_of_copies,
    transfer,
    weights,
)
from lab.programs.strategies.wire import Narrow, check_blocks

WEIGHTS = Layout.of(**dict.fromkeys(SPLIT, FSDP))
ACTIVATIONS = Layout.of(batch=FSDP)


def gathered(w: jax.Array, dims: Dims) -> jax.Array:
    """The whole of a weight; the transpose scatters the sum of its gradients."""
    return jax.lax.all_gather(w, FSDP, axis=split_dim(dims), tiled=True) if is_split(dims) else w


def copies(dims: Dims) -> frozenset[str]:
    """Norms are too small to split."""
    return frozenset() if is_split(dims) else frozenset({FSDP})


def terms(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Gathers every matrix for each pass that needs it, and scatters the sum of its gradients; sums norms, loss and
    squares."""
    matrices = [weight for weight in weights(shape) if weight.is_matrix]
    moved = [t for weight in matrices for t in _moves(weight, strategy, shape, axes)]
    return (
        *moved,
        *sums_of_copies(strategy, shape, axes, FSDP),
        sum_of_loss(strategy, shape, axes),
        norm_of_gradients(strategy, shape, axes),
    )


def _moves(weight: Weight, strategy: Strategy, shape: DecoderShape, axes: Axes) -> Iterator[Transfer]:
    whole = gradient_bytes(elements(weight, strategy.inside, shape, axes), shape.bytes_per_element)
    executions = weight.per_pass * shape.accumulation
    # Without recomputation the gathered weights are kept for the backward pass, and with them the memory that ZeRO-3
    # was to save.
    again = weight.in_layers and shape.remat in RECOMPUTING
    repeats = Provenance(repeats=1 if weight.in_layers else shape.accumulation)
    sent = partial(_narrow, weight, strategy, shape, axes)
    for phase in (FORWARD, BACKWARD) if again else (FORWARD,):
        if strategy.wire.weights:
            yield from sent(strategy.wire.weights, Kind.ALL_GATHER, phase, executions, repeats)
        else:
            yield transfer(Kind.ALL_GATHER, weight.scope, (FSDP,), whole, phase, shape.dtype, executions, axes, repeats)
    if strategy.wire.gradients:
        yield from sent(strategy.wire.gradients, Kind.ALL_TO_ALL, BACKWARD, executions)
        return
    yield transfer(
        Kind.REDUCE_SCATTER,
        weight.scope,
        (FSDP,),
        whole,
        BACKWARD,
        shape.dtype,
        executions,
        axes,
        replace(
            of_gradient(weight, strategy, shape, axes, is_late=False),
            dims=local_dims(weight, strategy.inside, shape, axes),
            scattered_dim=split_dim(weight.dims),
        ),
    )


def _narrow(
    weight: Weight,
    strategy: Strategy,
    shape: DecoderShape,
    axes: Axes,
    narrow: Narrow,
    kind: Kind,
    phase: Phase,
    executions: int,
    provenance: Provenance = Provenance(),
) -> Iterator[Transfer]:
    """A matrix in 8 bits, and the scales of its blocks; or before it the largest magnitude of a tensor."""
    dims = local_dims(weight, strategy.inside, shape, axes)
    check_blocks(narrow, dims, split_dim(weight.dims))

    def sent(kind: Kind, scope: str, payload_bytes: int, dtype: str) -> Transfer:
        return transfer(kind, scope, (FSDP,), payload_bytes, phase, dtype, executions, axes, provenance)

    yield sent(kind, weight.scope, prod(dims), narrow.dtype)
    if narrow.block:
        yield sent(kind, f"{weight.scope}/scale", prod(dims) // narrow.block * narrow.scale_bytes, narrow.scale)
    else:
        yield sent(Kind.ALL_REDUCE, weight.scope, 4, "f32")


ZERO3 = Strategy(
    weights=WEIGHTS,
    inside=ACTIVATIONS,
    residual=ACTIVATIONS,
    copies=copies,
    hooks=CollectiveHooks(weight=gathered),
    terms=(terms,),
)
