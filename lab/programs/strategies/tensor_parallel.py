"""Tensor parallelism (Ch. 15): a product is linear, so columns of one matrix and the same rows of the next can be
multiplied apart and summed once, where the block leaves. The vocabulary is split too, and its softmax is summed, never
gathered."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax

from lab.core.ledger import Kind, Phase, Provenance, Transfer
from lab.meshes.axes import TENSOR, Axes
from lab.meshes.layouts import Layout
from lab.programs.models.collective_hooks import CollectiveHooks, Dims
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.terms import (
    BACKWARD,
    FORWARD,
    SUMMING_AGAIN,
    in_each_stack,
    norm_of_gradients,
    stream_bytes,
    sums_of_copies,
    tokens_on_device,
    transfer,
)

LAYOUT = Layout.of(kv_heads=TENSOR, mlp=TENSOR, shared_mlp=TENSOR, vocab=TENSOR)
ATTENTION, MLP = "layers/attention", "layers/mlp"
_sum = partial(jax.lax.psum, axis_name=TENSOR)


class Entrance(NamedTuple):
    """What enters a block: of this many numbers a token, made `after` a norm or product, read by the products `inputs`,
    of whose gradients its own is the sum."""

    width: int
    after: str
    inputs: tuple[str, ...]


def into_attention(shape: DecoderShape) -> tuple[Entrance, ...]:
    """The stream, or in its place the latents and the key that all heads share."""
    if not shape.is_latent:
        return (Entrance(shape.embed, "norm", ("query", "key", "value")),)
    return (
        Entrance(shape.query_rank, "query_latent_norm", ("query",)),
        Entrance(shape.kv_rank, "kv_latent_norm", ("key", "value")),
        Entrance(shape.rope_dim, "rotary_key", ("key",)),
    )


def into_mlp(shape: DecoderShape) -> Entrance:
    return Entrance(shape.embed, "norm", ("gate", "up") if shape.is_gated else ("up",))


def copies(dims: Dims) -> frozenset[str]:
    """Ranks apply the norm of a head to heads of their own."""
    return frozenset({TENSOR}) if dims[-1] == "head_norm" else frozenset()


def first(size: int) -> jax.Array:
    return jax.lax.axis_index(TENSOR) * size


def vocabulary_terms(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Of every token the largest logit, the sum of exponentials and the target's logit: float32, forward only. And the
    gradient norm."""
    each = 4 * shape.predictions * tokens_on_device(strategy, shape, axes)

    def summed(what: str, provenance: Provenance = Provenance()) -> Transfer:
        return transfer(
            Kind.ALL_REDUCE, f"loss/{what}", (TENSOR,), each, FORWARD, "f32", shape.accumulation, axes, provenance
        )

    return (
        summed("largest", Provenance(product=shape.dtype)),
        summed("exponentials"),
        summed("target"),
        norm_of_gradients(strategy, shape, axes),
    )


def sum_of_weights(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Of the gradients of what experts' results are weighed with, float32: each rank finds its part of the experts'
    work to add to them."""
    if not shape.experts:
        return ()
    tokens = tokens_on_device(strategy, shape, axes)
    copies = (
        tokens // shape.length * shape.experts * shape.slots
        if shape.router == "expert_choice"
        else tokens * shape.top_k
    )
    times, found_in = shape.layers * shape.accumulation, "visit" if shape.is_dropless else "combine"
    provenance = named(MLP, (found_in,))
    return (
        transfer(Kind.ALL_REDUCE, f"{MLP}/router", (TENSOR,), 4 * copies, BACKWARD, "f32", times, axes, provenance),
    )


def named(block: str, after: tuple[str, ...], **stated: Any) -> Provenance:
    """Of a value that is moved where a block is entered or left, for these products or norms of the block."""
    return Provenance(named_after=tuple(f"{block}/{name}" for name in after), **stated)


def block_terms(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Sums activations where a block leaves, and their gradients where it was entered; so at both ends."""
    return (
        _summed("embedding", FORWARD, 1, strategy, shape, axes, width=shape.predictions * shape.embed),
        _summed("head", BACKWARD, 1, strategy, shape, axes, width=shape.predictions * shape.embed),
        *in_each_stack(layer_terms, strategy, shape, axes),
        *sums_of_copies(strategy, shape, axes, TENSOR),
    )


def _summed(
    scope: str,
    phase: Phase,
    times: int,
    strategy: Strategy,
    shape: DecoderShape,
    axes: Axes,
    provenance: Provenance = Provenance(),
    width: int = 0,
) -> Transfer:
    """Of the stream of a micro-batch, or of what else is so wide."""
    X, executions = stream_bytes(strategy, shape, axes, width), times * shape.accumulation
    return transfer(Kind.ALL_REDUCE, scope, (TENSOR,), X, phase, shape.dtype, executions, axes, provenance)


def layer_terms(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Of a stack of layers. Of a recomputed layer only the attention's sum is needed again: by nothing is the MLP's."""

    def summed(scope: str, phase: Phase, provenance: Provenance, width: int = 0) -> Transfer:
        return _summed(scope, phase, shape.layers, strategy, shape, axes, provenance, width)

    is_kept = shape.remat == "dots"
    again = (
        [summed(f"{ATTENTION}/leave", BACKWARD, named(ATTENTION, ("out",), saved_by_remat=is_kept))]
        if shape.remat in SUMMING_AGAIN
        else []
    )

    def entered(block: str, into: Entrance) -> Transfer:
        products = named(block, into.inputs, partial_products=len(into.inputs))
        return summed(f"{block}/enter", BACKWARD, products, into.width)

    return (
        summed(f"{ATTENTION}/leave", FORWARD, named(ATTENTION, ("out",))),
        summed(f"{MLP}/leave", FORWARD, named(MLP, ("down",))),
        *again,
        entered(MLP, into_mlp(shape)),
        *(entered(ATTENTION, into) for into in into_attention(shape)),
        *sum_of_weights(strategy, shape, axes),
    )


VOCABULARY = CollectiveHooks(vocab_sum=_sum, vocab_max=partial(jax.lax.pmax, axis_name=TENSOR), vocab_offset=first)
# One copy enters, each rank uses it: the transpose sums the ranks' gradients. Partial sums leave: their transpose is
# free.
as_own = partial(jax.lax.pcast, axis_name=TENSOR, to="varying")
BLOCKS = CollectiveHooks(block_in=as_own, routed=as_own, block_out=_sum, embed=_sum)

TENSOR_PARALLEL = Strategy(
    weights=LAYOUT, inside=LAYOUT, copies=copies, hooks=VOCABULARY | BLOCKS, terms=(block_terms, vocabulary_terms)
)
