"""Chapter 28: what does a whole training step send when its gradients are exchanged in fewer bits?"""

from lab.book.collectives import all_reduce_wire_bytes
from lab.core.ledger import Ledger, Totals
from lab.harness.claim import Claim, calculated
from lab.harness.decoder.compressed import CompressedShape, compressed_experiment
from lab.harness.evidence import along, counted
from lab.meshes.axes import DATA, Axes
from lab.programs.memory.state import parameters_on_device
from lab.programs.strategies.exchanged import memory_bytes


def claims(shape: CompressedShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    ranks = axes[DATA]
    if ranks == 1:
        return ()
    sent = Totals.of(along(measured, DATA)).wire_bytes
    numbers = parameters_on_device(shape.strategy.master, shape, axes)
    dense, kept = all_reduce_wire_bytes(4 * numbers, ranks), memory_bytes(shape.strategy, shape, axes)
    return (
        calculated(
            "ch28.dense_cost",
            f"under {shape.method} a rank sends {counted(sent)} B a step and keeps {counted(kept)} B of the exchange; "
            f"float32 gradients of {numbers:,} parameters take {counted(dense)} B, {float(dense / sent):.3g} times as "
            "much",
        ),
    )


EXPERIMENT = compressed_experiment(
    name="ch28_step",
    question="What does a whole step send when its gradients are exchanged in fewer bits?",
    claims=claims,
)
