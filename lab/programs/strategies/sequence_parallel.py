"""Tensor + sequence parallelism (Ch. 17; Korthikanti et al. 2022): norms treat tokens apart, so between blocks each
rank keeps its share of them; the sum that a block leaves with is scattered, and gathered where the next is entered."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax

from lab.book.parallelism import activation_bytes
from lab.core.ledger import Kind, Phase, Provenance, Transfer
from lab.meshes.axes import TENSOR, Axes
from lab.meshes.layouts import Layout
from lab.programs.models.collective_hooks import CollectiveHooks, Dims
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.tensor_parallel import (
    ATTENTION,
    ATTENTION_INPUTS,
    LAYOUT,
    MLP,
    VOCABULARY,
    as_own,
    mlp_inputs,
    named,
    sum_of_weights,
    vocabulary_terms,
)
from lab.programs.strategies.terms import (
    BACKWARD,
    FORWARD,
    RECOMPUTING,
    in_each_stack,
    stream_bytes,
    sums_of_copies,
    tokens_on_device,
    transfer,
)

BETWEEN_BLOCKS = Layout.of(length=TENSOR)


def copies(dims: Dims) -> frozenset[str]:
    """Ranks apply a norm, and a router, to tokens of their own, and the norm of a head to heads of their own."""
    return frozenset({TENSOR}) if dims[-1] in ("norm", "head_norm", "choices") else frozenset()


def block_terms(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Gathers and scatters tokens at each end of a block, and in the backward pass the other way round; sums the
    gradients of norms."""
    ends = partial(_moved, strategy=strategy, shape=shape, axes=axes, times=1)
    return (
        ends(Kind.REDUCE_SCATTER, "embedding", FORWARD, provenance=Provenance(replicated_first=True)),
        ends(Kind.ALL_GATHER, "embedding", BACKWARD),
        ends(Kind.ALL_GATHER, "head", FORWARD, provenance=Provenance(named_after=("norm",))),
        ends(Kind.REDUCE_SCATTER, "head", BACKWARD),
        *in_each_stack(layer_terms, strategy, shape, axes),
        *sums_of_copies(strategy, shape, axes, TENSOR),
    )


def _moved(
    kind: Kind,
    scope: str,
    phase: Phase,
    strategy: Strategy,
    shape: DecoderShape,
    axes: Axes,
    times: int,
    provenance: Provenance = Provenance(),
) -> Transfer:
    """The stream of a micro-batch."""
    X, executions = stream_bytes(strategy, shape, axes), times * shape.accumulation
    return transfer(kind, scope, (TENSOR,), X, phase, shape.dtype, executions, axes, provenance)


def layer_terms(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Of a stack of layers."""
    moved = partial(_moved, strategy=strategy, shape=shape, axes=axes, times=shape.layers)

    def block(name: str, inputs: tuple[str, ...], output: str, is_left_again: bool) -> tuple[Transfer, ...]:
        enter, leave = f"{name}/enter", f"{name}/leave"
        entered, left = named(name, ("norm",)), named(name, (output,))
        again = [moved(Kind.ALL_GATHER, enter, BACKWARD, provenance=entered)] if shape.remat in RECOMPUTING else []
        if is_left_again:
            kept = replace(left, saved_by_remat=shape.remat == "dots")
            again.append(moved(Kind.REDUCE_SCATTER, leave, BACKWARD, provenance=kept))
        of_inputs = named(name, inputs, partial_products=len(inputs))
        return (
            moved(Kind.ALL_GATHER, enter, FORWARD, provenance=entered),
            moved(Kind.REDUCE_SCATTER, leave, FORWARD, provenance=left),
            *again,
            moved(Kind.ALL_GATHER, leave, BACKWARD, provenance=left),
            moved(Kind.REDUCE_SCATTER, enter, BACKWARD, provenance=of_inputs),
        )

    return (
        *block(ATTENTION, ATTENTION_INPUTS, "out", shape.remat in ("dots", "full")),
        *block(MLP, mlp_inputs(shape), "down", False),
        *choices(strategy, shape, axes),
        *sum_of_weights(strategy, shape, axes),
    )


def choices(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """What a router makes of the tokens between blocks is gathered for the choice that all ranks share."""
    if not shape.experts:
        return ()
    n = activation_bytes(tokens_on_device(strategy, shape, axes), shape.experts, shape.bytes_per_element)
    times = shape.layers * shape.accumulation
    phases = (FORWARD, BACKWARD) if shape.remat in RECOMPUTING else (FORWARD,)
    return tuple(
        transfer(Kind.ALL_GATHER, f"{MLP}/router", (TENSOR,), n, phase, shape.dtype, times, axes) for phase in phases
    )


_scatter = partial(jax.lax.psum_scatter, axis_name=TENSOR, scatter_dimension=1, tiled=True)
_gather = partial(jax.lax.all_gather, axis_name=TENSOR, axis=1, tiled=True)
BLOCKS = CollectiveHooks(
    block_in=_gather, router=partial(_gather, to="invarying"), routed=as_own, block_out=_scatter, embed=_scatter
)

SEQUENCE_PARALLEL = Strategy(
    weights=LAYOUT,
    inside=LAYOUT,
    residual=BETWEEN_BLOCKS,
    copies=copies,
    hooks=VOCABULARY | BLOCKS,
    terms=(block_terms, vocabulary_terms),
)
