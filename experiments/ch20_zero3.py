"""Chapter 20: does ZeRO-3 send 1.5 times what data parallelism does, for 1/P of the state per device?"""

from lab.book.parallelism import dp_volume_bytes
from lab.core.ledger import Ledger, Totals
from lab.harness.claim import Claim, calculated, decided
from lab.harness.decoder.step import decoder_experiment
from lab.harness.decoder.zero_claims import (
    ends_numbers,
    layers_numbers,
    moved_for_weights,
    never_split,
    stage_memory,
)
from lab.harness.evidence import counted, elements_sent
from lab.harness.experiment import TimedSteps, on_one_axis
from lab.meshes.axes import FSDP, Axes
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.terms import RECOMPUTING
from lab.programs.strategies.zero3 import ZERO3


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if axes[FSDP] == 1:
        return ()
    return (_communication(shape, axes[FSDP], measured), stage_memory(ZERO3, "12 Psi / P", shape, axes, measured))


def _communication(shape: DecoderShape, P: int, measured: Ledger) -> Claim:
    """Layers' matrices are gathered for each pass of a micro-batch; embedding and head are kept once gathered, and
    norms are not split."""
    moved, A = moved_for_weights(measured, FSDP), shape.accumulation
    sent, rest = elements_sent(moved), ends_numbers(shape, P) + dp_volume_bytes(never_split(shape), 1, P)
    times = float((sent - rest) / dp_volume_bytes(shape.layer_matrices, 1, P))
    evidence = (
        f"a device sends {counted(Totals.of(moved).wire_bytes)} B for weights a step, for the layers' matrices "
        f"{times:.2f} times what data parallelism does"
    )
    if shape.remat not in RECOMPUTING:
        return calculated(
            "ch20.comm",
            f"{evidence}; with remat={shape.remat} weights stay gathered for the backward pass, where the formula "
            "gathers them again",
        )
    book = layers_numbers(shape, P) + rest
    formula = (
        f"3 A (P-1)/P Psi of them, 2 A (P-1)/P Psi of embedding and head and 2 (P-1)/P Psi of norms are {counted(book)}"
    )
    return decided("ch20.comm", sent == book, f"{evidence}, in all {counted(sent)} numbers; {formula} at P={P}, A={A}")


EXPERIMENT = decoder_experiment(
    name="ch20_zero3",
    chapter=20,
    question="Does ZeRO-3 send 1.5 times what data parallelism does, for 1/P of the state per device?",
    strategy=ZERO3,
    axes=on_one_axis(FSDP),
    claims=claims,
    real_size={},
    tour=TimedSteps(every_size=True, every_policy=True),
    everyday=(("explicit", "cpu:8"), ("declared", "gpu:h100:2x8"), ("declared", "tpu:v5p:2x2x4")),
)
