"""Chapter 17: do ranks in zigzag order share causal attention evenly, and what does skipping alone save?"""

import numpy as np

from lab.attention.order import CONTIGUOUS, ZIGZAG, Order
from lab.book.context import ring_wire_bytes, skipped_share, zigzag_gain
from lab.core.ledger import Ledger, Phase
from lab.harness.claim import Claim, calculated, decided
from lab.harness.decoder.context import (
    MORE_TARGETS,
    TARGETS,
    blocks_of_products,
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
from lab.programs.strategies.context_parallel import ZIGZAG_RING
from lab.programs.strategies.data_parallel import DATA_PARALLEL

STRATEGY = DATA_PARALLEL | ZIGZAG_RING
SKIPPED = "skipping what is masked makes contiguous chunks 2P/(P+1) times as fast"


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if axes[CONTEXT] == 1 or shape.is_latent:  # The book's keys are as wide as values.
        return ()
    return (_products(shape, axes, measured), *_shares(shape, axes), _volume(shape, axes, measured))


def _products(shape: DecoderShape, axes: Axes, measured: Ledger) -> Claim:
    """Half a block at each of P - 1 hops, and three quarters of the own one, of which a mask hides a third."""
    P = axes[CONTEXT]
    found, book = blocks_of_products(shape, axes, measured), (P - 1) / 2 + 3 / 4
    wanted = (
        f"half a block at each of {P - 1} hops and 3/4 of the own one are {book:g}, in contiguous order it would be {P}"
    )
    evidence = f"every device multiplies {found:g} blocks a layer and pass; {wanted}"
    statement = "every rank has half a block to work on at every hop"
    if shape.remat != "none":
        return calculated(
            "ch17.causal_skip", f"{evidence}; some are shared at remat={shape.remat}", statement=statement
        )
    return decided("ch17.causal_skip", found == book, evidence, statement=statement)


def _shares(shape: DecoderShape, axes: Axes) -> tuple[Claim, Claim]:
    """Counted from the mask, token by token."""
    P = axes[CONTEXT]
    contiguous, zigzag = (blocks_in_sight(order, shape, P) for order in (CONTIGUOUS, ZIGZAG))
    last, skipping = float(contiguous.max()), float(1 / (1 - skipped_share(P)))
    gain = last / float(zigzag.max())
    evenly = f"{zigzag.max():g} blocks on every rank in zigzag order, at most {last:g} in contiguous: {gain:.4g} times"
    alone = (
        f"ranks have {contiguous.min():g} to {last:g} of {P} blocks in sight: the last gains {P / last:.3g} times, "
        f"not {skipping:.3g}"
    )
    return (
        decided("ch17.causal_skip", P / last == skipping, alone, statement=SKIPPED, disputed="4-5:D-38"),
        decided("ch17.causal_skip", gain == zigzag_gain(P) and set(zigzag) == {P / 2}, evenly),
    )


def blocks_in_sight(order: Order, shape: DecoderShape, ranks: int) -> np.ndarray:
    """[ranks], of (S / P)^2 each, a token's own key counted half."""
    at_PS = np.asarray(order.whole(shape.length, ranks)).reshape(ranks, -1)
    return np.sum(at_PS + 0.5, axis=1) / (shape.length // ranks) ** 2


def _volume(shape: DecoderShape, axes: Axes, measured: Ledger) -> Claim:
    _, sent, e = each_layer(shape, moved_in_core(measured, Phase.FORWARD))
    book = ring_wire_bytes(group_tokens(shape, axes), kv_dim(shape), e, axes[CONTEXT])
    evidence = (
        f"{counted(int(sent))} B a rank, layer and forward pass; a ring in contiguous order sends {counted(book)} B"
    )
    return decided(
        "ch17.ring_volume", sent == book, evidence, statement="an order that shares work evenly sends no more"
    )


def zigzag(shape: DecoderShape, axes: Axes) -> list[int]:
    """As the loader of a training would order tokens."""
    return np.asarray(ZIGZAG.whole(shape.length, axes[CONTEXT])).tolist()


EXPERIMENT = decoder_experiment(
    name="ch17_zigzag",
    chapter=17,
    question=(
        "Do ranks in zigzag order share causal attention evenly, and what does skipping masked blocks alone save?"
    ),
    strategy=STRATEGY,
    axes=with_inner_axis(DATA, CONTEXT),
    claims=claims,
    parameters=DecoderShape(remat="none"),
    targets=TARGETS,
    more_targets=MORE_TARGETS,
    tour=TimedSteps(),
    order=zigzag,
)
