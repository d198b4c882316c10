"""FSDP of the embedding and the head alone: of small models with large vocabularies these are most of the weights, so
each rank keeps its part of their rows, and whole copies of all else."""

from __future__ import annotations

from collections.abc import Iterator

import jax

from lab.book.parallelism import gradient_bytes
from lab.core.ledger import Kind, Provenance, Transfer
from lab.meshes.axes import FSDP, Axes
from lab.meshes.layouts import Layout
from lab.programs.models.collective_hooks import CollectiveHooks, Dims
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.terms import (
    BACKWARD,
    FORWARD,
    elements,
    norm_of_gradients,
    of_gradient,
    sum_of_loss,
    sums_of_copies,
    transfer,
    weights,
)


def gathered(w: jax.Array, dims: Dims) -> jax.Array:
    """The whole of a table; the transpose scatters the sum of its gradients."""
    return jax.lax.all_gather(w, FSDP, axis=dims.index("vocab"), tiled=True) if "vocab" in dims else w


def copies(dims: Dims) -> frozenset[str]:
    return frozenset() if "vocab" in dims else frozenset({FSDP})


def terms(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Gathers the tables once a micro-batch and scatters the sums of their gradients; sums all other gradients."""
    return (
        *_of_tables(strategy, shape, axes),
        *sums_of_copies(strategy, shape, axes, FSDP),
        sum_of_loss(strategy, shape, axes),
        norm_of_gradients(strategy, shape, axes),
    )


def _of_tables(strategy: Strategy, shape: DecoderShape, axes: Axes) -> Iterator[Transfer]:
    for weight in weights(shape):
        if "vocab" in weight.dims:
            whole = gradient_bytes(elements(weight, strategy.inside, shape, axes), shape.bytes_per_element)
            gather, scatter = (
                (Kind.ALL_GATHER, FORWARD, Provenance(repeats=shape.accumulation)),
                (Kind.REDUCE_SCATTER, BACKWARD, of_gradient(weight, strategy, shape, axes, is_late=False)),
            )
            for kind, phase, provenance in (gather, scatter):
                yield transfer(
                    kind, weight.scope, (FSDP,), whole, phase, shape.dtype, shape.accumulation, axes, provenance
                )


SHARDED_TABLES = Strategy(
    weights=Layout.of(vocab=FSDP),
    inside=Layout.of(batch=FSDP),
    residual=Layout.of(batch=FSDP),
    copies=copies,
    hooks=CollectiveHooks(weight=gathered),
    terms=(terms,),
)
