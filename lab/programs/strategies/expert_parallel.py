"""Expert parallelism (Ch. 18): a token needs few experts, and what an expert does to a token depends on no other, so
tokens travel to the ranks that hold their experts and back. Every rank has tokens of its own as well, so that all other
weights are copies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import jax

from lab.book.experts import buffer_bytes, capacity
from lab.core.ledger import Kind, Phase, Transfer
from lab.meshes.axes import EXPERT, Axes
from lab.meshes.layouts import Layout
from lab.programs.models import dropless
from lab.programs.models.collective_hooks import CollectiveHooks, Dims
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.terms import (
    BACKWARD,
    FORWARD,
    RECOMPUTING,
    in_each_stack,
    norm_of_gradients,
    sum_of_loss,
    sums_of_copies,
    tokens_on_device,
    transfer,
)

COUNT_BYTES = 4
WEIGHTS, TOKENS = Layout.of(experts=EXPERT), Layout.of(batch=EXPERT)


def copies(dims: Dims) -> frozenset[str]:
    """An expert is on one rank, and gets all tokens of its own there: its gradient is whole."""
    return frozenset() if "experts" in dims else frozenset({EXPERT})


def terms(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Moves tokens there and back, forward and backward, and sums the gradients of copies, loss and squares."""
    return (*in_each_stack(exchanges, strategy, shape, axes), *sums(strategy, shape, axes))


def exchanges(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Of a stack of layers."""
    if not shape.experts:
        return ()
    if shape.is_dropless:
        return tuple(row for phase in (FORWARD, BACKWARD) for row in visits(phase, strategy, shape, axes))
    return tuple(
        moved(scope, phase, slot_bytes(strategy, shape, axes), shape, axes)
        for phase in (FORWARD, BACKWARD)
        for scope in ("dispatch", "combine")
    )


def sums(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    return (
        *sums_of_copies(strategy, shape, axes, EXPERT),
        sum_of_loss(strategy, shape, axes),
        norm_of_gradients(strategy, shape, axes),
    )


def moved(
    scope: str,
    phase: Phase,
    payload: int,
    shape: DecoderShape,
    axes: Axes,
    over: str = EXPERT,
    dtype: str | None = None,
) -> Transfer:
    """A recomputed layer sends both ways again, since the gates' gradients need what the experts gave."""
    return transfer(
        Kind.ALL_TO_ALL,
        f"layers/mlp/{scope}",
        (over,),
        payload,
        phase,
        dtype or shape.dtype,
        passes(phase, shape) * shape.layers * shape.accumulation,
        axes,
    )


def passes(phase: Phase, shape: DecoderShape) -> int:
    return 2 if phase == BACKWARD and shape.remat in RECOMPUTING else 1


def slot_bytes(strategy: Strategy, shape: DecoderShape, axes: Axes) -> int:
    """All slots for the tokens of one device, taken or not: C_f k T D e, the slots of an expert and sequence rounded
    up."""
    slots = int(capacity(own_length(strategy, shape, axes), shape.experts, shape.top_k, shape.capacity_factor))
    return sequences(strategy, shape, axes) * shape.experts * slots * shape.embed * shape.bytes_per_element


def own_length(strategy: Strategy, shape: DecoderShape, axes: Axes) -> int:
    """Tokens of a sequence that a device routes together."""
    return strategy.inside.local_shape(("length",), (shape.length,), axes)[0]


def sequences(strategy: Strategy, shape: DecoderShape, axes: Axes) -> int:
    """Of one device and micro-batch."""
    return tokens_on_device(strategy, shape, axes) // own_length(strategy, shape, axes)


def visits(phase: Phase, strategy: Strategy, shape: DecoderShape, axes: Axes) -> Iterator[Transfer]:
    """Without slots: counts where tokens are sent, then rows there and back. A rank has k T of them, which in the mean
    is what it sends and gets at most, and room for those of all P; padded, it sends as many as it has room for."""
    copies = int(
        buffer_bytes(tokens_on_device(strategy, shape, axes), shape.embed, shape.bytes_per_element, shape.top_k)
    )
    ranks, scope, kind = (
        axes[EXPERT],
        "layers/mlp/visit",
        Kind.RAGGED_ALL_TO_ALL if shape.dispatch == "ragged" else Kind.ALL_TO_ALL,
    )
    counted = passes(phase, shape) - (phase == BACKWARD)
    if counted:
        counts = COUNT_BYTES * (shape.experts + ranks)
        yield transfer(
            Kind.ALL_TO_ALL, scope, (EXPERT,), counts, phase, "s32", counted * shape.layers * shape.accumulation, axes
        )
    payload = copies if shape.dispatch == "ragged" else ranks * copies
    executions = 2 * passes(phase, shape) * shape.layers * shape.accumulation
    yield transfer(kind, scope, (EXPERT,), payload, phase, shape.dtype, executions, axes)


dispatched = partial(jax.lax.all_to_all, axis_name=EXPERT, split_axis=1, concat_axis=0, tiled=True)
combined = partial(jax.lax.all_to_all, axis_name=EXPERT, split_axis=0, concat_axis=1, tiled=True)


def visited(x_ND: jax.Array, count_E: jax.Array, own: dropless.Own, how: str) -> jax.Array:
    return dropless.over_ranks(x_ND, count_E, own, EXPERT, MOVES[how])


MOVES = {"padded": dropless.padded, "ragged": dropless.ragged}

EXPERT_PARALLEL = Strategy(
    weights=WEIGHTS,
    inside=WEIGHTS | TOKENS,
    residual=TOKENS,
    copies=copies,
    hooks=CollectiveHooks(dispatch=dispatched, combine=combined, expert_apply=visited),
    terms=(terms,),
    # Types of arrays do not follow tokens into the slots of experts.
    styles=("declared", "explicit"),
)
