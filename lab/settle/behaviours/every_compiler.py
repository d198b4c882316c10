"""What every XLA compiler does: its partitioner, and its passes over loops."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from lab.core.dtypes import DTYPES
from lab.core.known import known
from lab.core.ledger import Kind, Phase, Provenance, Transfer
from lab.meshes.platforms import Platform
from lab.settle.behaviours.behaviour import Behaviour, Certainty, CompilerNote, Context
from lab.settle.behaviours.tpu_slices import span_slices
from lab.settle.behaviours.transforms import in_products_dtype, is_gradient, over, where_made

X1 = CompilerNote(
    id="X1",
    platform=None,
    certainty=Certainty.OBSERVED,
    effect="an embedding lookup constrained directly to a sequence-parallel output moves tokens and activations over "
    "both axes",
    when="the lookup is declared and its output is constrained to the sequence-parallel sharding in one step",
    remedy="apply the constraint in two steps",
)

X2 = CompilerNote(
    id="X2",
    platform=None,
    certainty=Certainty.OBSERVED,
    effect="an embedding gradient constrained directly to its sharding is computed by gathering tokens and cotangents "
    "instead of by a reduction",
    when="the gradient of a lookup is constrained directly to the sharding of the table",
    remedy="constrain the gradient to be replicated first, then to its sharding",
)


def _summed_at_once(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """A scatter over some of the axes that a gradient is summed over: a sum over them all; what was to follow it:
    nothing."""
    axes = tuple(axis for axis in transfer.provenance.sum_over if context.mesh[axis] > 1)
    if context.style != "declared" or not axes or transfer.axes == axes or _is_split(transfer, context):
        return (transfer,)
    if transfer.kind is not Kind.REDUCE_SCATTER:
        return ()
    stated = transfer.provenance
    rest = Provenance(reduced_separately_over=stated.reduced_separately_over, named_after=stated.named_after)
    return (over(axes, replace(transfer, kind=Kind.ALL_REDUCE, provenance=rest), context),)


def _is_rest_of_the_sum(rest: Transfer, scatter: Transfer, behaviours: tuple[str, ...]) -> bool:
    """The scatter was made the sum over all axes, of as many elements as the rest was to sum of each part."""
    parts = known(scatter.group_size)
    of_parts, of_rest = (_elements(t) * known(t.executions) for t in (scatter, rest))
    return (
        "X3" in behaviours
        and scatter.kind is Kind.REDUCE_SCATTER
        and (scatter.scope, scatter.provenance.sum_over) == (rest.scope, rest.provenance.sum_over)
        and set(rest.axes or ()) == set(rest.provenance.sum_over) - set(scatter.axes or ())
        and of_parts * rest.provenance.repeats == of_rest * parts * scatter.provenance.repeats
    )


def _elements(transfer: Transfer) -> Fraction:
    _, bytes_per_element = DTYPES.get(transfer.dtype, ("", 1))
    return Fraction(transfer.payload_bytes, bytes_per_element)


SPLITS_FAR_APART = (0, 11)
"""Release of jax whose XLA splits sums of which no neighbours keep the parts, too."""


def _is_split(transfer: Transfer, context: Context) -> bool:
    """XLA's GPU compiler splits a sum over all devices whose part has one use, where another sum of the same
    computation has one of its two groups; its TPU compiler one whose parts lie inside slices."""
    provenance = transfer.provenance
    groups = (context.mesh, provenance.sum_over, transfer.axes or (), *provenance.sibling_reduction_axes)
    every, over, own, *siblings = (tuple(axis for axis in axes if context.mesh[axis] > 1) for axes in groups)
    rest = tuple(axis for axis in over if axis not in own)
    summed, scattered = (rest, own) if transfer.kind is Kind.REDUCE_SCATTER else (own, rest)
    is_seen = (*summed, *scattered) == every or context.jax >= SPLITS_FAR_APART
    return span_slices(summed, context) or (
        context.platform == Platform.GPU
        and over == every
        and is_seen
        and _has_one_use(transfer)
        and bool({summed, scattered} & set(siblings))
    )


def _has_one_use(gradient: Transfer) -> bool:
    """Outside loops one in float32 has two, the norm of all and the optimizer; a narrower one is widened for both."""
    return gradient.dtype != "f32" or gradient.provenance.iterations * gradient.provenance.stacked_layers > 1


X3 = Behaviour(
    id="X3",
    platform=None,
    certainty=Certainty.PREDICTABLE,
    effect="declared hybrid sharding all-reduces full gradients over all axes at once",
    when="declared style; a gradient is reduced over two axes of more than one device and sharded over one of them. "
    "GPUs decompose it again where another reduction of the same computation is over one of the two groups and the "
    "shard has a single use (in float32: inside loops only); with jax 0.10 only where the shards belong to neighbours. "
    "TPUs decompose it where the shards lie inside a slice and the rest of the sum is over several",
    remedy="write the step in the explicit style",
    rewrite=_summed_at_once,
    absorbed_by=_is_rest_of_the_sum,
)


def _each_use_separately(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """Beside the gradient of one use that of every other, summed at once over all axes, in each pass."""
    provenance = transfer.provenance
    is_added_first = context.is_typed and context.platform != Platform.CPU
    if context.style != "declared" or is_added_first or provenance.uses == 1:
        return (transfer,)
    passes = max(provenance.micro_batches, provenance.repeats)
    whole = replace(
        in_products_dtype(where_made(transfer)),
        kind=Kind.ALL_REDUCE,
        executions=passes * (provenance.uses - 1),
        provenance=Provenance(named_after=provenance.named_after),
    )
    return replace(transfer, provenance=replace(provenance, uses=1)), over(
        provenance.sum_over or transfer.axes or (), whole, context
    )


X4 = Behaviour(
    id="X4",
    platform=None,
    certainty=Certainty.PREDICTABLE,
    effect="declared tied embeddings reduce two gradients of the table instead of one: the second unsharded, over all "
    "axes",
    when="declared style; one table serves as embedding and as output head. With shardings in types on CPUs only: GPUs "
    "and TPUs add both gradients first",
    remedy="write the step in the explicit style",
    rewrite=_each_use_separately,
)

X5 = CompilerNote(
    id="X5",
    platform=None,
    certainty=Certainty.OBSERVED,
    effect="global-norm clipping reduces one scalar per leaf and axis, and which of them are merged is not predictable",
    when="the norm is computed over sharded gradients",
    remedy="sum the squares locally and all-reduce the total once",
)

X6 = CompilerNote(
    id="X6",
    platform=None,
    certainty=Certainty.OBSERVED,
    effect="slicing the last stage's output outside the pipeline broadcasts its activations to all stages",
    when="the stages are a dim of one array that is sharded over an axis",
    remedy="compute the loss inside the pipeline and reduce a scalar",
)


def _in_the_loop(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """A stack's reduction, as one for each iteration."""
    stack = transfer.provenance.stacked_layers
    if context.style != "declared" or transfer.payload_bytes % stack:
        return (transfer,)
    if stack == 1:
        return (where_made(transfer) if transfer.provenance.micro_batches == 1 else transfer,)
    provenance = replace(transfer.provenance, stacked_layers=1, iterations=stack)
    return (
        replace(
            where_made(transfer),
            payload_bytes=transfer.payload_bytes // stack,
            executions=known(transfer.executions) * stack,
            provenance=provenance,
        ),
    )


