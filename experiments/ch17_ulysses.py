"""Chapter 17: what does exchanging tokens for heads cost, and when is a ring cheaper?"""

from math import isclose

from lab.book.context import (
    kv_head_copies,
    ring_to_ulysses,
    ring_wire_bytes,
    ulysses_wire_bytes,
)
from lab.core.ledger import Ledger, Phase
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
from lab.harness.evidence import counted, element_bytes
from lab.harness.experiment import TimedSteps, with_inner_axis
from lab.meshes.axes import CONTEXT, DATA, Axes
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.context_parallel import ULYSSES
from lab.programs.strategies.data_parallel import DATA_PARALLEL


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    P, tokens = axes[CONTEXT], group_tokens(shape, axes)
    if P == 1 or shape.is_latent:  # The book's keys are as wide as values.
        return ()
    exchanges, sent, e = each_layer(shape, moved_in_core(measured, Phase.FORWARD))
    copies = kv_head_copies(shape.kv_heads, P)
    book = ulysses_wire_bytes(tokens, shape.heads * shape.head_dim, copies * kv_dim(shape), e, P)
    evidence = f"{exchanges:g} all-to-alls send {counted(int(sent))} B a rank, layer and forward pass at P={P}"
    compared = (
        f"{evidence}; (P-1)/P^2 (2A+2K) h b S e is {counted(book)} "
        f"B{f' with {copies} copies of each key-value head' if copies > 1 else ''}"
    )
    ring = ring_wire_bytes(tokens, kv_dim(shape), e, P)
    ratio, formula = float(ring) / sent, float(ring_to_ulysses(P, 1 / shape.queries))
    times = (
        f"{evidence}, a ring {counted(ring)} B, {ratio:.4g} times as much; P g/(1+g) is {formula:.4g} with "
        f"g=1/{shape.queries}"
    )
    decisions = decided("ch17.ulysses_volume", sent == book, compared), *_kept(shape, axes, measured, copies)
    if copies > 1:
        return *decisions, calculated("ch17.ring_vs_ulysses", f"{times}, which knows no copies")
    return *decisions, decided("ch17.ring_vs_ulysses", isclose(ratio, formula), times)


def _kept(shape: DecoderShape, axes: Axes, measured: Ledger, copies: int) -> tuple[Claim, Claim]:
    """An all-to-all gives as much as it takes: what is left of keys after it is the least that it carries."""
    keys = min(moved_in_core(measured, Phase.FORWARD), key=lambda t: t.payload_bytes)
    whole = group_tokens(shape, axes) * copies * kv_dim(shape) * element_bytes([keys])
    evidence = (
        f"a rank's keys take {counted(keys.payload_bytes)} B after the exchange, those of the sequence "
        f"{counted(whole)} B"
    )
    return (
        decided(
            "ch17.memory_table",
            keys.payload_bytes * axes[CONTEXT] == whole,
            evidence,
            statement="Ulysses leaves S H / P of keys on a rank",
        ),
        decided(
            "ch17.memory_table",
            keys.payload_bytes == whole,
            evidence,
            statement="Ulysses leaves S H of keys on a rank",
            disputed="4-5:D-36",
        ),
    )


EXPERIMENT = decoder_experiment(
    name="ch17_ulysses",
    chapter=17,
    question="What does exchanging tokens for heads cost, and when is a ring cheaper?",
    strategy=DATA_PARALLEL | ULYSSES,
    axes=with_inner_axis(DATA, CONTEXT),
    claims=claims,
    targets=TARGETS,
    more_targets=MORE_TARGETS,
    more_styles=("typed",),
    tour=TimedSteps(),
)
