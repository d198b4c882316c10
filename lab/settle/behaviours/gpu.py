"""What XLA's GPU compiler does."""

from __future__ import annotations

from dataclasses import replace

from lab.core.ledger import Kind, Phase, Transfer
from lab.meshes.platforms import Platform
from lab.settle.behaviours.behaviour import Behaviour, Certainty, CompilerNote, Context
from lab.settle.behaviours.transforms import is_declared_scatter, is_gradient
from lab.settle.unclaimed import Unclaimed, claim_up_to

G1 = CompilerNote(
    id="G1",
    platform=Platform.GPU,
    certainty=Certainty.PREDICTABLE,
    effect="transfers of one kind and group are combined into one instruction: same bytes; the operands of an "
    "all-reduce are packed into one flat array",
    when="several transfers of one kind and group that do not depend on each other",
)

G2 = CompilerNote(
    id="G2",
    platform=Platform.GPU,
    certainty=Certainty.PREDICTABLE,
    effect="one iteration of the backward loop is peeled: L executions become (L - 1) + 1",
    when="a backward pass that loops over layers",
)

G3 = CompilerNote(
    id="G3",
    platform=Platform.GPU,
    certainty=Certainty.PREDICTABLE,
    effect="an all-reduce over one axis whose result is sliced becomes a reduce-scatter; over two axes it does not",
    when="each device keeps its own shard of the sum",
)

G4 = CompilerNote(
    id="G4",
    platform=Platform.GPU,
    certainty=Certainty.PREDICTABLE,
    effect="nested reductions over two axes are merged into one over both",
    when="a reduction over one axis of the result of a reduction over another",
)

G5 = CompilerNote(
    id="G5",
    platform=Platform.GPU,
    certainty=Certainty.OBSERVED,
    effect="a narrowing convert after a collective-permute is moved before it: half the bytes",
    when="the permuted value is cast to a narrower dtype afterwards",
    remedy="cast before the ppermute",
)


KEEPS_NAMES = (0, 11)
"""Release of jax whose XLA still names a reduction that it moved out of a loop after the pass that makes the value."""


