"""Transfers as theory writes them: kind, scope, axes, payload, executions. Formulas are the book's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

from lab.book.parallelism import activation_bytes, gradient_bytes
from lab.core.ledger import Kind, Phase, Provenance, Transfer
from lab.meshes.axes import Axes
from lab.meshes.layouts import Layout
from lab.programs.models.collective_hooks import Dims
from lab.programs.models.shape import OFFLOAD, DecoderShape
from lab.programs.strategies.strategy import Strategy, Terms

FORWARD, BACKWARD, UPDATE = Phase
RECOMPUTING = ("dots", "names", "full", OFFLOAD)
"""Policies under which the backward pass runs a layer's products with weights, or what feeds them, again."""
SUMMING_AGAIN = ("dots", "full", OFFLOAD)
"""Those under which it sums again what attention adds to the stream."""
STACKS = ("dense", "layers")
"""Names of the stacks that a decoder can have."""


@dataclass(frozen=True)
class Weight:
    """One weight of the formula: where it is used, its dims, and how often a pass uses it."""

    scope: str
    dims: Dims
    per_pass: int

    @property
    def is_matrix(self) -> bool:
        return len(self.dims) > 1

    @property
    def stack(self) -> str:
        """Of the layers that it is of."""
        return self.scope.partition("/")[0]

    @property
    def in_layers(self) -> bool:
        return self.stack in STACKS


def weights(shape: DecoderShape) -> tuple[Weight, ...]:
    """All weights of a decoder."""
    ends: dict[str, Dims] = {"embedding": ("vocab", "embed"), "norm": ("norm",)}
    if not shape.tied:
        ends["head"] = ("embed", "vocab")
    if shape.mtp:
        ends |= dict.fromkeys(("join/stream_norm", "join/token_norm", "join/norm"), ("norm",))
        ends["join/projection"] = ("joined", "embed")
    in_layers = (
        Weight(f"{name}/{scope}", dims, stack.layers)
        for name, stack in shape.stacks.items()
        for scope, dims in _of_layer(stack).items()
    )
    return (*in_layers, *(Weight(scope, dims, 1) for scope, dims in ends.items()))


def _of_layer(shape: DecoderShape) -> dict[str, Dims]:
    """By scope, the weights of a layer."""
    heads, kv = ("kv_heads", "queries"), ("kv_heads", "head_dim")
    attention: dict[str, Dims] = {
        "attention/query": ("embed", *heads, "head_dim"),
        "attention/key": ("embed", *kv),
        "attention/value": ("embed", *kv),
    }
    if shape.is_latent:
        attention = {
            "attention/query_latent": ("embed", "query_latent"),
            "attention/query_latent_norm": ("query_latent_norm",),
            "attention/kv_latent": ("embed", "kv_latent"),
            "attention/kv_latent_norm": ("kv_latent_norm",),
            "attention/rotary_key": ("embed", "rope_dim"),
            "attention/query": ("query_rank", *heads, "score_dim"),
            "attention/key": ("kv_rank", *kv),
            "attention/value": ("kv_rank", *kv),
        }
    *each, embed = ("experts", "expert_embed") if shape.experts else ("embed",)
    layer: dict[str, Dims] = {
        "attention/norm": ("norm",),
        **attention,
        "attention/out": (*heads, "head_dim", "embed"),
        "mlp/norm": ("norm",),
        **({"mlp/gate": (*each, embed, "mlp")} if shape.is_gated else {}),
        "mlp/up": (*each, embed, "mlp"),
        "mlp/down": (*each, "mlp", embed),
    }
    if shape.normed_heads:
        layer |= {"attention/query_norm": ("head_norm",), "attention/key_norm": ("head_norm",)}
    if shape.experts:
        layer["mlp/router"] = ("embed", "choices")
    if shape.biases:
        layer["mlp/bias"] = ("bias",)
    if shape.experts and shape.shared:
        layer |= {
            **({"mlp/shared/gate": ("embed", "shared_mlp")} if shape.is_gated else {}),
            "mlp/shared/up": ("embed", "shared_mlp"),
            "mlp/shared/down": ("shared_mlp", "embed"),
        }
    return layer


def elements(weight: Weight, layout: Layout, shape: DecoderShape, axes: Axes) -> int:
    """Of one layer's weight on one device."""
    return prod(local_dims(weight, layout, shape, axes))


