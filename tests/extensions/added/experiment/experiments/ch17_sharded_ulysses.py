"""Chapter 17: does attention by exchange of heads send as much beside sharded state as beside copies?"""

from lab.core.ledger import Kind, Ledger, Totals
from lab.harness.claim import Claim, decided
from lab.harness.decoder.step import decoder_experiment
from lab.harness.evidence import along, counted
from lab.harness.experiment import with_inner_axis
from lab.meshes.axes import CONTEXT, FSDP, Axes
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.context_parallel import ULYSSES
from lab.programs.strategies.zero3 import ZERO3


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    exchanges = Totals.of(t for t in along(measured, CONTEXT) if t.kind is Kind.ALL_TO_ALL)
    if axes[CONTEXT] == 1:
        return ()
    return (
        decided(
            "ch17.ulysses_volume",
            exchanges.executions == shape.layers * shape.accumulation * (4 + 4 * (1 + (shape.remat != "none"))),
            f"{counted(exchanges.executions)} exchanges a step in {shape.layers} layers, remat={shape.remat}",
            statement="queries, keys, values and outputs are exchanged once a pass",
        ),
    )


EXPERIMENT = decoder_experiment(
    name="ch17_sharded_ulysses",
    chapter=17,
    question="Does attention by exchange of heads send as much beside sharded state as beside copies?",
    strategy=ZERO3 | ULYSSES,
    axes=with_inner_axis(FSDP, CONTEXT),
    claims=claims,
    targets=("cpu:8",),
)
