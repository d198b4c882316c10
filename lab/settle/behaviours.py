"""What compilers do to a ledger that theory does not ask for: one entry each.

A `predictable` behaviour follows from the configuration alone; its `rewrite`, where one is needed to settle the layouts
so far, turns a predicted transfer into the one that the compiler will emit. A `readable` one shows in the compiled
text, an `observed` one has been seen but follows no known rule; where `recognise` finds one of these, it explains what
stands there, and never counts as predicted. Seen with XLA of jax 0.10.2 and 0.11.2 on the layouts of this project.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from importlib.metadata import version
from math import prod

from lab.core.ledger import Kind, Provenance, Transfer
from lab.settle.unclaimed import Unclaimed, claim, claim_all, claim_up_to

INSTALLED = tuple(map(int, version("jax").split(".")[:2]))
"""Release of jax."""


class Certainty(StrEnum):
    PREDICTABLE = "predictable"
    READABLE = "readable"
    OBSERVED = "observed"


@dataclass(frozen=True)
class Context:
    """The configuration that a prediction may know; `jax`: the release whose XLA compiles."""

    platform: str
    style: str
    mesh: Mapping[str, int] = field(default_factory=dict)
    jax: tuple[int, ...] = INSTALLED


# A predicted transfer to those that the compiler emits for it: itself where nothing changes, none where another one
# does its work.
Rewrite = Callable[[Transfer, Context], tuple[Transfer, ...]]
# Which of the measured transfers that are left over carry out a predicted one; () where none do.
Recognise = Callable[[Transfer, Context, Unclaimed], Unclaimed]


@dataclass(frozen=True)
class Behaviour:
    """One compiler behaviour.

    Attributes:
      id: letter of the compiler (C CPU, G GPU, T TPU, X any) and number.
      platform: where it happens, None for all.
      certainty: whether a configuration predicts it.
      effect: what it does to a ledger.
      remedy: what to write instead, where there is something.
    """

    id: str
    platform: str | None
    certainty: Certainty
    effect: str
    remedy: str = ""
    rewrite: Rewrite | None = None
    recognise: Recognise | None = None


def _widened(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    if transfer.dtype not in ("bf16", "f16"):
        return (transfer,)
    return (replace(transfer, dtype="f32", payload_bytes=2 * transfer.payload_bytes),)


def _never_scattered(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    return (replace(transfer, kind=Kind.ALL_REDUCE) if _is_declared_scatter(transfer, context) else transfer,)


def _is_declared_scatter(transfer: Transfer, context: Context) -> bool:
    return context.style == "declared" and transfer.kind is Kind.REDUCE_SCATTER


def _one_by_one(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """The reductions of partial products, each before the sum over products."""
    if context.style != "declared" or transfer.executions is None:
        return (transfer,)
    return (replace(transfer, executions=transfer.executions * transfer.provenance.partial_products),)


def _apart(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """One reduction for each group of axes of more than one device."""
    groups = [
        axes for axes in transfer.provenance.reduced_separately_over if prod(context.mesh[axis] for axis in axes) > 1
    ]
    if context.style != "declared" or len(groups) < 2:
        return (transfer,)
    return tuple(_over(axes, transfer, context) for axes in groups)


def _over(axes: tuple[str, ...], transfer: Transfer, context: Context) -> Transfer:
    return replace(transfer, axes=axes, group_size=prod(context.mesh[axis] for axis in axes))


def _looked_up_whole(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    is_whole = (
        transfer.provenance.replicated_first and transfer.phase == "forward" and _is_declared_scatter(transfer, context)
    )
    return (replace(transfer, kind=Kind.ALL_REDUCE) if is_whole else transfer,)


def _every_micro_batch(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """The reduction of each pass, and of each layer where the value is a stack, in the dtype of its products."""
    m, stack = transfer.provenance.micro_batches, transfer.provenance.stacked_layers
    is_made_once = (
        context.platform == "tpu" and stack == 1 and transfer.phase == "backward" and transfer.kind is Kind.ALL_REDUCE
    )
    if context.style != "declared" or m == 1 or is_made_once:
        return (transfer,)
    each = replace(transfer, payload_bytes=transfer.payload_bytes // stack, executions=transfer.executions * m * stack)
    return (
        replace(_in_products_dtype(each), provenance=replace(transfer.provenance, stacked_layers=1, iterations=stack)),
    )


def _after_the_passes(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """One reduction of the sum over passes, of a gradient that no loop over layers makes."""
    provenance, passes = transfer.provenance, max(transfer.provenance.micro_batches, transfer.provenance.repeats)
    is_gradient = provenance.product is not None and transfer.phase == "backward"
    stays = transfer.kind is not Kind.ALL_REDUCE and not provenance.replicated_first
    if context.style != "declared" or not is_gradient or stays or passes == 1 or transfer.executions != passes:
        return (transfer,)
    return (replace(transfer, kind=Kind.ALL_REDUCE, executions=1),)


def _after_the_passes_in_f32(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """The same on TPUs, of a gradient that each pass was to scatter: the sum over passes is float32."""
    provenance = transfer.provenance
    if (
        context.style != "declared"
        or not provenance.replicated_first
        or provenance.repeats == 1
        or transfer.phase != "backward"
    ):
        return (transfer,)
    wide = transfer.payload_bytes * (2 if transfer.dtype == "bf16" else 1)
    return (replace(transfer, kind=Kind.ALL_REDUCE, executions=1, dtype="f32", payload_bytes=wide),)


def _after_the_loop(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """One reduction of what a loop adds up, written out or not."""
    iterations = transfer.provenance.accumulated_in_loop
    return (transfer if context.platform == "cpu" else replace(transfer, executions=transfer.executions // iterations),)


def _hoisted(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """A gather that every pass would repeat, once."""
    if transfer.kind is not Kind.ALL_GATHER or transfer.provenance.repeats == 1:
        return (transfer,)
    return (replace(transfer, executions=transfer.executions // transfer.provenance.repeats),)


def _in_products_dtype(transfer: Transfer) -> Transfer:
    if transfer.provenance.product != "bf16" or transfer.dtype != "f32":
        return transfer
    return replace(transfer, dtype="bf16", payload_bytes=transfer.payload_bytes // 2)


def _each_use_apart(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """Beside the gradient of one use that of every other, summed at once over all axes, in each pass."""
    provenance = transfer.provenance
    if context.style != "declared" or provenance.uses == 1:
        return (transfer,)
    passes = max(provenance.micro_batches, provenance.repeats)
    whole = replace(
        _in_products_dtype(transfer),
        kind=Kind.ALL_REDUCE,
        executions=passes * (provenance.uses - 1),
        provenance=Provenance(),
    )
    return replace(transfer, provenance=replace(provenance, uses=1)), _over(
        provenance.sum_over or transfer.axes, whole, context
    )


def _kept_as_summed(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """Nothing: the partitioner's sum is part of the product that is kept."""
    return () if context.style == "declared" and transfer.provenance.saved_by_remat else (transfer,)


