"""What ZeRO-1 and ZeRO-2 claim of a measured ledger (Ch. 20)."""

from __future__ import annotations

from collections.abc import Callable

from lab.book.parallelism import dp_volume_bytes
from lab.book.sharding import zero_volume_bytes
from lab.evidence import along, counted, elements_sent
from lab.experiment import Claim, calculated, decided
from lab.hlo.shapes import bits
from lab.ledger import Kind, Ledger, Totals, Transfer
from lab.models.shape import DecoderShape
from lab.strategies.memory import static_bytes
from lab.strategies.strategy import Strategy
from meshes.axes import DATA, Axes


def zero_claims(strategy: Strategy, stage: int) -> Callable[[DecoderShape, Axes, Ledger], tuple[Claim, ...]]:
    def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
        if axes[DATA] == 1:
            return ()
        return (_volume(stage, shape, axes[DATA], measured), stage_memory(strategy, "2 Psi + 12 Psi / P", shape, axes, measured))

    return claims


def _volume(stage: int, shape: DecoderShape, P: int, measured: Ledger) -> Claim:
    """Counts numbers, not bytes: gradients that were added up over micro-batches travel in float32, new weights in the products' dtype."""
    moved = moved_for_weights(measured, DATA)
    sent, whole, A = elements_sent(moved), never_split(shape), shape.accumulation
    book = zero_volume_bytes(shape.parameters - whole, 1, P, stage, A) + dp_volume_bytes(whole, 1, P)
    evidence = f"a device sends {counted(Totals.of(moved).wire_bytes)} B of gradients and new weights a step, {counted(sent)} numbers"
    evidence += f"; the formula for stage {stage} gives {counted(book)} at P={P}" + (f", A={A}" if A > 1 else "")
    if any(sums_a_matrix(t, shape) for t in moved):
        return calculated("ch20.comm", f"{evidence}; this compiler sums gradients everywhere, where the formula scatters them")
    return decided("ch20.comm", sent == book, evidence)


def moved_for_weights(measured: Ledger, axis: str) -> tuple[Transfer, ...]:
    """Along an axis all but the loss and other single numbers, whatever phase a compiler's names tell."""
    return tuple(t for t in along(measured, axis) if t.scope != "loss" and t.payload_bytes > 4)


def never_split(shape: DecoderShape) -> int:
    """Parameters of norms and biases: too small to split, every rank sums their gradients once a step."""
    return (2 * shape.layers + 1) * shape.embed + shape.biases


def sums_a_matrix(t: Transfer, shape: DecoderShape) -> bool:
    """An all_reduce of more than one stack of norms holds."""
    return t.kind is Kind.ALL_REDUCE and 8 * t.payload_bytes > shape.layers * shape.embed * bits(t.dtype)


def stage_memory(strategy: Strategy, formula: str, shape: DecoderShape, axes: Axes, measured: Ledger) -> Claim:
    """Decides `ch20.stage_memory` by the bytes that a device holds between steps, less what fills up a TPU's layout tiles."""
    part = static_bytes(strategy, shape, axes)
    state = f"{formula}, with norms whole and this device's tokens, is {counted(part)} B a device"
    if measured.memory is None:
        return calculated("ch20.stage_memory", state)
    held, padding = measured.memory.arguments, measured.memory.padding
    tiles = f", of which {counted(padding)} B fill up layout tiles (T8)" if padding else ""
    return decided("ch20.stage_memory", held - padding == part, f"a device holds {counted(held)} B between steps{tiles}; {state}")
