"""What ZeRO-1 and ZeRO-2 claim of a measured ledger (Ch. 20)."""

from __future__ import annotations

from collections.abc import Callable

from lab.book.sharding import zero_volume_bytes
from lab.evidence import along, counted, element_bytes
from lab.experiment import Claim, calculated, decided
from lab.ledger import Kind, Ledger, Totals
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
    moved = tuple(t for t in along(measured, DATA) if t.scope != "loss" and t.payload_bytes > 4)
    sent, e = Totals.of(moved).wire_bytes, element_bytes(moved)
    book = zero_volume_bytes(shape.parameters, e, P, stage, shape.accumulation)
    evidence = f"a device sends {counted(sent)} B of gradients and new weights a step; the formula for stage {stage} gives {counted(book)} B at P={P}, e={e}"
    if any(t.kind is Kind.ALL_REDUCE and t.payload_bytes > shape.layers * shape.embed * e for t in moved):
        return calculated("ch20.comm", f"{evidence}; this compiler sums gradients everywhere, where the formula scatters them")
    return decided("ch20.comm", sent == book, evidence)


def stage_memory(strategy: Strategy, formula: str, shape: DecoderShape, axes: Axes, measured: Ledger) -> Claim:
    """Decides `ch20.stage_memory` by the bytes that a device holds between steps, less what fills up a TPU's layout tiles."""
    part = static_bytes(strategy, shape, axes)
    state = f"{formula}, with norms whole and this device's tokens, is {counted(part)} B a device"
    if measured.memory is None:
        return calculated("ch20.stage_memory", state)
    held, padding = measured.memory.arguments, measured.memory.padding
    tiles = f", of which {counted(padding)} B fill up layout tiles (T8)" if padding else ""
    return decided("ch20.stage_memory", held - padding == part, f"a device holds {counted(held)} B between steps{tiles}; {state}")
