"""ZeRO-1 and ZeRO-2 (Ch. 20): AdamW treats parameters apart, so each rank may update its part of them: gradients are
scattered instead of summed everywhere, and the new weights are gathered. ZeRO-1 scatters once, after the backward pass;
ZeRO-2 each layer's inside it, so that no rank ever holds all gradients, and with accumulation for every micro-batch.

Ranks that share experts have tokens of their own, so that of all but experts they are data-parallel replicas as well,
and update parts of it, too: an expert's state is sharded over `data` alone (Megatron-LM's expert-data-parallel groups).
"""

from __future__ import annotations

from functools import cache, partial

import jax

from lab.book.parallelism import gradient_bytes
from lab.core.ledger import Kind, Transfer
from lab.meshes.axes import DATA, EXPERT, Axes
from lab.meshes.layouts import Layout
from lab.programs.models.collective_hooks import CollectiveHooks, Dims
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.strategy import SPLIT, Strategy, split_dim
from lab.programs.strategies.terms import (
    BACKWARD,
    UPDATE,
    Weight,
    elements,
    norm_of_gradients,
    of_gradient,
    stack_dtype,
    sum_of_loss,
    sums_of_copies,
    transfer,
    weights,
)


def replicas(over: tuple[str, ...], dims: Dims) -> tuple[str, ...]:
    """Of these axes those along which ranks have copies of a weight with these dims."""
    return tuple(axis for axis in over if axis != EXPERT or "expert_embed" not in dims)


def copies(over: tuple[str, ...], dims: Dims) -> frozenset[str]:
    return frozenset(replicas(over, dims))


def scattered(over: tuple[str, ...], g: jax.Array, dims: Dims) -> jax.Array:
    """This rank's part of the sum."""
    return jax.lax.psum_scatter(g, replicas(over, dims), scatter_dimension=split_dim(dims), tiled=True)


def renewed(over: tuple[str, ...], w: jax.Array, dims: Dims) -> jax.Array:
    return jax.lax.all_gather(w, replicas(over, dims), axis=split_dim(dims), tiled=True, to="invarying")


def late_terms(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """ZeRO-1: scatters each stack of gradients once."""
    return _terms(strategy, shape, axes, is_late=True)


def early_terms(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """ZeRO-2: scatters each layer's gradients of every micro-batch."""
    return _terms(strategy, shape, axes, is_late=False)


def _terms(strategy: Strategy, shape: DecoderShape, axes: Axes, is_late: bool) -> tuple[Transfer, ...]:
    matrices = [weight for weight in weights(shape) if weight.is_matrix and strategy.splits_further(weight.dims)]
    scatters = [_scatter(weight, strategy, shape, axes, is_late) for weight in matrices]
    gathers = [_gather(weight, strategy, shape, axes) for weight in matrices]
    norms = sums_of_copies(strategy, shape, axes, DATA)
    return (*scatters, *gathers, *norms, sum_of_loss(strategy, shape, axes), norm_of_gradients(strategy, shape, axes))


def _scatter(weight: Weight, strategy: Strategy, shape: DecoderShape, axes: Axes, is_late: bool) -> Transfer:
    """The sum of a matrix's gradients."""
    used, provenance = (
        elements(weight, strategy.weights, shape, axes),
        of_gradient(weight, strategy, shape, axes, is_late),
    )
    dtype, e = stack_dtype(shape) if is_late else (shape.dtype, shape.bytes_per_element)
    payload = gradient_bytes(used * provenance.stacked_layers, e)
    executions = 1 if is_late else weight.per_pass * shape.accumulation
    phase = UPDATE if is_late else BACKWARD
    over = strategy.scattered_over(weight.dims)
    return transfer(Kind.REDUCE_SCATTER, weight.scope, over, payload, phase, dtype, executions, axes, provenance)


def _gather(weight: Weight, strategy: Strategy, shape: DecoderShape, axes: Axes) -> Transfer:
    """The new matrix, of all layers at once."""
    stack = gradient_bytes(elements(weight, strategy.weights, shape, axes) * weight.per_pass, shape.bytes_per_element)
    over = strategy.scattered_over(weight.dims)
    return transfer(Kind.ALL_GATHER, f"renew/{weight.scope}", over, stack, UPDATE, shape.dtype, 1, axes)


STYLES = ("declared", "explicit")
"""Typed, a gradient has the type of its weight, whole: GPUs sum it everywhere before it is scattered."""


@cache
def sharded(stage: int, over: tuple[str, ...] = (DATA,)) -> Strategy:
    """ZeRO of this stage, 1 or 2.

    Args:
      over: axes of replicas, `data`, `expert` or both, in the mesh's order; over `expert` alone experts are not
        sharded, each is on one rank. With `expert` in the explicit style alone, since declared, gradients are summed
        over `expert` before they are scattered.
    """
    return Strategy(
        state=Layout.of(**{dim: replicas(over, (dim,)) for dim in SPLIT}),
        inside=Layout.of(batch=over),
        residual=Layout.of(batch=over),
        copies=partial(copies, over),
        is_anchored=stage == 2,
        hooks=CollectiveHooks(scatter=partial(scattered, over), gather_updated=partial(renewed, over)),
        terms=(early_terms if stage == 2 else late_terms,),
        styles=STYLES if over == (DATA,) else ("explicit",),
    )


ZERO1, ZERO2 = sharded(1), sharded(2)
