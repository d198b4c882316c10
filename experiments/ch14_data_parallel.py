"""Chapter 14: what does data parallelism send, and is it the gradient alone?"""

from lab.book.parallelism import dp_volume_bytes, gradient_bytes
from lab.decoder_experiments.step import WITH_TYPES, decoder_experiment
from lab.evidence import along, counted, element_bytes
from lab.experiment import Claim, decided, on_one_axis
from lab.ledger import Ledger, Totals
from lab.models.shape import DecoderShape
from lab.strategies.data_parallel import DATA_PARALLEL
from meshes.axes import DATA, Axes

LOSS_BYTES = 4


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    # Compilers may send the loss with the gradients, in one instruction.
    P, gradients = axes[DATA], tuple(t for t in along(measured, DATA, phase="backward") if t.payload_bytes > LOSS_BYTES)
    if P == 1:
        return ()
    sums, e = Totals.of(gradients), element_bytes(gradients)
    volume, payload = dp_volume_bytes(shape.parameters, e, P), gradient_bytes(shape.parameters, e)
    rest = measured.totals().payload_bytes - sums.payload_bytes
    return (
        decided(
            "ch14.dp_allreduce_volume",
            sums.wire_bytes == volume,
            f"a device sends {counted(sums.wire_bytes)} B of gradients a step; "
            f"2(P-1)/P Psi e is {counted(volume)} B at P={P}, Psi={counted(shape.parameters)}, e={e}",
        ),
        decided(
            "ch14.partition_theorem",
            sums.payload_bytes == payload,
            f"{counted(sums.payload_bytes)} B are summed over groups of {P}; each gradient once is Psi e = {counted(payload)} B",
        ),
        decided(
            "ch14.sync_invariant",
            rest == LOSS_BYTES,
            f"besides gradients {counted(rest)} B move, and the loss has {LOSS_BYTES}: no weight is sent, equal replicas stay equal",
        ),
    )


EXPERIMENT = decoder_experiment(
    name="ch14_data_parallel",
    chapter=14,
    question="What does data parallelism send, and is it the gradient alone?",
    strategy=DATA_PARALLEL,
    axes=on_one_axis(DATA),
    claims=claims,
    styles=WITH_TYPES,
)
