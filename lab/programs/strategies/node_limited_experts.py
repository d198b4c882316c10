"""Experts on few nodes of a token's own choice (Ch. 35): a copy of a token crosses between nodes once for each node
that it visits, not once for each expert there, and is spread over the node's ranks where it arrives; so is what comes
back, added up before it crosses.

Nodes lie along `data`, and the ranks of a node along `expert`; experts are split over both. Source: DeepSeek-AI 2024
(arXiv:2412.19437), sections 2.1.2 and 3.2.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import jax

from lab.core.ledger import Kind, Phase, Transfer
from lab.meshes.axes import DATA, Axes
from lab.meshes.layouts import Layout
from lab.programs.models.collective_hooks import CollectiveHooks
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.expert_parallel import (
    combined,
    dispatched,
    moved,
    sequences,
    slot_bytes,
    sums,
)
from lab.programs.strategies.hierarchical_experts import (
    HIERARCHICAL_EXPERTS,
    check_dispatch,
    refused,
)
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.terms import BACKWARD, FORWARD, in_each_stack, transfer

WEIGHT_BYTES = 4


def terms(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Tokens and the weights of their experts across, tokens inside; and back."""
    check_dispatch(shape)
    return *in_each_stack(exchanges, strategy, shape, axes), *sums(strategy, shape, axes)


def exchanges(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Of a stack of layers."""
    if not shape.experts:
        return ()
    inside = (
        moved(scope, phase, slot_bytes(strategy, shape, axes), shape, axes)
        for phase in (FORWARD, BACKWARD)
        for scope in ("dispatch", "combine")
    )
    crossing = (row for phase in (FORWARD, BACKWARD) for row in crossings(phase, strategy, shape, axes))
    return *inside, *crossing


def crossings(phase: Phase, strategy: Strategy, shape: DecoderShape, axes: Axes) -> Iterator[Transfer]:
    """C_f M T D e of tokens, M nodes a token at most, and a float32 for each of them and each expert of a node."""
    rows = sequences(strategy, shape, axes) * shape.nodes * shape.node_slots
    tokens, weights = rows * shape.embed * shape.bytes_per_element, rows * (shape.experts // shape.nodes) * WEIGHT_BYTES
    yield moved("across", phase, tokens, shape, axes, DATA)
    yield moved("across", phase, weights, shape, axes, DATA, dtype="f32")
    # Weighed before it goes home, so that no gradient needs what has come home.
    yield transfer(
        Kind.ALL_TO_ALL, "layers/mlp/home", (DATA,), tokens, phase, shape.dtype, shape.layers * shape.accumulation, axes
    )


NODE_LIMITED_EXPERTS = replace(
    HIERARCHICAL_EXPERTS,
    inside=HIERARCHICAL_EXPERTS.inside | Layout.of(nodes=DATA),
    hooks=CollectiveHooks(
        dispatch=dispatched,
        combine=combined,
        node_dispatch=partial(jax.lax.all_to_all, axis_name=DATA, split_axis=1, concat_axis=0, tiled=True),
        node_return=partial(jax.lax.all_to_all, axis_name=DATA, split_axis=0, concat_axis=1, tiled=True),
        expert_apply=refused,
    ),
    terms=(terms,),
)
