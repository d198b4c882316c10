"""FLOPs of what one device multiplies for one micro-batch, in a layer and at the ends of the model: pass by pass, and
by cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from fractions import Fraction
from math import prod

from lab.attention.tiles import tile_size
from lab.book.architecture import window_hops
from lab.book.deepseek import latent_flops_per_key
from lab.book.experts import capacity
from lab.programs.composed.configuration import Configuration
from lab.programs.models.shape import DecoderShape
from lab.programs.pipelines import halves
from lab.programs.strategies.sequence_parallel import OF_OWN_TOKENS
from lab.programs.strategies.terms import RECOMPUTING, Weight, elements, weights


class Cause(StrEnum):
    """What a device computes for."""

    TRAINING = "6 N D of the parameters that a token visits"
    NOT_MULTIPLIED = "parameters that are looked up, added or scale"
    PREDICTIONS = "the head, for each further prediction"
    SHARE = "layers and ends, more or fewer than the mean stage's"
    WEIGHTS = "products with weights"
    COPIES = "products with weights that all ranks of a tensor group do alike"
    SLOTS = "slots of experts, more or fewer than tokens choose"
    ROWS = "rows that come to no expert, and rows times experts that they do not visit"
    ATTENTION = "attention to what a query sees"
    MASKED = "attention to what the mask hides"
    SUMS = "outputs times their gradients, experts' results times their weights"
    WEIGHTS_AGAIN = "products with weights recomputed"
    ATTENTION_AGAIN = "attention recomputed"
    STAGE_AGAIN = "a stage's forward, again before its backward"
    LAYERS_IN_VAIN = "layers that a shorter chunk does not have, in vain"
    JOBS_IN_VAIN = "jobs of other stages, in vain"


Work = Mapping[Cause, Fraction]
LAST = "mlp/down", "shared/down"
"""Products of a layer whose results the residual stream alone takes."""


def total(*parts: tuple[int, Work]) -> Work:
    """Each so many times."""
    found: dict[Cause, Fraction] = {}
    for times, work in parts:
        for cause, flops in work.items():
            found[cause] = found.get(cause, Fraction(0)) + times * flops
    return found


def size(work: Work) -> Fraction:
    return sum(work.values(), Fraction(0))


@dataclass(frozen=True)
class Passes:
    """
    Attributes:
      forward, backward: with what a backward pass by tiles makes again in any case.
      again: what the backward pass recomputes besides.
      put_off: of `backward`, what a split one leaves to its second half.
    """

    forward: Work
    backward: Work
    again: Work
    put_off: Work = field(default_factory=dict)

    @property
    def all(self) -> Work:
        return total((1, self.forward), (1, self.backward), (1, self.again))


NO_PASSES = Passes({}, {}, {})


def several(*parts: tuple[int, Passes]) -> Passes:
    """Each so many times."""
    return Passes(*(total(*((times, getattr(one, each.name)) for times, one in parts)) for each in fields(Passes)))


def of_layer(configuration: Configuration, stack: DecoderShape) -> Passes:
    """Of one layer of a stack whose layers are alike."""
    found = [_of_weight(configuration, stack, weight) for weight in weights(stack) if weight.in_layers]
    return several(*((1, each) for each in (*found, _attention(configuration, stack), _weighing(configuration, stack))))


def of_ends(configuration: Configuration, model: DecoderShape) -> Passes:
    """What the last layer is followed by: the head, and what joins streams for a further prediction."""
    kept = [weight for weight in weights(model) if not weight.in_layers and weight.stack != "mtp"]
    head = next(weight for weight in kept if weight.scope == ("embedding" if model.tied else "head"))
    joins = [weight for weight in kept if weight.dims[0] == "joined"]
    one, further = (_of_weight(configuration, model, head, cause) for cause in (Cause.WEIGHTS, Cause.PREDICTIONS))
    return several((1, one), (model.mtp, further), *((1, _of_weight(configuration, model, each)) for each in joins))


def sequences(configuration: Configuration, shape: DecoderShape) -> int:
    """Of one device."""
    return configuration.strategy.inside.local_shape(("batch",), (shape.micro_batch,), configuration.axes)[0]


def _tokens(configuration: Configuration, shape: DecoderShape, are_between_blocks: bool = False) -> int:
    layout = configuration.strategy.residual if are_between_blocks else configuration.strategy.inside
    return prod(layout.local_shape(("batch", "length"), (shape.micro_batch, shape.length), configuration.axes))


def _of_weight(
    configuration: Configuration, shape: DecoderShape, weight: Weight, cause: Cause = Cause.WEIGHTS
) -> Passes:
    """A product forward and two backward."""
    if not weight.is_matrix:
        return NO_PASSES
    here = elements(weight, configuration.strategy.inside, shape, configuration.axes)
    tokens = _tokens(configuration, shape)
    useful, rest = Fraction(2 * tokens * here), (Cause.COPIES, Fraction(0))
    if {*weight.dims} & {*OF_OWN_TOKENS}:
        done = 2 * _tokens(configuration, shape, are_between_blocks=True) * here
        useful = Fraction(2 * tokens * here, configuration.tensor)
        rest = Cause.COPIES, done - useful
    elif "experts" in weight.dims:
        ranks = configuration.expert
        useful = Fraction(2 * tokens * shape.top_k * here * ranks, shape.experts)
        # Without slots there are as many rows as could come, each multiplied with all experts of the device.
        rows = tokens * shape.top_k if shape.is_dropless else _slots(configuration, shape)
        rest = Cause.ROWS if shape.is_dropless else Cause.SLOTS, 2 * rows * ranks * here - useful
    forward = {cause: useful, rest[0]: rest[1]}
    return Passes(
        forward,
        total((2, forward)),
        {Cause.WEIGHTS_AGAIN: size(forward) * _runs_again(weight, configuration, shape)},
        forward if _is_put_off(weight, shape) else {},
    )


def _slots(configuration: Configuration, shape: DecoderShape) -> int:
    """Of each expert, for the sequences of a device, or for its parts of them."""
    length = configuration.strategy.inside.local_shape(("length",), (shape.length,), configuration.axes)[0]
    return sequences(configuration, shape) * int(capacity(length, shape.experts, shape.top_k, shape.capacity_factor))


def _runs_again(weight: Weight, configuration: Configuration, shape: DecoderShape) -> bool:
    """Not what only the residual stream takes. What experts give is needed again, to weigh it. A policy that keeps
    products keeps none with a batch dim, as experts are, and none of which a split backward keeps the operands."""
    if not weight.in_layers or shape.remat not in RECOMPUTING:
        return False
    if "experts" in weight.dims:
        return True
    is_tapped = configuration.schedule.startswith("zb") and configuration.pipe > 1 and _is_put_off(weight, shape)
    if shape.remat == "dots" and not is_tapped:
        return False
    last = (*LAST, "attention/out") if shape.remat == "names" else LAST
    return not weight.scope.endswith(last)


def _is_put_off(weight: Weight, shape: DecoderShape) -> bool:
    return weight.in_layers and weight.scope.rpartition("/")[2] in halves.matrices(shape)


def _weighing(configuration: Configuration, stack: DecoderShape) -> Passes:
    """Experts' results are summed by their weights, in a product where one sum has all of a token's."""
    if not stack.experts or stack.nodes > 1 or stack.router == "expert_choice":
        return NO_PASSES
    forward = {Cause.SUMS: Fraction(2 * _tokens(configuration, stack) * stack.top_k * stack.embed)}
    return Passes(forward, total((2, forward)), {})


def _attention(configuration: Configuration, stack: DecoderShape) -> Passes:
    """Scores, and sums of values that they weigh."""
    seen, met, own = _meetings(configuration, stack)
    heads = _heads(configuration, stack)
    times = sequences(configuration, stack)
    score, value = 2 * times * heads * stack.score_dim, 2 * times * heads * stack.head_dim
    both = times * latent_flops_per_key(heads, stack.head_dim, stack.rope_dim)
    forward = {Cause.ATTENTION: both * seen, Cause.MASKED: both * (met - seen)}
    by_tiles = configuration.attention == "tiles" or configuration.context > 1
    backward = total((2, forward))
    if by_tiles:
        rows = Fraction(value * stack.length // (1 if configuration.attention == "ulysses" else configuration.context))
        backward = total((1, backward), (1, {Cause.ATTENTION_AGAIN: Fraction(score * met), Cause.SUMS: rows}))
    again = {"none": 0, "selective": both if by_tiles else score}.get(stack.remat, both) * met
    if by_tiles and again:
        again -= score * own
    return Passes(forward, backward, {Cause.ATTENTION_AGAIN: Fraction(again)})


def _heads(configuration: Configuration, stack: DecoderShape) -> int:
    """Of queries, that meet keys on one device."""
    kv_heads = configuration.strategy.inside.local_shape(("kv_heads",), (stack.kv_heads,), configuration.axes)[0]
    exchanged = configuration.context if configuration.attention == "ulysses" else 1
    return kv_heads * stack.queries // exchanged


def _meetings(configuration: Configuration, stack: DecoderShape) -> tuple[Fraction, int, int]:
    """Pairs of a query and a key, of one sequence on one device and for one head: those that the mask lets see each
    other, by the mean of ranks; those that are computed; and those whose scores XLA makes once for a forward pass that
    is run again and for its backward pass, the tile being the same and in no loop."""
    S, P = stack.length, configuration.context
    window = min(stack.window or S, S)
    seen = window * (window + 1) // 2 + (S - window) * window if stack.causal else S * S
    kind = configuration.attention if P > 1 else "whole"
    if kind in ("whole", "ulysses"):
        return Fraction(seen), S * S, S * S * (tile_size(S) == S)
    mean = Fraction(seen, P)
    if kind == "gathered":
        return mean, S * S // P, S * S // P * (tile_size(S) == S)
    pieces, own = (2, 3) if kind == "zigzag" else (1, 1)
    hops = int(window_hops(stack.window - 1, S, P)) if stack.window else P - 1
    piece = S // P // pieces
    return mean, (own + pieces * hops) * piece**2, own * piece**2 * (tile_size(piece) == piece)
