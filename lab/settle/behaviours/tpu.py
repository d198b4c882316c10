"""What XLA's TPU compiler does."""

from __future__ import annotations

from dataclasses import replace

from lab.core.known import known
from lab.core.ledger import Kind, Phase, Transfer
from lab.meshes.platforms import Platform
from lab.settle.behaviours.behaviour import Behaviour, Certainty, CompilerNote, Context
from lab.settle.behaviours.tpu_packing import T17
from lab.settle.behaviours.tpu_scatters import as_permute, halo, padded_scatter, reduced_everywhere
from lab.settle.behaviours.tpu_slices import T14, T18, T19, devices_of_slice, span_slices
from lab.settle.behaviours.transforms import in_products_dtype, is_gradient, masked
from lab.settle.unclaimed import Unclaimed, claim, claim_all, claim_up_to


def _reduced_everywhere(predicted: Transfer, context: Context, unclaimed: Unclaimed) -> Unclaimed:
    """The all-reduce of the same payload, of some executions or of all."""
    other = Kind.ALL_REDUCE if predicted.kind is Kind.REDUCE_SCATTER else Kind.REDUCE_SCATTER
    if other is Kind.REDUCE_SCATTER and not _is_scatter_inside_a_slice(predicted, context):
        return ()
    as_predicted = claim_up_to(predicted, unclaimed)
    rest = known(predicted.executions) - sum(known(t.executions) for t in as_predicted)
    otherwise = claim(replace(predicted, kind=other, executions=rest), unclaimed)
    return as_predicted + otherwise if otherwise else ()


def _is_scatter_inside_a_slice(predicted: Transfer, context: Context) -> bool:
    """An all-reduce that a rule made of the scatter that a sum over several slices begins with."""
    is_of_slices = context.target is not None and context.target.slices > 1
    return predicted.kind is Kind.ALL_REDUCE and is_of_slices and predicted.provenance.scattered_dim is not None


T1 = Behaviour(
    id="T1",
    platform=Platform.TPU,
    certainty=Certainty.PREDICTABLE,
    effect="a reduce-scatter is compiled to an all-reduce and a slice: same payload, twice the wire bytes",
    when="it is over a whole slice that is a square of 4x4 or more, or that has three dims (not on TPU 7x); it splits "
    "the last dim into shards of an odd number of 128 columns; or shards would be padded by more than a half",
    remedy="xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter keeps most of them",
    rewrite=reduced_everywhere,
)

T15 = Behaviour(
    id="T15",
    platform=Platform.TPU,
    certainty=Certainty.READABLE,
    effect="a reduce-scatter is compiled to an all-reduce and a slice where T1 and T14 do not predict it, or kept "
    "where they do",
    when="several reduce-scatters are combined; shards of layouts that T1 does not know; sums over several slices",
    remedy="xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter keeps most of them",
    recognise=_reduced_everywhere,
)


def _padded_scatter(predicted: Transfer, context: Context, unclaimed: Unclaimed) -> Unclaimed:
    """The scatter whose operand was padded from the predicted size, with the permutes that restore the shards."""
    P, whole = predicted.group_size, predicted.payload_bytes
    padded = next((t for t in unclaimed if t.padded_from_bytes == whole), None)
    if predicted.kind is not Kind.REDUCE_SCATTER or P is None or padded is None:
        return ()
    if whole % P or padded.payload_bytes % P:
        return ()
    messages = halo(padded.payload_bytes, padded.payload_bytes - whole, P)
    moves = (replace(as_permute(predicted), payload_bytes=payload) for payload in messages)
    scatter = replace(predicted, kind=padded.kind, payload_bytes=padded.payload_bytes)
    return claim_all((scatter, *moves), unclaimed, is_any_shift=True)