def local_dims(weight: Weight, layout: Layout, shape: DecoderShape, axes: Axes) -> tuple[int, ...]:
    """Sizes of the dims of one layer's weight on one device."""
    stack = shape.stacks.get(weight.stack, shape)
    return tuple(layout.local_shape(weight.dims, [getattr(stack, dim) for dim in weight.dims], axes))


def in_each_stack(terms: Terms, strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """What `terms` say of a stack of layers, of each that the shape has under its own name."""
    return tuple(_renamed(each, name) for name, stack in shape.stacks.items() for each in terms(strategy, stack, axes))


def _renamed(each: Transfer, stack: str) -> Transfer:
    scope, *after = (stack + scope.removeprefix("layers") for scope in (each.scope, *each.provenance.named_after))
    return replace(each, scope=scope, provenance=replace(each.provenance, named_after=tuple(after)))


def tokens_on_device(strategy: Strategy, shape: DecoderShape, axes: Axes) -> int:
    """Of one micro-batch, inside a block."""
    return prod(strategy.inside.local_shape(("batch", "length"), (shape.micro_batch, shape.length), axes))


def stream_bytes(strategy: Strategy, shape: DecoderShape, axes: Axes, width: int = 0) -> int:
    """Activations of one micro-batch at the entrance of a block, in the dtype of the products; `width` numbers of a
    token where it is not those of the stream."""
    return activation_bytes(tokens_on_device(strategy, shape, axes), width or shape.embed, shape.bytes_per_element)


def transfer(
    kind: Kind,
    scope: str,
    over: Iterable[str],
    payload_bytes: int,
    phase: Phase | None,
    dtype: str,
    executions: int,
    axes: Axes,
    provenance: Provenance = Provenance(),
) -> Transfer:
    spanned = axes.ordered(over)
    group = prod(axes[axis] for axis in spanned)
    return Transfer(
        kind=kind,
        axes=spanned,
        group_size=group,
        groups=axes.size // group,
        executions=executions,
        dtype=dtype,
        payload_bytes=payload_bytes,
        phase=phase,
        scope=scope,
        provenance=provenance,
    )


def sum_of_loss(strategy: Strategy, shape: DecoderShape, axes: Axes) -> Transfer:
    """The one number that every device needs of all: 4 bytes of float32."""
    is_late = shape.accumulation > 1 or strategy.sums_late
    provenance = Provenance(
        micro_batches=shape.accumulation,
        reduced_separately_over=_apart(strategy.inside, axes, strategy.token_axes(axes)),
        made_in=FORWARD if is_late else None,
    )
    phase = UPDATE if is_late else FORWARD
    return transfer(Kind.ALL_REDUCE, "loss", strategy.token_axes(axes), 4, phase, "f32", 1, axes, provenance)


def _apart(
    split: Layout, axes: Axes, over: Iterable[str], dims: Dims = ("batch", "length")
) -> tuple[tuple[str, ...], ...]:
    """Of the axes of a sum over tokens those that split batches and those that split sequences, where there are both;
    or of a sum over other dims those of each."""
    groups = (axes.ordered(set(over) & set(split.axes_of(dim, axes.names))) for dim in dims)
    found = tuple(group for group in groups if group)
    return found if len(found) > 1 else ()


def sums_of_copies(strategy: Strategy, shape: DecoderShape, axes: Axes, over: str) -> Iterator[Transfer]:
    """Of every weight that ranks along `over` use copies of, the sum of its gradients, on what a device keeps of it.

    Each layer's in the backward pass; the stack's once, after it, where gradients are first added up over micro-batches
    (in float32) or belong to the ranks' own copies (ZeRO-1 and 2). What is scattered over some of the axes is summed
    over the others as its parts.
    """
    is_late = shape.accumulation > 1 or strategy.sums_late
    for weight in weights(shape):
        copies = axes.ordered(strategy.summed_apart(weight.dims) - strategy.exchanged_over(weight.dims))
        if over not in copies:
            continue
        is_of_master = strategy.is_anchored and strategy.splits_further(weight.dims)
        dtype, e = ("f32", 4) if weight.dims == ("bias",) or is_of_master else stack_dtype(shape)
        kept = gradient_bytes(elements(weight, strategy.master, shape, axes), e)
        payload, executions = (kept * weight.per_pass, 1) if is_late else (kept, weight.per_pass)
        stacked = (weight.per_pass,) if is_late and weight.per_pass > 1 else ()
        provenance = replace(
            of_gradient(weight, strategy, shape, axes, is_late),
            dims=stacked + local_dims(weight, strategy.master, shape, axes),
        )
        if _split_in_use(weight, strategy, axes):
            # The scatter before it stands for all uses.
            provenance = replace(provenance, uses=1)
        phase = UPDATE if is_late else BACKWARD
        yield transfer(Kind.ALL_REDUCE, weight.scope, copies, payload, phase, dtype, executions, axes, provenance)


def of_gradient(weight: Weight, strategy: Strategy, shape: DecoderShape, axes: Axes, is_late: bool) -> Provenance:
    """How a gradient comes about: after the backward passes a stack of all layers', inside them one layer's of one
    micro-batch."""
    of_heads = weight.dims == ("head_norm",)
    split = strategy.inside if of_heads else strategy.inside | strategy.residual
    summed = ("batch", "length", *(("kv_heads",) if of_heads else ()))
    copies = strategy.copies(weight.dims)
    all_axes = _summed_over(weight, strategy, axes)
    uses = 2 if shape.tied and weight.scope == "embedding" else 1
    return Provenance(
        uses=uses,
        named_after=("head",) if uses > 1 else _named_after(weight),
        stacked_layers=weight.per_pass if is_late else 1,
        iterations=1 if is_late else weight.per_pass,
        micro_batches=shape.accumulation if is_late else 1,
        repeats=1 if is_late else shape.accumulation,
        product="f32" if weight.dims == ("bias",) else shape.dtype,
        replicated_first=weight.scope == "embedding" and strategy.splits_further(weight.dims),
        sum_over=all_axes if copies and all_axes != axes.ordered(copies) else (),
        sibling_reduction_axes=_sums_beside(weight, strategy, shape, axes),
        reduced_separately_over=_apart(split, axes, all_axes, summed),
        is_reshaped="kv_heads" in weight.dims,
        is_matrix_product=weight.is_matrix,
        made_in=BACKWARD if is_late else None,
    )


MADE_BESIDE = {"rotary_key": "key", "bias": "balance"}
"""By weight: where its gradient is made. What all heads' keys sum to is, for the one that they share, where they are
rotated; what moves a bias is what keeps experts in balance."""


def _named_after(weight: Weight) -> tuple[str, ...]:
    block, _, name = weight.scope.rpartition("/")
    return (f"{block}/{MADE_BESIDE[name]}",) if name in MADE_BESIDE else ()


def _summed_over(weight: Weight, strategy: Strategy, axes: Axes) -> tuple[str, ...]:
    """A weight's gradient, until it is what a device keeps."""
    return axes.ordered(strategy.copies(weight.dims) | _split_in_use(weight, strategy, axes))


def _sums_beside(weight: Weight, strategy: Strategy, shape: DecoderShape, axes: Axes) -> frozenset[tuple[str, ...]]:
    """Axes of every sum in the computation that makes a gradient: of the gradients in the loop over layers, or of those
    outside it.

    The squares of all gradients are summed beside the latter, where no loop over micro-batches holds these.
    """
    beside = {
        _summed_over(other, strategy, axes)
        for other in weights(shape)
        if (other.stack == weight.stack if weight.in_layers else not other.in_layers)
    }
    is_last = not weight.in_layers and shape.accumulation == 1
    return frozenset(beside | ({sharding_axes(strategy, shape, axes)} if is_last else set()))


def _split_in_use(weight: Weight, strategy: Strategy, axes: Axes) -> set[str]:
    """Axes whose parts of a stored weight are gathered for use, and its gradients scattered."""
    return {
        axis
        for dim in weight.dims
        for axis in strategy.weights.axes_of(dim, axes.names)
        if axis not in strategy.inside.axes_of(dim, axes.names)
    }


def stack_dtype(shape: DecoderShape) -> tuple[str, int]:
    """Of gradients when they are reduced after the backward pass: added up over micro-batches they are float32."""
    return (shape.dtype, shape.bytes_per_element) if shape.accumulation == 1 else ("f32", 4)


def norm_of_gradients(strategy: Strategy, shape: DecoderShape, axes: Axes) -> Transfer:
    """The sum of squares over the ranks that hold parts: 4 bytes of float32."""
    return transfer(Kind.ALL_REDUCE, "clip", sharding_axes(strategy, shape, axes), 4, UPDATE, "f32", 1, axes)


def sharding_axes(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[str, ...]:
    """Axes along which some weight's master is split."""
    return axes.ordered(
        axis for weight in weights(shape) for dim in weight.dims for axis in strategy.master.axes_of(dim, axes.names)
    )
