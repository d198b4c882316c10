"""Chapter 18: which gradients are reduced over which axes when expert parallelism is combined with ZeRO-3?"""

from lab.book.experts import expert_parameters
from lab.core.ledger import Kind, Ledger, Totals
from lab.harness.claim import Claim, decided
from lab.harness.decoder.experts import expert_experiment
from lab.harness.evidence import along, counted, element_bytes
from lab.harness.experiment import on_two_axes
from lab.meshes.axes import EXPERT, FSDP, Axes
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.expert_parallel import EXPERT_PARALLEL
from lab.programs.strategies.zero3 import ZERO3

ENDS = ("embedding", "head")
"""At small sizes as large as a rank's experts."""


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    """Of scatters over `fsdp` alone: experts' whole gradients; in the declared style nothing else is scattered
    there."""
    scattered = along(measured, FSDP, kind=Kind.REDUCE_SCATTER)
    if 1 in axes.sizes or not shape.experts or not scattered or shape.mtp:  # The book's layers are all in loops.
        return ()
    e, each = element_bytes(scattered), expert_parameters(shape.experts, shape.embed, shape.mlp, 1) // axes[EXPERT]
    of_experts = [t for t in scattered if t.payload_bytes == e * each and t.scope not in ENDS]
    over_expert = [
        t
        for t in along(measured, EXPERT, kind=Kind.ALL_REDUCE)
        if (t.dtype, t.payload_bytes) == (scattered[0].dtype, e * each)
    ]
    found, book = (
        int(Totals.of(of_experts).payload_bytes),
        e * each * shape.mlp_matrices * shape.expert_layers * shape.accumulation,
    )
    evidence = (
        f"{counted(found)} B of a rank's experts' gradients are scattered over fsdp={axes[FSDP]}, by the formula "
        f"{counted(book)} B"
    )
    evidence += f", and {len(over_expert)} of their transfers sum over expert={axes[EXPERT]}"
    return (
        decided(
            "ch18.ep_dp",
            found == book and not over_expert,
            evidence,
            statement="experts' gradients are summed over the ranks that share no expert",
        ),
    )


EXPERIMENT = expert_experiment(
    name="ch18_fsdp_experts",
    chapter=18,
    question="Which gradients are reduced over which axes when expert parallelism is combined with ZeRO-3?",
    strategy=ZERO3 | EXPERT_PARALLEL,
    axes=on_two_axes(FSDP, EXPERT),
    claims=claims,
)
