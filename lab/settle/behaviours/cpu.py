"""What XLA's CPU compiler does."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from lab.core.known import known
from lab.core.ledger import Kind, Transfer
from lab.meshes.platforms import Platform
from lab.settle.behaviours.behaviour import Behaviour, Certainty, CompilerNote, Context
from lab.settle.behaviours.transforms import is_declared_scatter, over


def _widened(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    if transfer.dtype not in ("bf16", "f16"):
        return (transfer,)
    return (replace(transfer, dtype="f32", payload_bytes=2 * transfer.payload_bytes, is_widened=True),)


C1 = Behaviour(
    id="C1",
    platform=Platform.CPU,
    certainty=Certainty.PREDICTABLE,
    effect="16-bit floats are widened to f32 in collectives: twice the bytes",
    when="any collective of bf16 or f16; the text shows that it was widened",
    remedy="judge bf16 layouts on a GPU or TPU target, or run in f32 on the CPU",
    rewrite=_widened,
)


def _never_scattered(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    return (replace(transfer, kind=Kind.ALL_REDUCE) if is_declared_scatter(transfer, context) else transfer,)


C2 = Behaviour(
    id="C2",
    platform=Platform.CPU,
    certainty=Certainty.PREDICTABLE,
    effect="a declared reduce-scatter stays an all-reduce of the same payload; an explicit psum_scatter is kept",
    when="declared style; each device keeps one shard of a sum",
    rewrite=_never_scattered,
)


def _one_by_one(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """The reductions of partial products, each before the sum over products."""
    if context.style != "declared" or transfer.executions is None:
        return (transfer,)
    return (replace(transfer, executions=transfer.executions * transfer.provenance.partial_products),)


C3 = Behaviour(
    id="C3",
    platform=Platform.CPU,
    certainty=Certainty.PREDICTABLE,
    effect="partial sums of sibling matmuls are reduced one by one (q, k, v: 3; gate, up: 2)",
    when="declared style; several matmuls share one input or the gradient of one output",
    remedy="fuse the weights, or use the explicit style and mark the input as varying once per block",
    rewrite=_one_by_one,
)


def _reduced_separately(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """One reduction for each group of axes of more than one device."""
    groups = [
        axes for axes in transfer.provenance.reduced_separately_over if prod(context.mesh[axis] for axis in axes) > 1
    ]
    if context.style != "declared" or len(groups) < 2:
        return (transfer,)
    return tuple(over(axes, transfer, context) for axes in groups)


C4 = Behaviour(
    id="C4",
    platform=Platform.CPU,
    certainty=Certainty.PREDICTABLE,
    effect="declared reductions over tokens that are sharded by batch and by sequence run separately over each of the "
    "two axes instead of once over both",
    when="declared style; batch and sequence are sharded over two axes of more than one device",
    rewrite=_reduced_separately,
)

C5 = CompilerNote(
    id="C5",
    platform=Platform.CPU,
    certainty=Certainty.OBSERVED,
    effect="a bf16 psum in a shard_map that is manual over a subset of the axes aborts the process",
    when="a shard_map whose axis_names are a subset of the mesh axes",
    remedy="make the shard_map fully manual, or psum in f32",
)


def _hoisted(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """A gather that every pass would repeat, once."""
    once, rest = divmod(known(transfer.executions), transfer.provenance.repeats)
    if transfer.kind is not Kind.ALL_GATHER or rest:
        return (transfer,)
    return (replace(transfer, executions=once),)


C6 = Behaviour(
    id="C6",
    platform=Platform.CPU,
    certainty=Certainty.PREDICTABLE,
    effect="all-gathers of values that do not change between micro-batches are hoisted out of the accumulation loop, "
    "so that they run once",
    when="more than one micro-batch; the gathered value is loop-invariant",
    rewrite=_hoisted,
)

C7 = CompilerNote(
    id="C7",
    platform=Platform.CPU,
    certainty=Certainty.OBSERVED,
    effect="a collective-permute waits for all devices, not only for its sources and targets: in a branch that some "
    "devices do not take it deadlocks, or pairs with the permute of another tick and gives wrong results; does not "
    "show in a ledger",
    when="a ppermute in a branch that depends on the device",
    remedy="use an all-gather or all-to-all where only some devices communicate, or move the ppermute out of the "
    "branch",
)


def _in_16_bits(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    if transfer.dtype not in ("f8e4m3fn", "f8e5m2"):
        return (transfer,)
    return (replace(transfer, dtype="f16", payload_bytes=2 * transfer.payload_bytes),)


C8 = Behaviour(
    id="C8",
    platform=Platform.CPU,
    certainty=Certainty.PREDICTABLE,
    effect="8-bit floats are widened to f16 in collectives: twice the bytes; 8-bit integers are not",
    when="any collective of f8e4m3fn or f8e5m2",
    remedy="judge programs with 8-bit floats on a GPU or TPU target",
    rewrite=_in_16_bits,
)

# In the order in which they act: C1 would widen once more what C8 has widened.
BEHAVIOURS = (C2, C1, C8, C3, C4, C6)
NOTES = (
    C5,
    C7,
)
