"""Chapter 17: with sliding-window attention, how far around the ring must keys travel?"""

from dataclasses import replace

from lab.book.architecture import window_hops
from lab.core.ledger import Ledger, Phase
from lab.harness.claim import Claim, calculated, decided
from lab.harness.decoder.context import (
    MORE_TARGETS,
    TARGETS,
    blocks_of_products,
    each_layer,
    moved_in_core,
)
from lab.harness.decoder.step import SMALL, decoder_experiment
from lab.harness.experiment import with_inner_axis
from lab.meshes.axes import CONTEXT, DATA, Axes
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.context_parallel import RING
from lab.programs.strategies.data_parallel import DATA_PARALLEL


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    P = axes[CONTEXT]
    if P == 1 or not shape.window:
        return ()
    messages, _, _ = each_layer(shape, moved_in_core(measured, Phase.FORWARD))
    before = shape.window - 1
    book, found = int(window_hops(before, shape.length, P)), blocks_of_products(shape, axes, measured)
    came = messages / 2
    seen = (
        f"{messages:g} messages a rank, layer and forward pass for a window of {before} tokens before one's own "
        f"and chunks of {shape.length // P}"
    )
    evidence = f"{seen}; ceil(W / (S/P)) = {book} hops of keys and values; all round it would be {2 * (P - 1)} messages"
    blocks = f"a device multiplies {found:g} of {P} blocks; {came:g} came, and one is its own"
    return (
        decided(
            "ch31a.swa",
            messages == 2 * book,
            evidence,
            statement="context parallelism needs ceil(W / (S / c)) neighbours",
        ),
        decided("ch31a.swa", found == came + 1, blocks, statement="scores are O(S W)")
        if shape.remat == "none"
        else calculated("ch31a.swa", blocks),
    )


EXPERIMENT = decoder_experiment(
    name="ch17_window",
    chapter=17,
    question="With sliding-window attention, how far around the ring must keys travel?",
    strategy=DATA_PARALLEL | RING,
    axes=with_inner_axis(DATA, CONTEXT),
    claims=claims,
    parameters=DecoderShape(window=100, remat="none"),
    targets=TARGETS,
    more_targets=MORE_TARGETS,
    small=replace(SMALL, window=12),
)
