"""What ZeRO-1 and ZeRO-2 claim of a measured ledger (Ch. 20)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from lab.book.parallelism import dp_volume_bytes
from lab.book.sharding import zero_volume_bytes
from lab.core.ledger import Ledger, Totals, Transfer
from lab.harness.claim import Claim, calculated, decided
from lab.harness.evidence import along, counted, elements_sent
from lab.meshes.axes import DATA, Axes
from lab.programs.memory.state import static_bytes
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.terms import RECOMPUTING


def zero_claims(strategy: Strategy, stage: int) -> Callable[[DecoderShape, Axes, Ledger], tuple[Claim, ...]]:
    def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
        if axes[DATA] == 1:
            return ()
        return (
            _volume(stage, shape, axes[DATA], measured),
            stage_memory(strategy, "2 Psi + 12 Psi / P", shape, axes, measured),
        )

    return claims


def _volume(stage: int, shape: DecoderShape, P: int, measured: Ledger) -> Claim:
    """Counts numbers, not bytes: gradients that were added up over micro-batches travel in float32, new weights in the
    products' dtype."""
    moved = moved_for_weights(measured, DATA)
    sent, whole, A = elements_sent(moved), never_split(shape), shape.accumulation
    book = zero_volume_bytes(shape.parameters - whole, 1, P, stage, A) + dp_volume_bytes(whole, 1, P)
    evidence = (
        f"a device sends {counted(Totals.of(moved).wire_bytes)} B of gradients and new weights per step, "
        f"{counted(sent)} numbers"
    )
    evidence += f"; the formula for stage {stage} gives {counted(book)} at P={P}" + (f", A={A}" if A > 1 else "")
    return decided("ch20.comm", sent == book, evidence)


def moved_for_weights(measured: Ledger, axis: str) -> tuple[Transfer, ...]:
    """Along an axis all but the loss and other single numbers, whatever phase a compiler's names tell."""
    return tuple(t for t in along(measured, axis) if t.scope != "loss" and t.payload_bytes > 4)


def never_split(shape: DecoderShape) -> int:
    """Parameters of norms and biases: too small to split, every rank sums their gradients once a step."""
    return shape.norms + shape.biases


def layers_numbers(shape: DecoderShape, P: int) -> Fraction:
    """That a rank sends for layers' matrices under ZeRO-3: gathered for each pass of a micro-batch, unless they stay
    gathered for the backward pass."""
    A, layers = shape.accumulation, shape.layer_matrices
    return zero_volume_bytes(layers, 1, P, 3, A) if shape.remat in RECOMPUTING else A * dp_volume_bytes(layers, 1, P)


def ends_numbers(shape: DecoderShape, P: int) -> Fraction:
    """The same for embedding and head, which are kept once a micro-batch has gathered them."""
    return shape.accumulation * dp_volume_bytes(shape.parameters - shape.layer_matrices - never_split(shape), 1, P)


def stage_memory(strategy: Strategy, formula: str, shape: DecoderShape, axes: Axes, measured: Ledger) -> Claim:
    """Decides `ch20.stage_memory` by the bytes that a device holds between steps, less what fills up a TPU's layout
    tiles."""
    part = static_bytes(strategy, shape, axes)
    state = f"{formula}, with norms replicated and this device's tokens, is {counted(part)} B per device"
    if measured.memory is None:
        return calculated("ch20.stage_memory", state)
    held, padding = measured.memory.arguments, measured.memory.padding
    tiles = f", of which {counted(padding)} B pad layout tiles (T8)" if padding else ""
    return decided(
        "ch20.stage_memory", held - padding == part, f"a device stores {counted(held)} B between steps{tiles}; {state}"
    )
