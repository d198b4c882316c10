"""Expert parallelism over two levels of links (Ch. 18): a transposition over N x G ranks is one inside each group of G,
then one across.

Experts and tokens are split over both axes. A token first moves to the rank of its own group that stands where its
expert's rank stands in its group, then across: as many bytes cross as in one all-to-all over all ranks, in messages G
times as large.
"""

from __future__ import annotations

import jax

from lab.core.ledger import Transfer
from lab.meshes.axes import DATA, EXPERT, Axes
from lab.meshes.errors import UsageError
from lab.meshes.layouts import Layout
from lab.programs.models.collective_hooks import CollectiveHooks, Dims
from lab.programs.models.dropless import Own
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.expert_parallel import moved, slot_bytes, sums
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.terms import BACKWARD, FORWARD, in_each_stack

LEVELS = (EXPERT, DATA)
"""From the inside out."""
WEIGHTS, TOKENS = Layout.of(experts=LEVELS), Layout.of(batch=LEVELS)


def copies(dims: Dims) -> frozenset[str]:
    """An expert is on one rank of all."""
    return frozenset() if "experts" in dims else frozenset(LEVELS)


def terms(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Every buffer moves twice, once over each axis."""
    check_dispatch(shape)
    return *in_each_stack(exchanges, strategy, shape, axes), *sums(strategy, shape, axes)


def exchanges(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Of a stack of layers."""
    if not shape.experts:
        return ()
    payload = slot_bytes(strategy, shape, axes)
    return tuple(
        moved(scope, phase, payload, shape, axes, axis)
        for phase in (FORWARD, BACKWARD)
        for scope in ("dispatch", "combine")
        for axis in LEVELS
    )


def check_dispatch(shape: DecoderShape) -> None:
    """Raises UsageError for experts without slots."""
    if shape.is_dropless:
        refused(how=shape.dispatch)


def refused(*_: object, how: str, own: Own | None = None) -> jax.Array:
    raise UsageError(
        f"dispatch={how} over two levels of links: unpadded rows are exchanged over one level only; use expert "
        "parallelism together with data parallelism, or dispatch=slots"
    )


def dispatched(x_BECD: jax.Array) -> jax.Array:
    B, E, *slots = x_BECD.shape
    N, G = (jax.lax.axis_size(axis) for axis in (DATA, EXPERT))
    x_BNGe = x_BECD.reshape(B, N, G, E // (N * G), *slots)
    x_BN1e = jax.lax.all_to_all(x_BNGe, EXPERT, split_axis=2, concat_axis=0, tiled=True)
    x_B11e = jax.lax.all_to_all(x_BN1e, DATA, split_axis=1, concat_axis=0, tiled=True)
    return x_B11e.reshape(-1, E // (N * G), *slots)


def combined(y_BECD: jax.Array) -> jax.Array:
    _, _, *slots = y_BECD.shape
    y_B11e = y_BECD[:, None, None]
    y_BN1e = jax.lax.all_to_all(y_B11e, DATA, split_axis=0, concat_axis=1, tiled=True)
    y_BNGe = jax.lax.all_to_all(y_BN1e, EXPERT, split_axis=0, concat_axis=2, tiled=True)
    return y_BNGe.reshape(y_BNGe.shape[0], -1, *slots)


HIERARCHICAL_EXPERTS = Strategy(
    weights=WEIGHTS,
    inside=WEIGHTS | TOKENS,
    residual=TOKENS,
    copies=copies,
    hooks=CollectiveHooks(dispatch=dispatched, combine=combined, expert_apply=refused),
    terms=(terms,),
    # No compiler sends tokens in two hops by itself.
    styles=("explicit",),
)
