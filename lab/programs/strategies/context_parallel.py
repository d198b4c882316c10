"""Context parallelism (Ch. 17): all but attention treats tokens apart, so each rank may have a share of every sequence,
and softmax over keys is a sum that merges. What a rank's queries need of other ranks' keys goes round a ring, is
gathered, or is exchanged for heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import gcd, prod

import jax

from lab.attention import tiles
from lab.attention.exchange import check_heads, gathered_attention, ulysses_attention
from lab.attention.order import CONTIGUOUS, ZIGZAG, Order
from lab.attention.ring import check, ring_attention
from lab.book.architecture import window_hops
from lab.book.context import kv_head_copies
from lab.book.parallelism import activation_bytes
from lab.core.ledger import Kind, Phase, Provenance, Transfer
from lab.meshes.axes import CONTEXT, Axes
from lab.meshes.layouts import Layout
from lab.programs.models.collective_hooks import CollectiveHooks, Dims
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.strategy import STYLES, Strategy, Terms
from lab.programs.strategies.terms import (
    BACKWARD,
    FORWARD,
    in_each_stack,
    sum_of_loss,
    sums_of_copies,
    tokens_on_device,
    transfer,
)

LAYOUT = Layout.of(length=CONTEXT)


def copies(dims: Dims) -> frozenset[str]:
    """Ranks use every weight for tokens of their own."""
    return frozenset({CONTEXT})


def terms_of_tokens(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Sums the gradient of every weight, and the loss."""
    return (sum_of_loss(strategy, shape, axes), *sums_of_copies(strategy, shape, axes, CONTEXT))


