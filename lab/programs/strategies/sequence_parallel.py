"""Tensor + sequence parallelism (Ch. 17; Korthikanti et al. 2022): norms treat tokens apart, so between blocks each
rank keeps its share of them; the sum that a block leaves with is scattered, and gathered where the next is entered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import jax

from lab.book.parallelism import activation_bytes
from lab.core.ledger import Kind, Phase, Provenance, Transfer
from lab.meshes.axes import TENSOR, Axes
from lab.meshes.layouts import Layout
from lab.programs.models.collective_hooks import CollectiveHooks, Dims
from lab.programs.models.decoder import NORMS
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.tensor_parallel import (
    ATTENTION,
    LAYOUT,
    MLP,
    VOCABULARY,
    Entrance,
    as_own,
    into_attention,
    into_mlp,
    named,
    sum_of_weights,
    vocabulary_terms,
)
from lab.programs.strategies.terms import (
    BACKWARD,
    FORWARD,
    RECOMPUTING,
    SUMMING_AGAIN,
    in_each_stack,
    stream_bytes,
    sums_of_copies,
    tokens_on_device,
    transfer,
)

OF_OWN_TOKENS = ("choices", "joined", "query_latent", "kv_latent", "rope_dim")
BETWEEN_BLOCKS = Layout.of(length=TENSOR)


def copies(dims: Dims) -> frozenset[str]:
    """Ranks apply a norm, a router, and what makes latents to tokens of their own, and the norm of a head to heads of
    their own."""
    return frozenset({TENSOR}) if {*dims} & {*NORMS, *OF_OWN_TOKENS} else frozenset()


def block_terms(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Gathers and scatters tokens at each end of a block, and in the backward pass the other way round; sums the
    gradients of norms."""
    ends = partial(_moved, strategy=strategy, shape=shape, axes=axes, times=1, width=shape.predictions * shape.embed)
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
    width: int = 0,
) -> Transfer:
    """The stream of a micro-batch, or what else is so wide."""
    X, executions = stream_bytes(strategy, shape, axes, width), times * shape.accumulation
    return transfer(kind, scope, (TENSOR,), X, phase, shape.dtype, executions, axes, provenance)


def layer_terms(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Of a stack of layers."""
    moved = partial(_moved, strategy=strategy, shape=shape, axes=axes, times=shape.layers)

    def block(name: str, entrances: tuple[Entrance, ...], output: str, is_left_again: bool) -> Iterator[Transfer]:
        leave, left = f"{name}/leave", named(name, (output,))
        for into in entrances:
            entered = partial(moved, scope=f"{name}/enter", width=into.width)
            gathered = partial(entered, Kind.ALL_GATHER, provenance=named(name, (into.after,)))
            yield gathered(phase=FORWARD)
            if shape.remat in RECOMPUTING:
                yield gathered(phase=BACKWARD)
            products = named(name, into.inputs, partial_products=len(into.inputs))
            yield entered(Kind.REDUCE_SCATTER, phase=BACKWARD, provenance=products)
        yield moved(Kind.REDUCE_SCATTER, leave, FORWARD, provenance=left)
        if is_left_again:
            kept = replace(left, saved_by_remat=shape.remat == "dots")
            yield moved(Kind.REDUCE_SCATTER, leave, BACKWARD, provenance=kept)
        yield moved(Kind.ALL_GATHER, leave, BACKWARD, provenance=left)

    return (
        *block(ATTENTION, into_attention(shape), "out", shape.remat in SUMMING_AGAIN),
        *block(MLP, (into_mlp(shape),), "down", False),
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