def _in_the_loop(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """A stack's reduction, as one for each iteration."""
    stack = transfer.provenance.stacked_layers
    if context.style != "declared" or stack == 1:
        return (transfer,)
    provenance = replace(transfer.provenance, stacked_layers=1, iterations=stack)
    return (
        replace(
            transfer,
            payload_bytes=transfer.payload_bytes // stack,
            executions=transfer.executions * stack,
            provenance=provenance,
        ),
    )


LARGEST_STACK_BYTES = 10 << 10
"""XLA's own limit (`xla_while_loop_all_reduce_dus_code_motion_max_size_bytes`): larger ones are summed where the loop
makes them."""
LEAVES_PASSES = (0, 11)
"""Release of jax whose XLA sums a small stack after the loop over micro-batches, too, if there is one."""


def _stored_then_summed(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """One reduction of all that a loop stores, where that is small."""
    iterations, is_sum = transfer.provenance.iterations, transfer.kind is Kind.ALL_REDUCE
    if (
        context.platform == "cpu"
        or not is_sum
        or iterations == 1
        or transfer.payload_bytes * iterations > LARGEST_STACK_BYTES
    ):
        return (transfer,)
    leaves_passes = context.platform == "gpu" and context.jax >= LEAVES_PASSES
    provenance = replace(transfer.provenance, iterations=1, micro_batches=1, repeats=1)
    executions = 1 if leaves_passes else transfer.executions // iterations
    return (
        replace(
            transfer, payload_bytes=transfer.payload_bytes * iterations, executions=executions, provenance=provenance
        ),
    )


def _summed_at_once(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """A scatter over some of the axes that a gradient is summed over: a sum over them all; what was to follow it:
    nothing."""
    axes = tuple(axis for axis in transfer.provenance.sum_over if context.mesh[axis] > 1)
    if context.style != "declared" or not axes or transfer.axes == axes or _is_split(transfer, context):
        return (transfer,)
    if transfer.kind is not Kind.REDUCE_SCATTER:
        return ()
    return (_over(axes, replace(transfer, kind=Kind.ALL_REDUCE, provenance=Provenance()), context),)


SPLITS_FAR_APART = (0, 11)
"""Release of jax whose XLA splits sums of which no neighbours keep the parts, too."""


def _is_split(transfer: Transfer, context: Context) -> bool:
    """XLA's GPU compiler splits a sum over all devices whose part has one use, where another sum of the same
    computation has one of its two groups."""
    provenance = transfer.provenance
    groups = (context.mesh, provenance.sum_over, transfer.axes or (), *provenance.sibling_reduction_axes)
    every, over, own, *beside = (tuple(axis for axis in axes if context.mesh[axis] > 1) for axes in groups)
    rest = tuple(axis for axis in over if axis not in own)
    summed, scattered = (rest, own) if transfer.kind is Kind.REDUCE_SCATTER else (own, rest)
    is_seen = (*summed, *scattered) == every or context.jax >= SPLITS_FAR_APART
    return (
        context.platform == "gpu"
        and over == every
        and is_seen
        and _has_one_use(transfer)
        and bool({summed, scattered} & set(beside))
    )


def _has_one_use(gradient: Transfer) -> bool:
    """Outside loops one in float32 has two, the norm of all and the optimizer; a narrower one is widened for both."""
    return gradient.dtype != "f32" or gradient.provenance.iterations * gradient.provenance.stacked_layers > 1


LEAST_MASKED = 64
"""48 devices gather, 64 do not; what is between was not tried."""


def _gathered_by_sum(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """Of a gather over all devices, where they are many: the sum of what each device has its part of, and zeros beside
    it."""
    is_over_all = transfer.group_size == prod(context.mesh.values()) >= LEAST_MASKED
    return (_masked(transfer) if is_over_all and transfer.kind is Kind.ALL_GATHER else transfer,)


def _masked(gather: Transfer) -> Transfer:
    return replace(gather, kind=Kind.ALL_REDUCE, is_masked_gather=True)


def _narrow(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """In the 16 bits that a value was widened from."""
    return (_in_products_dtype(transfer) if transfer.phase == "forward" else transfer,)


def _reduced_everywhere(predicted: Transfer, context: Context, unclaimed: Unclaimed) -> Unclaimed:
    """The all-reduce of the same payload."""
    return claim(replace(predicted, kind=Kind.ALL_REDUCE), unclaimed) if predicted.kind is Kind.REDUCE_SCATTER else ()


def _masked_sum(predicted: Transfer, context: Context, unclaimed: Unclaimed) -> Unclaimed:
    """The all-reduce of what each device has its part of, and zeros beside it."""
    return claim(_masked(predicted), unclaimed) if predicted.kind is Kind.ALL_GATHER else ()


def _rounded_for_products(predicted: Transfer, context: Context, unclaimed: Unclaimed) -> Unclaimed:
    """The gathers of what products of 16 bits are to take, with those of iterations whose results something else takes
    too."""
    if not (predicted.kind is Kind.ALL_GATHER or predicted.is_masked_gather) or predicted.dtype != "f32":
        return ()
    as_asked = claim_up_to(predicted, unclaimed)
    rest = predicted.executions - sum(t.executions for t in as_asked)
    rounded = claim(
        replace(predicted, dtype="bf16", payload_bytes=predicted.payload_bytes // 2, executions=rest), unclaimed
    )
    return as_asked + rounded if rounded else ()


def _padded_scatter(predicted: Transfer, context: Context, unclaimed: Unclaimed) -> Unclaimed:
    """The scatter whose operand was padded from the predicted size, with the permutes that restore the shards."""
    if predicted.kind is not Kind.REDUCE_SCATTER:
        return ()
    padded = next((t for t in unclaimed if t.padded_from_bytes == predicted.payload_bytes), None)
    if padded is None:
        return ()
    moves = [
        (padded.kind, padded.payload_bytes),
        *((Kind.COLLECTIVE_PERMUTE, payload) for payload in _halo(padded, predicted.group_size)),
    ]
    return claim_all((replace(predicted, kind=kind, payload_bytes=payload) for kind, payload in moves), unclaimed)


def _halo(padded: Transfer, P: int) -> tuple[int, ...]:
    """Messages to the last shard, which lies furthest from where it is to be: of no more than a padded shard each."""
    shard = padded.payload_bytes // P
    whole, rest = divmod((P - 1) * (padded.payload_bytes - padded.padded_from_bytes) // P, shard)
    return (shard,) * whole + (rest,) * (rest > 0)


def _windowed_einsum(predicted: Transfer, context: Context, unclaimed: Unclaimed) -> Unclaimed:
    """The n + 1 permutes of a shard, or n - 1, that stand for a gather or scatter over n devices."""
    if predicted.kind not in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER):
        return ()
    P = predicted.group_size
    shard = replace(predicted, kind=Kind.COLLECTIVE_PERMUTE, payload_bytes=predicted.payload_bytes // P)
    return claim(replace(shard, executions=(P + 1) * predicted.executions), unclaimed) or claim(
        replace(shard, executions=(P - 1) * predicted.executions), unclaimed
    )


def _scattered_after_the_passes(predicted: Transfer, context: Context, unclaimed: Unclaimed) -> Unclaimed:
    """One scatter, padded or not, or one sum everywhere, in float32, of what each pass over a micro-batch was to
    scatter."""
    passes = predicted.provenance.repeats
    if predicted.kind is not Kind.REDUCE_SCATTER or passes == 1 or predicted.executions != passes:
        return ()
    wide = predicted.payload_bytes * (2 if predicted.dtype == "bf16" else 1)
    once = replace(predicted, executions=1, dtype="f32", payload_bytes=wide)
    alone = _alone(unclaimed)
    return claim(once, alone) or _padded_scatter(once, context, alone) or _reduced_everywhere(once, context, alone)


def _narrow_after_the_passes(predicted: Transfer, context: Context, unclaimed: Unclaimed) -> Unclaimed:
    """A gradient's sum over passes in the 16 bits that each pass had it in."""
    narrow, is_gradient = (
        _in_products_dtype(predicted),
        predicted.kind is Kind.ALL_REDUCE and predicted.phase == "backward",
    )
    is_late = predicted.provenance.micro_batches > 1 and predicted.executions == 1
    return claim(narrow, _alone(unclaimed)) if is_gradient and is_late and narrow != predicted else ()


def _alone(unclaimed: Unclaimed) -> Unclaimed:
    """What runs once in a step, and is no share of what each micro-batch does."""
    return tuple(t for t in unclaimed if t.executions == 1)


_P, _R, _O = Certainty.PREDICTABLE, Certainty.READABLE, Certainty.OBSERVED

# In the order in which they act: what the partitioner of every compiler does comes first.
CATALOGUE: tuple[Behaviour, ...] = (
    Behaviour(
        "X4",
        None,
        _P,
        "declared tied embeddings reduce two gradients of the table, not one: the second whole, over all axes",
        "write the step explicitly",
        rewrite=_each_use_apart,
    ),
    Behaviour(
        "X11",
        None,
        _P,
        "a declared product that a policy keeps is kept as summed: its sum is not repeated",
        rewrite=_kept_as_summed,
    ),
    Behaviour(
        "X1",
        None,
        _O,
        "an embedding lookup constrained straight to a sequence-parallel output moves tokens and activations on both "
        "axes",
        "constrain in two steps",
    ),
    Behaviour(
        "X2",
        None,
        _O,
        "an embedding gradient pinned to a sharding gathers tokens and cotangents instead of reducing",
        "pin the gradient replicated first",
    ),
    Behaviour(
        "X3",
        None,
        _P,
        "declared hybrid sharding reduces full gradients over all axes at once; GPUs split such a sum again where "
        "another sum of the same computation is over one of the two groups and the part has one use, as it has in "
        "float32 inside loops alone; with jax 0.10 only where neighbours keep the parts",
        "write the step explicitly",
        rewrite=_summed_at_once,
    ),
    Behaviour(
        "X5",
        None,
        _O,
        "global-norm clipping reduces one scalar a leaf and axis, merged in no predictable way",
        "sum the squares and reduce once by hand",
    ),
    Behaviour(
        "X6",
        None,
        _O,
        "slicing the last stage outside a pipeline broadcasts its activations to all stages",
        "compute the loss inside and reduce a scalar",
    ),
    Behaviour(
        "X12",
        None,
        _O,
        "a dispatch constrained to its experts at once gathers tokens or sums activations, in place of an all-to-all",
        "constrain it to its tokens' devices first, then to its experts'",
    ),
    Behaviour(
        "X9",
        None,
        _P,
        "declared gradients and losses that micro-batches add up are reduced for each of them, layer by layer, in "
        "the dtype of the products; not on TPUs the sums of those that no layer makes",
        "write the step explicitly: the sum is then reduced once",
        rewrite=_every_micro_batch,
    ),
    Behaviour(
        "X7",
        None,
        _P,
        "a declared reduction of a stack of gradients is done layer by layer inside the backward loop: the same bytes",
        rewrite=_in_the_loop,
    ),
    Behaviour(
        "X10",
        None,
        _P,
        "an all-reduce in a loop that only adds its results up, a psum too, is done once after the loop; not on CPUs",
        rewrite=_after_the_loop,
    ),
    Behaviour(
        "X8",
        None,
        _P,
        "an all-reduce in a loop that stores its results is done once, of the whole stack, where that has 10 KiB or "
        "less: the same bytes, or, on GPUs with jax 0.11, of all micro-batches at once; not on CPUs",
        rewrite=_stored_then_summed,
    ),
    Behaviour(
        "C2",
        "cpu",
        _P,
        "a declared reduce-scatter stays an all-reduce of the same payload; an explicit psum_scatter is kept",
        rewrite=_never_scattered,
    ),
    Behaviour(
        "C1",
        "cpu",
        _P,
        "16-bit floats are widened to f32 in collectives: twice the bytes",
        "judge bf16 layouts on a GPU or TPU target, or run the CPU in f32",
        rewrite=_widened,
    ),
    Behaviour(
        "C3",
        "cpu",
        _P,
        "partial sums of sibling matmuls are reduced one by one (q, k, v: 3; gate, up: 2)",
        "fuse the weights, or make the input varying once a block in the explicit style",
        rewrite=_one_by_one,
    ),
    Behaviour(
        "C4",
        "cpu",
        _P,
        "declared sums over tokens of split batches and split sequences are done over each of the two axes apart, "
        "not at once",
        rewrite=_apart,
    ),
    Behaviour(
        "C5",
        "cpu",
        _O,
        "a bf16 psum in a shard_map that is manual over some axes only aborts the process",
        "make the shard_map fully manual, or psum in f32",
    ),
    Behaviour(
        "C6",
        "cpu",
        _P,
        "gathers that no micro-batch changes leave the accumulation loop: executions x 1",
        rewrite=_hoisted,
    ),
    Behaviour(
        "C7",
        "cpu",
        _O,
        "a permute waits for all devices, not for those that it links: in a branch that some do not take it hangs, "
        "or meets the permute of another tick and gives wrong numbers; in no ledger",
        "gather, or exchange all to all, where only some go, or permute outside the branch",
    ),
    Behaviour(
        "G1",
        "gpu",
        _P,
        "transfers of one kind and group are combined into one instruction: bytes unchanged, all-reduce operands "
        "packed into one flat array",
    ),
    Behaviour("G2", "gpu", _P, "an iteration of the backward loop is peeled: executions L become (L - 1) + 1"),
    Behaviour(
        "G3",
        "gpu",
        _P,
        "an all-reduce over one axis whose result is sliced becomes a reduce-scatter; over two axes it does not",
    ),
    Behaviour("G4", "gpu", _P, "nested reductions over two axes merge into one over both"),
    Behaviour(
        "G5", "gpu", _O, "a narrowing convert after a permute moves before it: half the bytes", "cast before the hop"
    ),
    Behaviour(
        "G6",
        "gpu",
        _P,
        "sums of gradients outside the inner scan leave the accumulation loop: executions x 1",
        rewrite=_after_the_passes,
    ),
    Behaviour(
        "G7",
        "gpu",
        _O,
        "some gathers of a cast weight run in f32: twice the bytes",
        "pin the sharding of the cast value before the gather",
    ),
    Behaviour(
        "G9",
        "gpu",
        _P,
        "a declared lookup that is held whole before its tokens are split is summed everywhere: an all-reduce, not a "
        "reduce-scatter",
        rewrite=_looked_up_whole,
    ),
    Behaviour(
        "G10",
        "gpu",
        _P,
        "a step that needs more than its arguments and 95 % of what they leave of 80 % of the chip is thinned out: "
        "probabilities that wait for the values' gradients are made again, and zeros that gradients begin with "
        "later; memory, not bytes on the wire",
        "take fewer sequences at once",
    ),
    Behaviour(
        "G11",
        "gpu",
        _O,
        "the schedule makes the head's gradient, the zeros of the embedding's and copies of kept stacks early or "
        "late; memory, not bytes on the wire. At 8B and 70B, 32 or 80 layers, untied, predicted peaks are within 4 % "
        "(declared ZeRO-1 and 3 of 8B in two micro-batches, too; with jax 0.11 within 8 %), and up to 17 % off where "
        "there is no room; at 8B width with 2 layers and length 512, tied or not, where tables outweigh layers, -5 "
        "to +14 %; at peaks below 0.1 GB -8 to -17 %",
        "compile at your own sizes",
    ),
    Behaviour(
        "T10",
        "tpu",
        _R,
        "a scatter of gradients leaves the accumulation loop: one of the sum over passes, in float32, or by T1 one "
        "all-reduce",
        recognise=_scattered_after_the_passes,
    ),
    Behaviour(
        "T1",
        "tpu",
        _R,
        "a reduce-scatter is an all-reduce and a slice: same payload, twice the wire bytes; nearly always over a "
        "whole slice, sometimes over less, by no known rule",
        "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter keeps most",
        recognise=_reduced_everywhere,
    ),
    Behaviour(
        "T2",
        "tpu",
        _R,
        "shards are padded before a reduce-scatter, and permutes of the padding follow",
        "choose shards that fill the tiles",
        recognise=_padded_scatter,
    ),
    Behaviour(
        "T3",
        "tpu",
        _P,
        "a reduce-scatter is printed as an all-reduce and a slice inside a custom fusion; it is read as what it is",
    ),
    Behaviour(
        "T4",
        "tpu",
        _R,
        "a gather or scatter that feeds a matmul becomes a loop of permutes: of n + 1 shards or, over a few devices, "
        "of n - 1",
        "pin the gathered value, or raise xla_jf_spmd_threshold_for_windowed_einsum_mib",
        recognise=_windowed_einsum,
    ),
    Behaviour("T5", "tpu", _P, "a max over widened bf16 is reduced in bf16: half the bytes", rewrite=_narrow),
    Behaviour(
        "T6", "tpu", _P, "a declared all-reduce of the embedding whose result is sliced becomes a reduce-scatter"
    ),
    Behaviour(
        "T7",
        "tpu",
        _R,
        "a gather of a tiny array becomes a masked all-reduce of the same payload: twice the wire bytes",
        recognise=_masked_sum,
    ),
    Behaviour(
        "T13",
        "tpu",
        _P,
        "a gather over all devices, where they are 64 or more, is a masked all-reduce of the same payload: twice the "
        "wire bytes",
        "split over an axis beside it: over part of the devices it stays a gather",
        rewrite=_gathered_by_sum,
    ),
    Behaviour(
        "T9",
        "tpu",
        _P,
        "sums of gradients that are held whole leave the accumulation loop: executions x 1, in float32",
        rewrite=_after_the_passes_in_f32,
    ),
    Behaviour(
        "T11",
        "tpu",
        _O,
        "a sum over micro-batches is rounded to 16 bits before it is reduced: half the bytes, of the head's gradient "
        "where sharding is in types",
        recognise=_narrow_after_the_passes,
    ),
    Behaviour(
        "T12",
        "tpu",
        _R,
        "a gather of float32 that feeds products alone runs in the 16 bits that they round to: half the bytes",
        "ask for jax.default_matmul_precision('highest')",
        recognise=_rounded_for_products,
    ),
    Behaviour("T8", "tpu", _P, "arguments are padded to layout tiles: memory, not bytes on the wire"),
)


def emitted(transfer: Transfer, context: Context) -> tuple[tuple[Transfer, ...], tuple[Behaviour, ...]]:
    """What the compiler is predicted to emit for a transfer, and the behaviours that make the difference."""
    found, applied = (transfer,), []
    for behaviour in CATALOGUE:
        if behaviour.rewrite is None or behaviour.platform not in (None, context.platform):
            continue
        changed = tuple(new for old in found for new in behaviour.rewrite(old, context))
        applied += [behaviour] if changed != found else []
        found = changed
    # What one moves into a loop, another may move out again.
    is_unchanged = tuple(replace(new, provenance=transfer.provenance) for new in found) == (transfer,)
    return found, () if is_unchanged else tuple(applied)
