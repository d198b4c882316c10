"""Chapter 14: what does data parallelism send, and is it only the gradient?"""

from lab.book.parallelism import dp_volume_bytes
from lab.core.ledger import Kind, Ledger, Totals, Transfer
from lab.core.units import count
from lab.harness.claim import Claim, decided
from lab.harness.decoder.step import decoder_experiment
from lab.harness.decoder.zero_claims import moved_for_weights
from lab.harness.evidence import counted, elements, elements_sent
from lab.harness.experiment import TimedSteps, on_one_axis
from lab.meshes.axes import DATA, Axes
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.data_parallel import DATA_PARALLEL

LOSS_BYTES = 4


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    """Counts numbers, not bytes: gradients that were added up over micro-batches travel in float32."""
    if axes[DATA] == 1:
        return ()
    P, gradients = axes[DATA], tuple(t for t in moved_for_weights(measured, DATA) if t.kind is Kind.ALL_REDUCE)
    # Compilers may send the loss with the gradients, in one instruction.
    rest = [t for t in measured.split().transfers if t not in gradients]
    sent, summed, volume = elements_sent(gradients), elements(gradients), dp_volume_bytes(shape.parameters, 1, P)
    return (
        decided(
            "ch14.dp_allreduce_volume",
            sent == volume,
            f"a device sends {counted(Totals.of(gradients).wire_bytes)} B of gradients a step, {counted(sent)} "
            "numbers; "
            f"2(P-1)/P Psi is {counted(volume)} at P={P} and Psi={counted(shape.parameters)}, the number of parameters",
        ),
        decided(
            "ch14.partition_theorem",
            summed == shape.parameters,
            f"{counted(summed)} numbers are summed over groups of {P}; each gradient once is Psi = "
            f"{counted(shape.parameters)}",
        ),
        decided(
            "ch14.sync_invariant",
            all(t.payload_bytes == LOSS_BYTES for t in rest),
            f"except for gradients, {count(Totals.of(rest).arrays, 'payload')} of {_sizes(rest)} B move a step, and a "
            f"loss has {LOSS_BYTES} B: no weight is sent, equal replicas stay equal",
        ),
    )


def _sizes(transfers: list[Transfer]) -> str:
    return " or ".join(map(counted, sorted({t.payload_bytes for t in transfers})))


EXPERIMENT = decoder_experiment(
    name="ch14_data_parallel",
    chapter=14,
    question="What does data parallelism send, and is it only the gradient?",
    strategy=DATA_PARALLEL,
    axes=on_one_axis(DATA),
    claims=claims,
    # Of 32 layers the state alone, 12 bytes a parameter, and their gradients are more than a chip has room for.
    real_size={"layers": "16"},
    tour=TimedSteps(every_size=True, every_policy=True, min_devices=1),
    everyday=(("explicit", "cpu:8"), ("declared", "gpu:h100:2x8"), ("declared", "tpu:v5p:2x2x4")),
)