def ring_terms(order: Order, strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Keys and values go round in every pass; their float32 gradients with them in the last, and home in the dtype of
    the products."""
    ranks = axes[CONTEXT]
    order.piece_size(shape.length, ranks)
    check(shape.mask, order)
    h, heads = _hops(shape, ranks), _kv_heads(strategy, shape, axes)

    def permuted(dim: int, scope: str, phase: Phase, times: int, dtype: str, e: int, shift: int = 1) -> Transfer:
        n = activation_bytes(tokens_on_device(strategy, shape, axes), heads * dim, e)
        row = _in_core(Kind.COLLECTIVE_PERMUTE, scope, n, phase, dtype, times, shape, axes)
        rings = gcd(shift, ranks)
        return replace(row, shift=shift, group_size=ranks // rings, groups=axes.size // ranks * rings)

    def of(name: str, dim: int) -> Iterator[Transfer]:
        for phase, passes in ((FORWARD, 1), (BACKWARD, 1 + _runs_again(shape))):
            yield permuted(dim, f"{name}s", phase, passes * h, shape.dtype, shape.bytes_per_element)
        yield permuted(dim, f"{name}_gradients", BACKWARD, h, "f32", 4)
        home = min(h, 1), shape.dtype, shape.bytes_per_element
        yield permuted(dim, f"home/{name}_gradients", BACKWARD, *home, shift=ranks - h)

    return (*of("key", shape.score_dim), *of("value", shape.head_dim))


def _hops(shape: DecoderShape, ranks: int) -> int:
    """All round, or as far as a window reaches: it counts the own token, the book's does not."""
    return int(window_hops(shape.window - 1, shape.length, ranks)) if shape.window else ranks - 1


def gathered_terms(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Gathers keys and values for every pass that needs them, and scatters the sum of their gradients."""
    tokens = axes[CONTEXT] * tokens_on_device(strategy, shape, axes)
    n = activation_bytes(tokens, _kv_heads(strategy, shape, axes), shape.bytes_per_element)
    again = [(Kind.ALL_GATHER, BACKWARD)] if _runs_again(shape) else []
    passes = (Kind.ALL_GATHER, FORWARD), *again, (Kind.REDUCE_SCATTER, BACKWARD)
    return tuple(
        _in_core(kind, scope, n * dim, phase, shape.dtype, 1, shape, axes)
        for scope, dim in (("keys", shape.score_dim), ("values", shape.head_dim))
        for kind, phase in passes
    )


def ulysses_terms(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Exchanges tokens for heads of queries, keys and values, and the outputs back; the same again the other way round
    in the backward pass."""
    kv_heads = _kv_heads(strategy, shape, axes)
    check_heads(kv_heads, shape.queries, axes[CONTEXT])
    kv_copies = kv_heads * kv_head_copies(kv_heads, axes[CONTEXT])

    def exchanged(scope: str, size: int, product: str) -> Iterator[Transfer]:
        n = activation_bytes(tokens_on_device(strategy, shape, axes), size, shape.bytes_per_element)
        # Kept scores need no outputs again.
        again = _runs_again(shape) and not (scope == "outputs" and shape.remat == "selective")
        for phase, times in ((FORWARD, 1), (BACKWARD, 1 + again)):
            row = _in_core(Kind.ALL_TO_ALL, scope, n, phase, shape.dtype, times, shape, axes)
            yield replace(row, provenance=Provenance(named_after=(f"layers/attention/{product}",)))

    sizes = {
        ("queries", "query"): kv_heads * shape.queries * shape.score_dim,
        ("keys", "key"): kv_copies * shape.score_dim,
        ("values", "value"): kv_copies * shape.head_dim,
        ("outputs", "out"): kv_heads * shape.queries * shape.head_dim,
    }
    return tuple(t for (scope, product), size in sizes.items() for t in exchanged(scope, size, product))


def _kv_heads(strategy: Strategy, shape: DecoderShape, axes: Axes) -> int:
    """On one device, before tokens are exchanged for heads."""
    return prod(strategy.inside.local_shape(("kv_heads",), (shape.kv_heads,), axes))


def _runs_again(shape: DecoderShape) -> bool:
    """Every policy but none makes attention again in the backward pass: its products have batch dims."""
    return shape.remat != "none"


def _in_core(
    kind: Kind, scope: str, n: int, phase: Phase, dtype: str, times: int, shape: DecoderShape, axes: Axes
) -> Transfer:
    """So many times in each layer and micro-batch."""
    return transfer(
        kind,
        f"layers/attention/core/{scope}",
        (CONTEXT,),
        n,
        phase,
        dtype,
        times * shape.layers * shape.accumulation,
        axes,
    )


def _over_context(
    attend: Callable[..., jax.Array],
    core: Layout,
    terms: Terms,
    order: Order = CONTIGUOUS,
    styles: tuple[str, ...] = ("explicit",),
) -> Strategy:
    def positions(length: int) -> jax.Array:
        return order.positions(length, jax.lax.axis_index(CONTEXT), jax.lax.axis_size(CONTEXT))

    hooks = CollectiveHooks(positions=positions, attend=partial(attend, axis=CONTEXT))
    return Strategy(
        inside=LAYOUT,
        core=core,
        pieces=order.pieces,
        residual=LAYOUT,
        copies=copies,
        hooks=hooks,
        terms=(terms_of_tokens, partial(in_each_stack, terms)),
        styles=styles,
    )


def _ring(order: Order) -> Strategy:
    core = Layout.of(length=CONTEXT, keys=CONTEXT)
    return _over_context(partial(ring_attention, order=order), core, partial(ring_terms, order), order)


RING, ZIGZAG_RING = _ring(CONTIGUOUS), _ring(ZIGZAG)
GATHERED_KEYS = _over_context(gathered_attention, LAYOUT, gathered_terms)
ULYSSES = _over_context(ulysses_attention, Layout.of(kv_heads=CONTEXT), ulysses_terms, styles=STYLES)
TILES = Strategy(terms=(), hooks=CollectiveHooks(attend=tiles.attend), styles=("explicit",))
"""Of sequences that are whole on every rank: no axis, and no scores of more than a tile of keys."""
