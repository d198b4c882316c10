"""Expert parallelism (Ch. 18): a token needs few experts, and what an expert does to a token depends on no other, so tokens travel to
the ranks that hold their experts and back. Every rank has tokens of its own as well, so that all other weights are copies."""

from __future__ import annotations

from functools import partial

import jax

from lab.book.experts import capacity
from lab.ledger import Kind, Transfer
from lab.models.seams import Dims, Seams
from lab.models.shape import DecoderShape
from lab.strategies.strategy import Strategy
from lab.strategies.terms import (
    BACKWARD,
    FORWARD,
    RECOMPUTING,
    norm_of_gradients,
    sum_of_loss,
    sums_of_copies,
    tokens_on_device,
    transfer,
)
from meshes.axes import EXPERT, Axes
from meshes.layouts import Layout

WEIGHTS, TOKENS = Layout.of(experts=EXPERT), Layout.of(batch=EXPERT)


def copies(dims: Dims) -> frozenset[str]:
    """An expert is on one rank, and gets all tokens of its own there: its gradient is whole."""
    return frozenset() if "experts" in dims else frozenset({EXPERT})


def terms(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Moves tokens there and back, forward and backward, and sums the gradients of copies, loss and squares."""
    return (
        *(moved(scope, phase, strategy, shape, axes) for phase in (FORWARD, BACKWARD) for scope in ("dispatch", "combine")),
        *sums_of_copies(strategy, shape, axes, EXPERT),
        sum_of_loss(strategy, shape, axes),
        norm_of_gradients(strategy, shape, axes),
    )


def moved(scope: str, phase: str, strategy: Strategy, shape: DecoderShape, axes: Axes, over: str = EXPERT) -> Transfer:
    """A recomputed layer sends both ways again, since the gates' gradients need what the experts gave."""
    passes = 2 if phase == BACKWARD and shape.remat in RECOMPUTING else 1
    payload = slot_bytes(strategy, shape, axes)
    return transfer(Kind.ALL_TO_ALL, f"layers/mlp/{scope}", (over,), payload, phase, shape.dtype, passes * shape.layers * shape.accumulation, axes)


def slot_bytes(strategy: Strategy, shape: DecoderShape, axes: Axes) -> int:
    """All slots for the tokens of one device, taken or not: C_f k T D e, the slots of an expert and sequence rounded up."""
    sequences = tokens_on_device(strategy, shape, axes) // shape.length
    slots = int(capacity(shape.length, shape.experts, shape.top_k, shape.capacity_factor))
    return sequences * shape.experts * slots * shape.embed * shape.bytes_per_element


_exchanged = partial(jax.lax.all_to_all, axis_name=EXPERT, tiled=True)

EXPERT_PARALLEL = Strategy(
    weights=WEIGHTS,
    inside=WEIGHTS | TOKENS,
    residual=TOKENS,
    copies=copies,
    seams=Seams(dispatch=partial(_exchanged, split_axis=1, concat_axis=0), combine=partial(_exchanged, split_axis=0, concat_axis=1)),
    terms=(terms,),
)
