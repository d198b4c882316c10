"""Chapter 17: what does ring attention send, and what does the backward pass, of which the book says nothing, send in
addition?"""

from fractions import Fraction

from lab.book.context import ring_training_wire_bytes, ring_wire_bytes
from lab.core.known import known
from lab.core.ledger import Ledger, Overlap, Phase
from lab.harness.claim import Claim, calculated, decided
from lab.harness.decoder.context import (
    MORE_TARGETS,
    TARGETS,
    each_layer,
    group_tokens,
    kv_dim,
    moved_in_core,
)
from lab.harness.decoder.step import decoder_experiment
from lab.harness.evidence import counted
from lab.harness.experiment import TimedSteps, with_inner_axis
from lab.meshes.axes import CONTEXT, DATA, Axes
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.context_parallel import RING
from lab.programs.strategies.data_parallel import DATA_PARALLEL


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if axes[CONTEXT] == 1 or shape.window or shape.is_latent:  # The book's keys are as wide as values.
        return ()
    return (_forward(shape, axes, measured), _training(shape, axes, measured), _overlap(measured))


def _forward(shape: DecoderShape, axes: Axes, measured: Ledger) -> Claim:
    messages, sent, e = each_layer(shape, moved_in_core(measured, Phase.FORWARD))
    book = ring_wire_bytes(group_tokens(shape, axes), kv_dim(shape), e, axes[CONTEXT])
    evidence = (
        f"{messages:g} messages of {counted(int(sent))} B a rank, layer and forward pass; 2(P-1)/P b S K h e is "
        f"{counted(book)} B at P={axes[CONTEXT]}"
    )
    return decided("ch17.ring_volume", (messages, Fraction(sent)) == (2 * (axes[CONTEXT] - 1), book), evidence)


def _training(shape: DecoderShape, axes: Axes, measured: Ledger) -> Claim:
    """With the forward pass that recomputation repeats; gradients are float32 on their way, but for the hop that takes
    them home."""
    P, again = axes[CONTEXT], 0 if shape.remat == "none" else 2 * (axes[CONTEXT] - 1)
    messages, sent, _ = each_layer(shape, moved_in_core(measured))
    _, forward, e = each_layer(shape, moved_in_core(measured, Phase.FORWARD))
    book = ring_training_wire_bytes(group_tokens(shape, axes), kv_dim(shape), e, P, travelling_bytes_per_element=4) + (
        forward if again else 0
    )
    wanted = (
        f"6P-4, and {again} of recomputation, are {6 * P - 4 + again}, and {counted(int(book))} B with gradients "
        "in float32 but for their last hop"
    )
    evidence = f"{messages:g} messages of {counted(int(sent))} B a rank and layer; {wanted}"
    is_so = (messages, sent) == (6 * P - 4 + again, book)
    return decided(
        "ch17.ring_volume", is_so, evidence, statement="keys and values again and their gradients home: 6P-4 messages"
    )


def _overlap(measured: Ledger) -> Claim:
    rows = moved_in_core(measured)
    begun = sum(known(t.executions) for t in rows if t.overlap == Overlap.ASYNC)
    sends = (
        f"{begun} of {sum(known(t.executions) for t in rows)} messages are begun before the block at hand is worked on "
        "and awaited after it"
    )
    evidence = (
        f"{sends}; the compiled text does not say how long a block and a hop take, so not whether hops are hidden"
    )
    return calculated(
        "ch17.ring_overlap", evidence, statement="a ring that sends first leaves compilers room to hide its hops"
    )


EXPERIMENT = decoder_experiment(
    name="ch17_ring_attention",
    chapter=17,
    question="What does ring attention send, and what does its backward pass send in addition?",
    strategy=DATA_PARALLEL | RING,
    axes=with_inner_axis(DATA, CONTEXT),
    claims=claims,
    targets=TARGETS,
    more_targets=MORE_TARGETS,
    tour=TimedSteps(),
    everyday=(("explicit", "gpu:h100:2x8"),),
)
