"""Chapter 15: how often does tensor parallelism all-reduce, where, and how many bytes?"""

from lab.book.parallelism import activation_bytes, tp_volume_bytes
from lab.core.ledger import Ledger, Phase, Totals, Transfer
from lab.harness.claim import Claim, decided
from lab.harness.decoder.step import decoder_experiment
from lab.harness.evidence import along, counted, element_bytes, of_elements
from lab.harness.experiment import TimedSteps, with_tensor_inside_host
from lab.meshes.axes import DATA, TENSOR, Axes
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.tensor_parallel import TENSOR_PARALLEL
from lab.programs.strategies.terms import SUMMING_AGAIN

BLOCKS = 2
"""Of a layer: attention and MLP."""


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if axes[TENSOR] == 1 or shape.is_latent or shape.mtp:  # The book has no latents and one prediction.
        return ()
    tokens = shape.micro_batch // axes[DATA] * shape.length
    activations = of_elements(along(measured, TENSOR), tokens * shape.embed)
    payload = activation_bytes(tokens, shape.embed, element_bytes(activations))
    of_blocks = (
        _count(shape, activations),
        _volume(shape, axes, tokens, activations),
        _payload(axes, activations, payload),
    )
    return (*of_blocks, *_vocabulary(shape, activations, of_elements(along(measured, TENSOR), tokens)))


def _again(shape: DecoderShape) -> int:
    """Sums that a layer's recomputation repeats: the attention's, which the MLP begins with."""
    return shape.layers if shape.remat in SUMMING_AGAIN else 0


def _count(shape: DecoderShape, activations: tuple[Transfer, ...]) -> Claim:
    m, L = shape.accumulation, shape.layers
    forward, backward = (
        Totals.of(t for t in activations if t.phase == phase).executions for phase in (Phase.FORWARD, Phase.BACKWARD)
    )
    once = BLOCKS * L + 1
    evidence = (
        f"{forward} sums forward and {backward} backward in {L} layers, the embedding and the head, for {m} "
        "micro-batches"
    )
    evidence += f": 2 and 2 a layer, remat={shape.remat} repeats {_again(shape) // L}"
    return decided("ch15.ar_count", (forward, backward) == (m * once, m * (once + _again(shape))), evidence)


def _volume(shape: DecoderShape, axes: Axes, tokens: int, activations: tuple[Transfer, ...]) -> Claim:
    sums, P, e, m = Totals.of(activations), axes[TENSOR], element_bytes(activations), shape.accumulation
    block = tp_volume_bytes(tokens, shape.embed, e, ranks=P, blocks=1)
    layers, again = BLOCKS * shape.layers * block, _again(shape) * block / 2
    evidence = (
        f"a device sends {counted(sums.wire_bytes)} B of activations for {m} micro-batches; of one {shape.layers} "
        "times 8(P-1)/P b s d e is"
    )
    evidence += (
        f" {counted(layers)} B at P={P}, b s={tokens}, d={shape.embed}, e={e}; embedding and head add "
        f"{counted(block)} B, recomputation {counted(again)} B"
    )
    return decided("ch15.tp_allreduce_volume", sums.wire_bytes == m * (layers + block + again), evidence)


def _payload(axes: Axes, activations: tuple[Transfer, ...], payload: int) -> Claim:
    forward, backward = (
        Totals.of(t for t in activations if t.phase == phase).payload_bytes for phase in (Phase.FORWARD, Phase.BACKWARD)
    )
    evidence = (
        f"{counted(forward)} B are summed forward where rows leave, {counted(backward)} B backward where columns "
        "were entered"
    )
    return decided(
        "ch15.tp_backward_table",
        0 < forward <= backward,
        f"{evidence}; each b s d e = {counted(payload)} B over {axes[TENSOR]} ranks",
    )


def _vocabulary(
    shape: DecoderShape, activations: tuple[Transfer, ...], one_a_token: tuple[Transfer, ...]
) -> tuple[Claim, ...]:
    """The largest logit, the sum of exponentials and the target's logit are one number a token each."""
    ends = [
        ("embedding", Phase.FORWARD),
        ("embedding", Phase.BACKWARD),
        ("head", Phase.FORWARD),
        ("head", Phase.BACKWARD),
    ]
    looked_up, scattered, left, entered = (
        Totals.of(t for t in activations if (t.scope, t.phase) == end).executions for end in ends
    )
    numbers, m = Totals.of(one_a_token).executions, shape.accumulation
    lookup = (
        f"where the embedding leaves {looked_up} sums of b s d forward, {scattered} backward, for {m} micro-batches"
    )
    loss = (
        f"{numbers} sums of one number a token, and of b s d {left} forward and {entered} backward at the head, "
        f"for {m} micro-batches"
    )
    return decided("A18", (looked_up, scattered) == (m, 0), lookup), decided(
        "A19", (numbers, left, entered) == (3 * m, 0, m), loss
    )


EXPERIMENT = decoder_experiment(
    name="ch15_tensor_parallel",
    chapter=15,
    question="How often does tensor parallelism all-reduce, where, and how many bytes?",
    strategy=DATA_PARALLEL | TENSOR_PARALLEL,
    axes=with_tensor_inside_host(DATA),
    claims=claims,
    real_size={},
    tour=TimedSteps(every_size=True, every_policy=True),
    everyday=(("explicit", "cpu:8"), ("declared", "gpu:h100:2x8"), ("explicit", "tpu:v5p:2x2x4")),
)
