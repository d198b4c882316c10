"""Chapter 20: what does a step send where only the embedding and the head are sharded?"""

from lab.core.ledger import Kind, Ledger, Totals
from lab.harness.claim import Claim, decided
from lab.harness.decoder.step import decoder_experiment
from lab.harness.evidence import counted, element_bytes
from lab.harness.experiment import on_one_axis
from lab.meshes.axes import FSDP, Axes
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.sharded_tables import SHARDED_TABLES


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    gathers = [t for t in measured.split().transfers if t.kind is Kind.ALL_GATHER]
    if axes[FSDP] == 1 or not gathers:
        return ()
    tables = (2 - shape.tied) * shape.vocab * shape.embed
    gathered = Totals.of(gathers).payload_bytes / element_bytes(tuple(gathers))
    return (
        decided(
            "ch20.comm",
            gathered == shape.accumulation * tables,
            f"{counted(gathered)} numbers are gathered; the tables have {counted(tables)}",
            statement="each table is gathered once a micro-batch",
        ),
    )


EXPERIMENT = decoder_experiment(
    name="ch20_sharded_tables",
    chapter=20,
    question="What does a step send where only the embedding and the head are sharded?",
    strategy=SHARDED_TABLES,
    axes=on_one_axis(FSDP),
    claims=claims,
)