def _after_the_passes(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """One reduction of the sum over passes, of a gradient that no loop over layers makes."""
    provenance, passes = transfer.provenance, max(transfer.provenance.micro_batches, transfer.provenance.repeats)
    is_product = provenance.product is not None and is_gradient(transfer)
    stays = transfer.kind is not Kind.ALL_REDUCE and not provenance.replicated_first
    if context.style != "declared" or not is_product or stays or passes == 1 or transfer.executions != passes:
        return (transfer,)
    # A sum in 16 bits is widened before each device takes its part of it; one in float32 is scattered.
    once = replace(transfer, kind=transfer.kind if transfer.dtype == "f32" else Kind.ALL_REDUCE, executions=1)
    return (once if context.jax >= KEEPS_NAMES else replace(once, phase=Phase.UPDATE),)


G6 = Behaviour(
    id="G6",
    platform=Platform.GPU,
    certainty=Certainty.PREDICTABLE,
    effect="reductions of gradients computed outside the scan over layers are moved out of the accumulation loop, "
    "so that they run once; a reduce-scatter of 16 bits becomes an all-reduce there",
    when="declared style; more than one micro-batch; gradients computed outside the loop over layers, such as the "
    "embedding's",
    rewrite=_after_the_passes,
)

G7 = CompilerNote(
    id="G7",
    platform=Platform.GPU,
    certainty=Certainty.OBSERVED,
    effect="some all-gathers of a cast weight run in f32: twice the bytes",
    when="a weight is cast to 16 bits and then gathered",
    remedy="constrain the sharding of the cast value before the gather",
)


def _looked_up_whole(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    is_whole = (
        transfer.provenance.replicated_first
        and transfer.phase == Phase.FORWARD
        and is_declared_scatter(transfer, context)
    )
    return (replace(transfer, kind=Kind.ALL_REDUCE) if is_whole else transfer,)


G9 = Behaviour(
    id="G9",
    platform=Platform.GPU,
    certainty=Certainty.PREDICTABLE,
    effect="a declared lookup whose output is replicated before it is sharded is reduced with an all-reduce, not a "
    "reduce-scatter",
    when="declared style; the lookup's output is constrained to be replicated first",
    rewrite=_looked_up_whole,
)

G10 = CompilerNote(
    id="G10",
    platform=Platform.GPU,
    certainty=Certainty.PREDICTABLE,
    effect="if a step needs more than its arguments plus 95 % of what they leave free of 80 % of the chip's memory, "
    "XLA rematerializes: attention probabilities kept for the gradients of the values are recomputed, and "
    "zero-initialized gradient buffers are allocated later; with jax 0.11 transfers are done again, too (G13)",
    when="a step that nearly fills the memory of the chip",
    remedy="use smaller micro-batches",
)

G11 = CompilerNote(
    id="G11",
    platform=Platform.GPU,
    certainty=Certainty.OBSERVED,
    effect="the schedule places the head's gradient, the zeros of the embedding's gradient and copies of saved stacks "
    "earlier or later: predicted peaks are within 4 % at the sizes of 8B and 70B models (8 % with jax 0.11), and up "
    "to a third off where layers are few or memory is nearly full (docs/layouts.md has a table); affects memory, not "
    "bytes on the wire",
    when="any step",
    remedy="compile at your own sizes",
)

G12 = CompilerNote(
    id="G12",
    platform=Platform.GPU,
    certainty=Certainty.OBSERVED,
    effect="a product of 16 bits with dims that fill no tile, such as [18, 8], is not compiled",
    when="dims of a few elements, with which XLA chooses its own Triton kernel for a product",
    remedy="take sizes that are multiples of 64, or XLA_FLAGS=--xla_gpu_enable_triton_gemm=false",
    refusal="Couldn't find output tile sizes that satisfy hlo",
)


def _done_again(done: Unclaimed, unclaimed: Unclaimed) -> Unclaimed:
    """Each clone of what is done, at most as often."""
    clones = [(first, again) for first in done for again in unclaimed if again.repeats == first.instruction is not None]
    return tuple(t for first, again in clones for t in claim_up_to(replace(first, repeats=again.repeats), (again,)))


G13 = Behaviour(
    id="G13",
    platform=Platform.GPU,
    certainty=Certainty.READABLE,
    effect="a transfer whose result is used again later is done again there, at most as often as the program's own",
    when="jax 0.11; the step has no room to keep the result (G10), and nothing runs beside the transfer that could "
    "hide it; which of them is XLA's choice: of the four gathers of a sequence-parallel layer's backward pass one, two "
    "or all were. The text names the clone after its original, `X.remat` after `X`, and gives both the same operand, "
    "groups and type",
    remedy="make room: smaller micro-batches, or state that is sharded over more devices",
    recognise_added=_done_again,
)

G14 = CompilerNote(
    id="G14",
    platform=Platform.GPU,
    certainty=Certainty.PREDICTABLE,
    effect="a float that is cast to fewer bits and back stays as it was: nothing is rounded, and what is sent is wide",
    when="both casts between the same two transfers, scales between them included; not of integers",
    remedy="jax.lax.optimization_barrier on the narrow value, jax.lax.reduce_precision, or "
    "xla_allow_excess_precision=false",
)

G15 = CompilerNote(
    id="G15",
    platform=Platform.GPU,
    certainty=Certainty.PREDICTABLE,
    effect="collectives keep 8-bit floats: a psum or psum_scatter of f8 adds in f8, and rounds at every addition",
    when="a collective of f8e4m3fn or f8e5m2",
    remedy="exchange by an all_to_all in 8 bits, and sum in f32 what arrives",
)

G16 = CompilerNote(
    id="G16",
    platform=Platform.GPU,
    certainty=Certainty.OBSERVED,
    effect="blocks of float8 or float4 that have scales of their own are dequantised, and multiplied wide: "
    "nothing is faster, and both matrices lie in memory once more; does not show in a ledger",
    when="jax.nn.scaled_matmul (MXFP8, NVFP4) compiled ahead of time for H100, and with jax 0.10 for B200; with jax "
    "0.11 B200 multiplies them as they are (__cudnn$blockScaledDot)",
    remedy="one scale a tensor: jnp.dot of float8 values, and the scales after it",
)

G17 = CompilerNote(
    id="G17",
    platform=Platform.GPU,
    certainty=Certainty.OBSERVED,
    effect="a transfer whose result a loop does not need starts after the loop, if that has transfers too: the loop "
    "hides none of it, as of DiLoCo's mean that is taken some steps late; TPUs send between slices before such a loop",
    when="a transfer beside a loop with transfers of its own; beside a loop without any it starts before",
    remedy="XLA_FLAGS=--xla_gpu_experimental_parallel_collective_overlap_limit=2",
)

# In the order in which they act.
BEHAVIOURS = (G6, G9, G13)

NOTES = (
    G1,
    G2,
    G3,
    G4,
    G5,
    G7,
    G10,
    G11,
    G12,
    G14,
    G15,
    G16,
    G17,
)
