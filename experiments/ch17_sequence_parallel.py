"""Chapter 17: does sequence parallelism send what tensor parallelism does, and what else does it send?"""

from dataclasses import replace

from lab.book.parallelism import tp_volume_bytes
from lab.book.tensor_parallel import sp_layer_wire_bytes
from lab.core.ledger import Kind, Ledger, Totals
from lab.harness.claim import Claim, decided
from lab.harness.decoder.step import decoder_experiment
from lab.harness.evidence import along, counted, element_bytes, elements, of_elements
from lab.harness.experiment import TimedSteps, with_tensor_inside_host
from lab.meshes.axes import DATA, TENSOR, Axes
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.sequence_parallel import SEQUENCE_PARALLEL

SCALAR_BYTES = 4
SOFTMAX = 3
"""Sums of a number a token: the largest logit, the sum of exponentials and the target's logit."""


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if axes[TENSOR] == 1 or shape.is_latent or shape.mtp:  # The book has no latents and one prediction.
        return ()
    return (_volume(shape, axes, measured), _norms(shape, axes, measured))


def _volume(shape: DecoderShape, axes: Axes, measured: Ledger) -> Claim:
    """The book: as much as tensor parallelism. Right: inputs that are not kept are gathered again, which the catalogue
    says."""
    P, tokens = axes[TENSOR], shape.micro_batch // axes[DATA] * shape.length
    moved = of_elements(along(measured, TENSOR), tokens * shape.embed)
    e, activations = element_bytes(moved), Totals.of(moved)
    ends = tp_volume_bytes(tokens, shape.embed, e, ranks=P, blocks=1)
    plain = shape.accumulation * (tp_volume_bytes(tokens, shape.embed, e, ranks=P, blocks=2 * shape.layers) + ends)
    again = {"none": 0, "selective": 0, "names": 2}.get(shape.remat, 3)
    right = shape.accumulation * (shape.layers * sp_layer_wire_bytes(tokens, shape.embed, e, P, regathers=again) + ends)
    evidence = f"a device sends {counted(activations.wire_bytes)} B of activations a step at remat={shape.remat}"
    compared = (
        f"{evidence}; tensor parallelism without recomputation {counted(plain)} B, (8 + {again})(P-1)/P b s d e a "
        f"layer and its ends {counted(right)} B"
    )
    if activations.wire_bytes == right and again:
        return decided(
            "ch17.megatron_sp_pattern",
            False,
            compared,
            statement="sequence parallelism sends what tensor parallelism does",
            disputed="4-5:D-28",
        )
    return decided("ch17.megatron_sp_pattern", activations.wire_bytes == right, compared)


def _norms(shape: DecoderShape, axes: Axes, measured: Ledger) -> Claim:
    """Each rank applied the norms to its own tokens, so that their gradients are summed over tensor too; the book does
    not say so."""
    tokens, norms = shape.micro_batch // axes[DATA] * shape.length, shape.layers * shape.embed
    sums = (t for t in measured.split().transfers if TENSOR in (t.axes or ()) and t.kind is Kind.ALL_REDUCE)
    small = [t for t in sums if t.payload_bytes > SCALAR_BYTES and elements((replace(t, executions=1),)) <= norms]
    of_softmax = SOFTMAX * shape.accumulation * tokens if tokens <= norms else 0
    summed = elements(small) - of_softmax
    evidence = (
        f"{counted(summed)} numbers of norms' gradients are summed over tensor, of {2 * shape.layers + 1} norms of "
        f"{shape.embed}"
    )
    return decided(
        "ch17.megatron_sp_pattern",
        summed == 0,
        evidence,
        statement="no other reduction over tensor is needed",
        disputed="4-5:D-29",
    )


EXPERIMENT = decoder_experiment(
    name="ch17_sequence_parallel",
    chapter=17,
    question="Does sequence parallelism send what tensor parallelism does, and what else does it send?",
    strategy=DATA_PARALLEL | SEQUENCE_PARALLEL,
    axes=with_tensor_inside_host(DATA),
    claims=claims,
    more_styles=("typed",),
    real_size={},
    tour=TimedSteps(every_size=True),
    everyday=(("explicit", "cpu:8"), ("declared", "tpu:v5p:2x2x4")),
)
