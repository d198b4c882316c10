"""Chapter 18: what does a dropless training step send?

CPUs have no ragged all-to-all: there, buffers for the worst case are sent, `--set dispatch=padded`.
"""

from dataclasses import replace

from lab.book.experts import buffer_bytes
from lab.core.ledger import Kind, Ledger, Totals
from lab.harness.claim import Claim, decided
from lab.harness.decoder.experts import (
    SHAPE,
    SMALL_SHAPE,
    expert_experiment,
    tokens_on_rank,
)
from lab.harness.evidence import along, counted, element_bytes
from lab.meshes.axes import EXPERT, Axes
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.expert_parallel import EXPERT_PARALLEL

COUNTS = "s32"


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    """Of buffers: how much of them moves depends on the tokens."""
    moved = [t for t in along(measured, EXPERT) if t.kind in (Kind.ALL_TO_ALL, Kind.RAGGED_ALL_TO_ALL)]
    rows, counts = ([t for t in moved if (t.dtype == COUNTS) is are_counts] for are_counts in (False, True))
    if axes[EXPERT] == 1 or not shape.is_dropless or not rows:
        return ()
    ranks, room = axes[EXPERT], axes[EXPERT] if shape.dispatch == "padded" else 1
    n = int(buffer_bytes(tokens_on_rank(shape, axes.size), shape.embed, element_bytes(rows), shape.top_k))
    sizes, told = sorted({t.payload_bytes for t in rows}), sorted({t.payload_bytes for t in counts})
    evidence = (
        f"rows of {' and '.join(map(counted, sizes))} B at most; k T H e is {counted(n)} B, and {ranks} times that for "
        "the rank whose experts all want"
    )
    times = (
        f"{Totals.of(rows).executions} moves of rows and {Totals.of(counts).executions} of counts in "
        f"{shape.expert_layers} layers at remat={shape.remat}"
    )
    return (
        decided(
            "A39",
            sizes == [room * n],
            evidence,
            statement=f"a {shape.dispatch} exchange in a whole step",
        ),
        decided(
            "A39",
            told == [4 * (shape.experts + ranks)],
            f"{' and '.join(map(counted, told))} B of counts; {times}",
            statement="counts go first in a whole step",
        ),
    )


EXPERIMENT = expert_experiment(
    name="ch18_dropless_step",
    chapter=18,
    question="What does a dropless training step send?",
    strategy=DATA_PARALLEL | EXPERT_PARALLEL,
    claims=claims,
    parameters=replace(SHAPE, dispatch="ragged"),
    small=replace(SMALL_SHAPE, dispatch="padded"),
    more_targets=("tpu:v5p:2x2x4",),
    styles=("explicit",),
)