X7 = Behaviour(
    id="X7",
    platform=None,
    certainty=Certainty.PREDICTABLE,
    effect="a declared reduction runs in the pass that makes its value, of stacked gradients layer by layer inside the "
    "backward loop: same bytes",
    when="declared style; the layers are stacked and scanned over",
    rewrite=_in_the_loop,
)

LARGEST_STACK_BYTES = 10 << 10
"""XLA's own limit (`xla_while_loop_all_reduce_dus_code_motion_max_size_bytes`): larger ones are summed where the loop
makes them."""

LEAVES_PASSES = (0, 11)
"""Release of jax whose XLA sums a small stack after the loop over micro-batches, too, if there is one."""


def _is_stored_changed(stated: Provenance, context: Context) -> bool:
    """Something stands between a declared sum and what the loop stores: on GPUs a reshape, on TPUs the type that a
    product is given."""
    is_changed = (
        stated.is_matrix_product and context.is_typed if context.platform == Platform.TPU else stated.is_reshaped
    )
    return context.style == "declared" and is_changed


def _stored_then_summed(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """One reduction of all that a loop stores, where that is small."""
    stated, is_sum = transfer.provenance, transfer.kind is Kind.ALL_REDUCE
    passes, rest = divmod(known(transfer.executions), stated.iterations)
    leaves_passes = context.platform == Platform.GPU and context.jax >= LEAVES_PASSES
    stack = transfer.payload_bytes * stated.iterations
    if (
        context.platform == Platform.CPU
        or not is_sum
        or _is_stored_changed(stated, context)
        or stated.iterations == 1
        or stack > LARGEST_STACK_BYTES
        or rest
        or (leaves_passes and passes != stated.steps * max(stated.micro_batches, stated.repeats))
    ):
        return (transfer,)
    dims = (stated.iterations, *stated.dims) if stated.dims else ()
    provenance = replace(stated, iterations=1, micro_batches=1, repeats=1, dims=dims)
    once = replace(transfer, payload_bytes=stack, executions=passes, provenance=provenance)
    return (replace(once, executions=stated.steps) if leaves_passes else once,)


X8 = Behaviour(
    id="X8",
    platform=None,
    certainty=Certainty.PREDICTABLE,
    effect="an all-reduce in a loop that stacks its results runs once, on the whole stack, if that is 10 KiB or "
    "smaller: same bytes, or, on GPUs with jax 0.11, once for all micro-batches",
    when="GPUs and TPUs; a loop stacks what it reduces, as it is: on GPUs a declared gradient of queries, keys, values "
    "or outputs is reshaped in between, on TPUs with shardings in types that of any matrix is resharded",
    not_on=Platform.CPU,
    rewrite=_stored_then_summed,
)


def _is_split_between_slices(transfer: Transfer, context: Context) -> bool:
    """The rest of a sum that is split between slices: of what each pass scatters inside them."""
    stated = transfer.provenance
    return span_slices(transfer.axes or (), context) and set(stated.sum_over) > set(transfer.axes or ())


def _every_micro_batch(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """The reduction of each pass, and of each layer where the value is a stack, in the dtype of its products."""
    m, stack = transfer.provenance.micro_batches, transfer.provenance.stacked_layers
    is_made_once = (
        context.platform == Platform.TPU
        and (stack, transfer.provenance.uses) == (1, 1)
        and is_gradient(transfer)
        and transfer.kind is Kind.ALL_REDUCE
        and not _is_split_between_slices(transfer, context)
    )
    if context.style != "declared" or m == 1 or is_made_once or transfer.payload_bytes % stack:
        return (transfer,)
    each = replace(
        where_made(transfer),
        payload_bytes=transfer.payload_bytes // stack,
        executions=known(transfer.executions) * m * stack,
    )
    return (
        replace(in_products_dtype(each), provenance=replace(transfer.provenance, stacked_layers=1, iterations=stack)),
    )


X9 = Behaviour(
    id="X9",
    platform=None,
    certainty=Certainty.PREDICTABLE,
    effect="declared gradients and losses that are accumulated over micro-batches are reduced once per micro-batch, "
    "layer by layer, in the dtype of the matmuls; on TPUs this does not hold for gradients of one use computed outside "
    "the loop over layers, unless they are parts that are summed between slices",
    when="declared style; more than one micro-batch",
    remedy="write the step in the explicit style: the accumulated gradient is then reduced once",
    rewrite=_every_micro_batch,
)


def _after_the_loop(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """One reduction of what a loop adds up, written out or not."""
    once, rest = divmod(known(transfer.executions), transfer.provenance.accumulated_in_loop)
    return (transfer if context.platform == Platform.CPU or rest else replace(transfer, executions=once),)


X10 = Behaviour(
    id="X10",
    platform=None,
    certainty=Certainty.PREDICTABLE,
    effect="an all-reduce in a loop that only accumulates its results, explicit psum included, runs once after the "
    "loop",
    when="GPUs and TPUs; the results are used by nothing but the accumulation",
    not_on=Platform.CPU,
    rewrite=_after_the_loop,
)


def _kept_as_summed(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """Nothing: the partitioner's sum is part of the product that is kept."""
    return () if context.style == "declared" and transfer.provenance.saved_by_remat else (transfer,)


def _is_repeated(again: Transfer, first: Transfer, behaviours: tuple[str, ...]) -> bool:
    """The same sum in the forward pass, whose result is kept."""
    return first == replace(again, phase=Phase.FORWARD, provenance=first.provenance)


X11 = Behaviour(
    id="X11",
    platform=None,
    certainty=Certainty.PREDICTABLE,
    effect="a declared matmul output saved by a checkpoint policy is saved after its all-reduce: the all-reduce is "
    "not repeated in the backward pass",
    when="declared style; a checkpoint policy saves the matmul output",
    rewrite=_kept_as_summed,
    absorbed_by=_is_repeated,
)

X12 = CompilerNote(
    id="X12",
    platform=None,
    certainty=Certainty.OBSERVED,
    effect="a dispatch constrained directly to the experts' axis gathers tokens or all-reduces activations instead of "
    "emitting an all-to-all",
    when="declared style; the dispatched tokens are constrained to the experts' axis in one step",
    remedy="constrain them to the token sharding first, then to the expert sharding",
)

# In the order in which they act.
BEHAVIOURS = (X4, X11, X3, X9, X7, X10, X8)
NOTES = (
    X1,
    X2,
    X5,
    X6,
    X12,
)
