"""Chapter 24: what does hybrid sharding keep off the link between groups?"""

from lab.book.sharding import hybrid_across_wire_bytes
from lab.core.ledger import Ledger, Totals
from lab.harness.claim import Claim, decided
from lab.harness.decoder.step import decoder_experiment
from lab.harness.decoder.zero_claims import moved_for_weights, never_split
from lab.harness.evidence import counted, elements_sent
from lab.harness.experiment import TARGETS, on_two_axes
from lab.meshes.axes import DATA, FSDP, Axes
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.hybrid import HYBRID


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    """Counts numbers, not bytes: gradients that were added up over micro-batches travel in float32."""
    if 1 in axes.sizes:
        return ()
    R, S, across = axes[DATA], axes[FSDP], moved_for_weights(measured, DATA)
    sent, book = elements_sent(across), hybrid_across_wire_bytes(shape.parameters - never_split(shape), S, R)
    evidence = (
        f"a device sends {counted(Totals.of(across).wire_bytes)} B of gradients between groups, {counted(sent)} numbers"
    )
    return (decided("ch24.hsdp", sent == book, f"{evidence}; 2(R-1)/R Psi / S is {counted(book)} at R={R}, S={S}"),)


EXPERIMENT = decoder_experiment(
    name="ch24_hybrid",
    chapter=24,
    question="What does hybrid sharding keep off the link between groups?",
    strategy=HYBRID,
    axes=on_two_axes(DATA, FSDP),
    claims=claims,
    targets=TARGETS[:2],
    more_styles=("typed",),
    real_size={},
)
