"""Chapter 17 (and Llama 3's long contexts, Ch. 34): what do gathered keys and values cost compared with a ring?"""

from fractions import Fraction

from lab.book.context import ring_wire_bytes
from lab.core.ledger import Kind, Ledger, Phase, Transfer
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
from lab.harness.evidence import along, counted, of_elements
from lab.harness.experiment import with_inner_axis
from lab.meshes.axes import CONTEXT, DATA, Axes
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.context_parallel import GATHERED_KEYS
from lab.programs.strategies.data_parallel import DATA_PARALLEL


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    P, tokens = axes[CONTEXT], group_tokens(shape, axes)
    if P == 1 or shape.is_latent:  # The book's keys are as wide as values.
        return ()
    gathers, sent, e = each_layer(shape, moved_in_core(measured, Phase.FORWARD))
    ring, of_all_heads = (
        ring_wire_bytes(tokens, heads * shape.head_dim, e, P) for heads in (shape.kv_heads, shape.heads)
    )
    evidence = f"{gathers:g} gathers send {counted(int(sent))} B a rank, layer and forward pass"
    compared = f"{evidence}; a ring {counted(ring)} B in {2 * (P - 1)} messages"
    same = decided("ch34.cp", sent == ring, compared, statement="gathering keys and values sends what a ring sends")
    many = f"{evidence}, those of {shape.heads} heads would be {counted(of_all_heads)} B"
    grouped = decided(
        "ch34.cp",
        sent == of_all_heads,
        many,
        statement="keys and values have as many heads as queries",
        disputed="6-8:D-120",
    )
    return same, grouped, _backward(shape, axes, ring, measured)


def _backward(shape: DecoderShape, axes: Axes, ring: Fraction, measured: Ledger) -> Claim:
    _, backward, _ = each_layer(shape, moved_in_core(measured, Phase.BACKWARD))
    many, summed, _ = each_layer(shape, _sums(shape, axes, measured))
    asked = (1 if shape.remat == "none" else 2) * ring
    evidence = (
        f"backward a rank sends {counted(int(backward))} B a layer, {float(backward / ring):g} times the "
        f"{counted(ring)} of a ring forward, at remat={shape.remat}"
    )
    statement = "gradients are scattered as keys were gathered"
    # A sum over all ranks sends twice what scattering it would.
    if summed and backward + summed / 2 == asked:
        whole = (
            f"{many:g} all-reduces of such gradients are not scattered, another {counted(int(summed))} B, where the "
            "formula scatters them (T1 or T15)"
        )
        return calculated("ch34.cp", f"{evidence}; {whole}", statement=statement)
    return decided("ch34.cp", backward == asked, evidence, statement=statement)


def _sums(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Transfer, ...]:
    """What is summed of the size of gathered keys; told by size, since compilers join such sums, and what is joined has
    no name."""
    sums = along(measured, CONTEXT, kind=Kind.ALL_REDUCE, phase=Phase.BACKWARD)
    return of_elements(sums, group_tokens(shape, axes) * kv_dim(shape))


EXPERIMENT = decoder_experiment(
    name="ch17_gathered_keys",
    chapter=17,
    question="What do gathered keys and values cost compared with a ring?",
    strategy=DATA_PARALLEL | GATHERED_KEYS,
    axes=with_inner_axis(DATA, CONTEXT),
    claims=claims,
    targets=TARGETS,
    more_targets=MORE_TARGETS,
)