T2 = Behaviour(
    id="T2",
    platform=Platform.TPU,
    certainty=Certainty.PREDICTABLE,
    effect="shards are padded before a reduce-scatter to pieces of one size, of whole tiles, and collective-permutes "
    "that undo the padding follow it",
    when="v5e and v6e; shards do not divide into the fewest pieces of which P + 4 have no more than 3.7 or 7.7 million "
    "numbers, for groups of P devices",
    remedy="choose shards that fill the tiles",
    rewrite=padded_scatter,
)

T16 = Behaviour(
    id="T16",
    platform=Platform.TPU,
    certainty=Certainty.READABLE,
    effect="shards are padded before a reduce-scatter, and collective-permutes that undo the padding follow it, where "
    "T2 does not predict it",
    when="shards of layouts or chips that T2 does not know",
    remedy="choose shards that fill the tiles",
    recognise=_padded_scatter,
)

T3 = CompilerNote(
    id="T3",
    platform=Platform.TPU,
    certainty=Certainty.PREDICTABLE,
    effect="a reduce-scatter is printed as an all-reduce and a slice inside a custom fusion; it is read as a "
    "reduce-scatter",
    when="any reduce-scatter that the compiler keeps",
)


def _windowed_einsum(predicted: Transfer, context: Context, unclaimed: Unclaimed) -> Unclaimed:
    """The n + 1 permutes of a shard, or n - 1, that stand for a gather or scatter over n devices."""
    P = predicted.group_size
    if predicted.kind not in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER) or P is None or predicted.payload_bytes % P:
        return ()
    times = known(predicted.executions)
    shard = replace(predicted, kind=Kind.COLLECTIVE_PERMUTE, payload_bytes=predicted.payload_bytes // P)
    # Some windows go round one way, some both ways at once.
    counts = (P + 1) * times, (P - 1) * times
    tried = (claim(replace(shard, executions=count), unclaimed, is_any_shift=True) for count in counts)
    return next(filter(None, tried), ())


T4 = Behaviour(
    id="T4",
    platform=Platform.TPU,
    certainty=Certainty.READABLE,
    effect="an all-gather or reduce-scatter next to a matmul becomes a loop of collective-permutes (windowed einsum): "
    "over an axis of n devices they move n + 1 shards or, where n is small, n - 1",
    when="a gathered operand, or a scattered output, larger than XLA's threshold",
    remedy="constrain the gathered value, or raise xla_jf_spmd_threshold_for_windowed_einsum_mib",
    recognise=_windowed_einsum,
)


def _max_in_products_dtype(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """In the 16 bits that a value was widened from."""
    return (in_products_dtype(transfer) if transfer.phase in (Phase.FORWARD, None) else transfer,)


T5 = Behaviour(
    id="T5",
    platform=Platform.TPU,
    certainty=Certainty.PREDICTABLE,
    effect="a max over widened bf16 is reduced in bf16: half the bytes",
    when="a max in the forward pass over values that were widened from bf16",
    rewrite=_max_in_products_dtype,
)

T6 = CompilerNote(
    id="T6",
    platform=Platform.TPU,
    certainty=Certainty.PREDICTABLE,
    effect="a declared all-reduce of the embedding whose result is sliced becomes a reduce-scatter",
    when="declared style; each device keeps its own shard of the embedding's output",
)


def _masked_sum(predicted: Transfer, context: Context, unclaimed: Unclaimed) -> Unclaimed:
    """The all-reduce of what each device has its part of, and zeros beside it."""
    return claim(masked(predicted), unclaimed) if predicted.kind is Kind.ALL_GATHER else ()


T7 = Behaviour(
    id="T7",
    platform=Platform.TPU,
    certainty=Certainty.READABLE,
    effect="an all-gather of a tiny or uneven array becomes a masked all-reduce of the same payload: twice the bytes",
    when="an array of a few rows or scalars, or a vector of any length that is no multiple of 128",
    remedy="pad what is gathered to rows of 128",
    recognise=_masked_sum,
)

T8 = CompilerNote(
    id="T8",
    platform=Platform.TPU,
    certainty=Certainty.PREDICTABLE,
    effect="arguments are padded to layout tiles: affects memory, not bytes on the wire",
    when="arguments that do not fill the tiles of the layout",
)


def _after_the_passes_in_f32(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """The same on TPUs, of a gradient that each pass was to scatter: the sum over passes is float32."""
    provenance = transfer.provenance
    if (
        context.style != "declared"
        or not provenance.replicated_first
        or provenance.repeats == 1
        or transfer.executions != provenance.repeats
        or not is_gradient(transfer)
    ):
        return (transfer,)
    wide = transfer.payload_bytes * (2 if transfer.dtype == "bf16" else 1)
    once = replace(transfer, kind=Kind.ALL_REDUCE, executions=1, phase=Phase.UPDATE)
    return (replace(once, dtype="f32", payload_bytes=wide),)


T9 = Behaviour(
    id="T9",
    platform=Platform.TPU,
    certainty=Certainty.PREDICTABLE,
    effect="reductions of gradients that are replicated first are moved out of the accumulation loop, so that they "
    "run once, in float32",
    when="declared style; more than one micro-batch; gradients that are constrained to be replicated first",
    rewrite=_after_the_passes_in_f32,
)


def _scattered_after_the_passes(predicted: Transfer, context: Context, unclaimed: Unclaimed) -> Unclaimed:
    """One scatter, padded or not, or one sum everywhere, in float32, of what each pass over a micro-batch was to
    scatter."""
    passes = predicted.provenance.repeats
    if predicted.kind is not Kind.REDUCE_SCATTER or passes == 1 or predicted.executions != passes:
        return ()
    wide = predicted.payload_bytes * (2 if predicted.dtype == "bf16" else 1)
    once = replace(predicted, executions=1, dtype="f32", payload_bytes=wide, phase=Phase.UPDATE)
    alone = _run_once(unclaimed)
    return claim(once, alone) or _padded_scatter(once, context, alone) or _reduced_everywhere(once, context, alone)


def _run_once(unclaimed: Unclaimed) -> Unclaimed:
    """What runs once in a step, and is no share of what each micro-batch does."""
    return tuple(t for t in unclaimed if t.executions == 1)


T10 = Behaviour(
    id="T10",
    platform=Platform.TPU,
    certainty=Certainty.READABLE,
    effect="a reduce-scatter of gradients is moved out of the accumulation loop: it runs once, on the accumulated "
    "gradient in float32, or (T1) as one all-reduce",
    when="more than one micro-batch; the gradients of each were to be reduce-scattered",
    recognise=_scattered_after_the_passes,
)


def _narrow_after_the_passes(predicted: Transfer, context: Context, unclaimed: Unclaimed) -> Unclaimed:
    """A gradient's sum over passes in the 16 bits that each pass had it in."""
    narrow = in_products_dtype(predicted)
    is_sum = predicted.kind is Kind.ALL_REDUCE and is_gradient(predicted)
    is_late = predicted.provenance.micro_batches > 1 and predicted.executions == 1
    return claim(narrow, _run_once(unclaimed)) if is_sum and is_late and narrow != predicted else ()


T11 = Behaviour(
    id="T11",
    platform=Platform.TPU,
    certainty=Certainty.OBSERVED,
    effect="a gradient accumulated over micro-batches is rounded to 16 bits before it is reduced: half the bytes; "
    "seen for the head's gradient with sharding in types",
    when="more than one micro-batch; the accumulated gradient is reduced once, after the last",
    recognise=_narrow_after_the_passes,
)


def _rounded_for_products(predicted: Transfer, context: Context, unclaimed: Unclaimed) -> Unclaimed:
    """The gathers or permutes of what products of 16 bits are to take, with those of iterations whose results something
    else takes too."""
    only_moves = predicted.kind in (Kind.ALL_GATHER, Kind.COLLECTIVE_PERMUTE) or predicted.is_masked_gather
    if not only_moves or predicted.dtype != "f32":
        return ()
    as_asked = claim_up_to(predicted, unclaimed)
    rest = known(predicted.executions) - sum(known(t.executions) for t in as_asked)
    rounded = claim(
        replace(predicted, dtype="bf16", payload_bytes=predicted.payload_bytes // 2, executions=rest), unclaimed
    )
    return as_asked + rounded if rounded else ()


T12 = Behaviour(
    id="T12",
    platform=Platform.TPU,
    certainty=Certainty.READABLE,
    effect="an all-gather or collective-permute of float32 that feeds only matmuls runs in the 16 bits to which their "
    "operands are rounded: half the bytes",
    when="the moved value is used only by matmuls, of default precision",
    remedy="set jax.default_matmul_precision('highest')",
    recognise=_rounded_for_products,
)

LEAST_MASKED = 64
"""48 devices gather, 64 do not; what is between was not tried."""


def _gathered_by_sum(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """Of a gather over all devices of one copy of the program, where they are many and of one slice: the sum of what
    each device has its part of, and zeros beside it."""
    is_over_all = transfer.group_size == devices_of_slice(context) >= LEAST_MASKED
    is_masked = is_over_all and transfer.kind is Kind.ALL_GATHER and not span_slices(transfer.axes or (), context)
    return (masked(transfer) if is_masked else transfer,)


T13 = Behaviour(
    id="T13",
    platform=Platform.TPU,
    certainty=Certainty.PREDICTABLE,
    effect="an all-gather over all devices, if these are 64 or more, is a masked all-reduce of the same payload: "
    "twice the wire bytes; of bytes, four are summed as a word",
    when="64 devices or more, and an all-gather over all of them; of several slices, over all of each",
    remedy="add a second mesh axis: an all-gather over a subset of the devices is kept",
    rewrite=_gathered_by_sum,
)

T20 = CompilerNote(
    id="T20",
    platform=Platform.TPU,
    certainty=Certainty.OBSERVED,
    effect="messages between slices, and the gathers after them, run an iteration later, the last ones after the loop, "
    "and several small messages of an iteration are packed into one, which is read as its parts: same bytes",
    when="sums over several slices in a loop of three iterations or more",
)

T21 = CompilerNote(
    id="T21",
    platform=Platform.TPU,
    certainty=Certainty.PREDICTABLE,
    effect="a psum or psum_scatter of 8 bits is an all-reduce of u32, four numbers in each, that adds in 8 bits: of a "
    "psum_scatter twice the wire bytes",
    when="a sum of s8, f8e4m3fn or f8e5m2 over devices",
    remedy="exchange by an all_to_all in 8 bits, and sum in f32 what arrives",
)

T22 = CompilerNote(
    id="T22",
    platform=Platform.TPU,
    certainty=Certainty.PREDICTABLE,
    effect="a value is moved in the type that it has before a cast to 8 bits, and in the type that it has after a cast "
    "from 8 bits: casts are not moved across transfers, as GPUs' compilers move some",
    when="a cast beside an all-gather, all-to-all or collective-permute, written out or declared",
    remedy="cast to 8 bits first, and pin the cast value to the sharding that it has there",
)

T23 = CompilerNote(
    id="T23",
    platform=Platform.TPU,
    certainty=Certainty.OBSERVED,
    effect="jax.nn.scaled_matmul is not compiled",
    when="MXFP8 or NVFP4 by jax.nn.scaled_matmul",
    remedy="one scale a tensor: jnp.dot of float8 values, and the scales after it",
    refusal="Custom emitter for CustomSPMDPartitioning not found",
)

# In the order in which they act.
BEHAVIOURS = (T9, T13, T14, T1, T2, T10, T15, T16, T4, T5, T7, T11, T12, T18, T19, T17)
NOTES = (
    T3,
    T6,
    T8,
    T20,
    T21,
    T22,
    T23,
)
