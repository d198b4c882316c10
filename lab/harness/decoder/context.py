"""What the claims of Ch. 17 ask of a step under context parallelism."""

from __future__ import annotations

from collections.abc import Iterable

from lab.core.known import known
from lab.core.ledger import Ledger, Phase, Totals, Transfer
from lab.harness.evidence import along, element_bytes
from lab.meshes.axes import CONTEXT, DATA, Axes
from lab.programs.models.shape import DecoderShape

TARGETS, MORE_TARGETS = ("gpu:h100:2x8",), ("cpu:8", "tpu:v5p:2x2x4")
PRODUCTS_FORWARD, PRODUCTS_BACKWARD = 2, 5
"""Of a block: scores, and what they weigh; backward the scores again, and gradients of weights, values, queries and
keys."""


def group_tokens(shape: DecoderShape, axes: Axes) -> int:
    """b S: of one micro-batch on all ranks of a sequence."""
    return shape.micro_batch // axes[DATA] * shape.length


def kv_dim(shape: DecoderShape) -> int:
    return shape.kv_heads * shape.head_dim


def moved_in_core(measured: Ledger, phase: Phase | None = None) -> tuple[Transfer, ...]:
    """What goes over `context` for attention; all other transfers over it are sums of gradients and of the loss."""
    return tuple(t for t in along(measured, CONTEXT, phase=phase) if t.kind != "all_reduce")


def each_layer(shape: DecoderShape, transfers: Iterable[Transfer]) -> tuple[float, float, int]:
    """Messages and wire bytes of one layer and micro-batch, and bytes of an element as sent."""
    rows, times = tuple(transfers), shape.layers * shape.accumulation
    total = Totals.of(rows)
    return total.executions / times, float(total.wire_bytes) / times, element_bytes(rows)


def blocks_of_products(shape: DecoderShape, axes: Axes, measured: Ledger) -> float:
    """Blocks of (S / P)^2 that a device's attention multiplies in each layer, from what the compiled program multiplies
    beside its weights and beside one product of a row each layer, the output with its gradient, which the backward pass
    subtracts from every score's gradient (Dao 2023).

    Without recomputation alone: compilers drop or share some of what is computed twice.
    """
    P, tokens = axes[CONTEXT], shape.batch * shape.length // (axes[DATA] * axes[CONTEXT])
    of_weights = 6 * tokens * (shape.layer_matrices + shape.embed * shape.vocab)
    of_rows = 2 * tokens * shape.heads * shape.head_dim
    blocks_flops = known(measured.flops) - of_weights - shape.layers * of_rows
    return blocks_flops / (shape.layers * (PRODUCTS_FORWARD + PRODUCTS_BACKWARD) * of_rows * (shape.length // P))
