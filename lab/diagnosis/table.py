"""The kinds of findings, and what finds them. A transfer is told of once, by the first kind that explains it; what
costs memory, time or bytes beside comes after."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lab.diagnosis.finding import OUT_OF_MEMORY, Finding
from lab.diagnosis.kinds import (
    accumulation,
    batch,
    layout,
    links,
    memory,
    narrow,
    needless,
    offsets,
    pipeline,
    products,
    rebuilt,
    reductions,
    redundant,
    repeated,
    rounds,
    small_side,
    state,
    sums,
    unsplit,
)
from lab.diagnosis.program import Program


@dataclass(frozen=True)
class Kind:
    """A kind of fault. `lab explain` shows it with the smallest program that has it, `lab.diagnosis.examples.NAME`.

    Attributes:
      name: of its findings.
      what: it is, in a line.
      find: the rules that look for it.
      explains: it says why a transfer is there, so that no later kind need.
      costs: what the program pays for it.
      cure: what to write instead.
      mesh, target: of the example; "" for fake CPU devices.
    """

    name: str
    what: str
    find: tuple[Callable[[Program], Iterable[Finding]], ...]
    explains: bool = True
    costs: str = ""
    cure: str = ""
    mesh: str = "data=8"
    target: str = ""


KINDS: tuple[Kind, ...] = (
    Kind(
        OUT_OF_MEMORY,
        "a step that holds more than JAX takes of a chip's memory",
        (memory.out_of_memory,),
        explains=False,
        costs="The program does not run. JAX takes 75 % of a GPU's memory by default; the finding names the fraction "
        "that would do, where one does.",
        cure="Shard what is held whole, take fewer sequences at once, rematerialize layers, or keep state on the host. "
        "lab fit tries these on the lab's own experiments.",
        target="gpu:h100:1x8",
    ),
    Kind(
        "unsplit_operation",
        "an operation that XLA does not partition: its operand is gathered, and every device computes all of it",
        (unsplit.unsplit_operation, unsplit.grouped_convolution),
        costs="The operand is gathered whole in every step, and each device does the work of all of them.",
        cure="Wrap the operation in jax.shard_map, so that each device works on its own part: along dims that it "
        "does not mix (fft, linear algebra, callbacks), by blocks (cumsum), or in two stages (top_k).",
    ),
    Kind(
        "random_numbers_moved",
        "random numbers for a sharded array that are drawn on devices other than those that keep the array",
        (layout.random_numbers_moved,),
        costs="A draw moves about as many bytes as it makes.",
        cure="Leave jax_threefry_partitionable on, as it is by default: each device then draws its own part, and "
        "nothing moves.",
    ),
    Kind(
        "gathered_for_slice",
        "a read or an update of a part of an array that gathers all of it",
        (offsets.gathered_for_slice,),
        costs="An all-gather of the whole array, for a part of it.",
        cure="Read or update through an index array, such as x.at[jnp.arange(a, b)].set(u): the devices that own "
        "the rows do it. Make the shift of a jnp.roll static, or use jax.lax.ppermute in jax.shard_map.",
    ),
    Kind(
        "table_gathered",
        "a lookup that gathers its whole table where the rows would be fewer bytes, or whose gradient gathers the "
        "cotangents where the table would be",
        (offsets.table_gathered, offsets.cotangents_gathered),
        costs="An all-gather of the whole table in every lookup; in its gradient, of all tokens and cotangents.",
        cure="Shard the table and the tokens over different axes, or look up in jax.shard_map: mask the rows that "
        "another device owns, and sum. Constrain the table's gradient to be replicated first, and to its own "
        "spec after.",
    ),
    Kind(
        "permuted_by_gather",
        "rows that are taken by constant indices, for which every device gathers the whole array",
        (offsets.permuted_by_gather,),
        costs="An all-gather of the whole array, where each device needs as much of it as it keeps.",
        cure="Which device needs which rows is known: exchange blocks by jax.lax.ppermute in jax.shard_map.",
    ),
    Kind(
        "batch_made_whole",
        "a split batch of which activations or their gradients are whole: layers move them over the batch's axes",
        (batch.batch_made_whole,),
        costs="Activations of the whole batch are summed or gathered over the batch's axes in every layer, in the "
        "backward pass or in both, where gathered weights would be fewer bytes; attention may be computed for all "
        "sequences on each device.",
        cure="Constrain what the lookup of embeddings gives: x = jax.lax.with_sharding_constraint(x, P('data')). "
        "Weights that are split over the batch's axis otherwise hand their own split on to the activations.",
        mesh="data=4,model=2",
    ),
    Kind(
        "reduced_in_loop",
        "a reduction in every iteration of a loop that only adds the results up",
        (accumulation.reduced_in_loop,),
        costs="A loop of N iterations reduces N times the bytes that one reduction after it would.",
        cure="Add up on each device and reduce once: put the loop into jax.shard_map, with jax.lax.pcast(w, axis, "
        "to='varying') before it and one psum (or psum_scatter) after it.",
    ),
    Kind(
        "repeated_in_loop",
        "a transfer in every iteration of a loop of a value that no iteration changes",
        (repeated.repeated_in_loop,),
        costs="A loop of N iterations sends N times the bytes that one transfer before it would.",
        cure="Constrain the value before the loop to the sharding that the loop uses, outside of any jax.checkpoint of "
        "the loop's body.",
    ),
    Kind(
        "gathered_twice",
        "one value, or what is computed from it, gathered for each of its uses in the same pass",
        (repeated.gathered_twice,),
        costs="An all-gather of the same bytes for each use after the first.",
        cure="Constrain the value to a spec without the axis before its first use, and use the constrained one: the "
        "compiler gathers for each use by itself where they ask for other layouts, such as x @ x.T.",
        target="gpu:h100:1x8",
    ),
    Kind(
        "summed_apart",
        "several sums over devices whose results are only added to or subtracted from each other",
        (sums.summed_apart, sums.summed_into_sum),
        costs="N reductions of the bytes of one: the gradients of a table's two uses, or of several micro-batches "
        "written out one by one.",
        cure="Add them up on each device first, and sum once: in one jax.shard_map that ends in one psum.",
        target="gpu:h100:1x8",
    ),
    Kind(
        "summed_before_product",
        "a sum over devices that only goes into a product of fewer bytes",
        (sums.summed_before_product,),
        costs="A reduction of the factor where one of the product would do: a product of parts is a part "
        "of the product.",
        cure="Multiply on each device and sum the product, in jax.shard_map. Attention over keys and values that are "
        "looked up in split pages: sum scores and outputs instead of the rows.",
    ),
    Kind(
        "last_message_unused",
        "a permute in every iteration of a loop, whose last result nothing reads, or whose first is a constant",
        (rounds.last_message_unused,),
        explains=False,
        costs="One message in N: a ring of N devices has all parts after N - 1.",
        cure="Let the loop run once less, and compute the last part after it without the permute.",
    ),
    Kind(
        "summed_every_round",
        "sums in every iteration of products of what a loop carries, where one gather before it costs less",
        (rounds.summed_every_round,),
        costs="A reduction in each of N iterations, where the loop's small matrix gathered once is fewer bytes. Every "
        "device then computes all of it: the finding says how much, and appears only where that takes less time.",
        cure="Put the loop into jax.shard_map behind one jax.lax.all_gather, and cut each device's part out after it. "
        "Sharding constraints do not do: the compiler splits what the loop carries again.",
        mesh="data=16",
        target="gpu:h100:2x8",
    ),
    Kind(
        "condition_reduced",
        "a while loop whose condition is reduced over devices in every round",
        (rounds.condition_reduced,),
        explains=False,
        costs="Few bytes, and the latency of a collective in every round.",
        cure="Ask every few rounds: let the body do several steps for each question.",
    ),
    Kind(
        "reduced_twice",
        "one value reduced twice over the same devices",
        (reductions.reduced_twice,),
        costs="A second reduction of the same bytes. It adds up copies of the first one's result: a psum is then too "
        "large by a factor of the axis's size.",
        cure="Drop the second one. In a checked jax.shard_map JAX has summed the gradient of a replicated input "
        "already: for a mean, divide by the size of the axis.",
    ),
    Kind(
        "reduced_for_nothing",
        "a reduction over an axis along which all devices have the same value",
        (reductions.reduced_for_nothing,),
        costs="A reduction over more devices than it needs, or one that it does not need at all.",
        cure="Leave the axis out of the reduction. If JAX put it in, keep check_vma=True on the jax.shard_map, or "
        "move inputs that no axis shards outside.",
        mesh="data=4,tensor=2",
    ),
    Kind(
        "summed_to_gather",
        "a psum to which each device adds its own part of an array, and zeros beside it",
        (needless.summed_to_gather,),
        costs="Twice the wire bytes of an all-gather.",
        cure="Use jax.lax.all_gather(x, axis, tiled=True), in a jax.shard_map with check_vma=False where the result "
        "must count as the same on all devices.",
    ),
    Kind(
        "summed_across_calls",
        "a sum over devices that every call of the program only adds to a donated argument",
        (needless.summed_across_calls,),
        costs="A reduction in every call, where one would do when the total is used.",
        cure="Let each device keep its own sums, in an accumulator with a dim that the axis shards, or as gradients "
        "that stay `unreduced` on an Explicit mesh.",
    ),
    Kind(
        "not_scattered",
        "an all-reduce of which each device keeps only a part: a reduce-scatter would do",
        (reductions.not_scattered, reductions.left_whole),
        costs="Twice the wire bytes of a reduce-scatter, and memory for the whole sum.",
        cure="Use jax.lax.psum_scatter. Where a TPU compiler makes it of a reduce-scatter (T1), its flag "
        "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter keeps most of these.",
    ),
    Kind(
        "given_back_whole",
        "the gradient of a sharded argument that is summed over devices and returned whole",
        (reductions.given_back_whole,),
        costs="The whole gradient in the memory of every device and, on GPUs and TPUs, an all-reduce with twice the "
        "wire bytes of a reduce-scatter.",
        cure="Name the argument's sharding in out_shardings: each device then keeps its part. On GPUs and TPUs a "
        "reduce-scatter then sends half the bytes; for CPUs XLA keeps the all-reduce (C2).",
    ),
    Kind(
        "last_stage_broadcast",
        "the output of one pipeline stage that is sent to all stages",
        (pipeline.last_stage_broadcast,),
        costs="In every tick all stages receive the last one's output, in a reduction to which all others add zeros.",
        cure="Keep the outputs where the last stage is: compute the loss there and sum a scalar over the axis, or "
        "collect the outputs in the loop's state and take the last stage once, after the loop.",
        mesh="pipe=4",
    ),
    Kind(
        "experts_gathered",
        "tokens that are gathered by all experts where all-to-alls would do",
        (products.experts_gathered,),
        costs="Whole tokens are gathered and whole outputs summed, where two all-to-alls would send each token to "
        "its experts alone.",
        cure="Constrain the dispatched tokens to their own groups over the axis first, and to their experts after; "
        "the outputs in the other order.",
        mesh="expert=8",
    ),
    Kind(
        "batch_dim_gathered",
        "a product that gathers an operand along a batch dim, such as heads, since the other is split elsewhere",
        (products.batch_dim_gathered,),
        costs="An all-gather of the operand and, where the split dim is contracted later, a reduction of the result.",
        cure="Split both operands along the batch dim: the product then moves nothing.",
        mesh="model=8",
    ),
    Kind(
        "constraint_undone",
        "a sharding constraint that replicates what is sharded before and after it",
        (rebuilt.constraint_undone,),
        costs="An all-gather of an array of which each device then keeps the shard that it had.",
        cure="None in a PartitionSpec means replicated: write P.UNCONSTRAINED for dims that the constraint is not "
        "about, or drop it.",
        mesh="data=4,tensor=2",
    ),
    Kind(
        "rebuilt_whole",
        "an array that is gathered whole to change its sharding",
        (rebuilt.rebuilt_whole,),
        costs="The whole array is gathered on every device, where all-to-alls would move about one shard.",
        cure="Move it in two steps, one axis at a time, or give both ends the same spec. lab.redistribution finds "
        "the steps that move least.",
        mesh="data=4,tensor=2",
    ),
    Kind(
        "cut_for_small",
        "a large value that each device has whole, cut to match a small split argument and gathered again",
        (small_side.cut_for_small,),
        costs="An all-gather of the large value, since a vector beside it, such as the scale of a norm, is sharded.",
        cure="Do not shard the small argument along that dim, or shard the large value along it too, until the product "
        "that takes it.",
        mesh="data=2,tensor=4",
    ),
    Kind(
        "kept_whole",
        "sharded arguments, such as weights, that are gathered once and kept whole for the backward pass",
        (memory.kept_whole,),
        costs="Memory, no bytes: until the backward pass every device has these arguments whole, as if nothing sharded "
        "them.",
        cure="Gather each layer's weights where they are used, and rematerialize the layer (jax.checkpoint): the "
        "backward pass then gathers them again, as many bytes as in the forward pass, and only one layer's are whole "
        "at a time. Drop a sharding constraint that replicates an argument.",
        mesh="fsdp=8",
    ),
    Kind(
        "larger_side_gathered",
        "a matrix product that gathers the larger of its operands",
        (products.larger_side_gathered,),
        costs="An all-gather of the larger operand, where moving the smaller one and the output would be far less.",
        cure="Keep the large operand sharded: constrain the small one, and the output, to be replicated over the axis.",
        mesh="tensor=8",
    ),
    Kind(
        "heads_split_apart",
        "fewer key-value heads than the axis that shards them has devices",
        (products.heads_split_apart,),
        costs="Keys and values are gathered in every layer, since each device has only a part of a head.",
        cure="Shard the weights of keys and values over no more devices than there are heads, or repeat the heads "
        "up to the size of the axis.",
        mesh="data=2,tensor=4",
    ),
    Kind(
        "moved_to_reshape",
        "a reshape, concatenation, split or repetition along a sharded dim",
        (layout.moved_to_reshape,),
        costs="All-to-alls, gathers or permutes of the array, forward and backward.",
        cure="Keep the sharded dim outermost where dims are merged or split; give parts a dim of their own that no "
        "axis shards, such as [D, 2, F] sharded along F, or an array each; join along a whole dim.",
        mesh="tensor=8",
    ),
    Kind(
        "axis_order",
        "whole shards that change places, since two shardings name axes in different orders",
        (layout.axis_order,),
        costs="A permute of every whole shard.",
        cure="Write the axes in one order in both specs: P(('x', 'y')) and P(('y', 'x')) are different places.",
        mesh="data=4,fsdp=2",
    ),
    Kind(
        "padded",
        "a dim that is not a multiple of the size of its axis, and is gathered with its padding",
        (layout.padded,),
        costs="The padding is moved and computed like all else: 60 % more for 10 rows on 8 devices.",
        cure="Choose a multiple of the axis's size, or shard another dim.",
    ),
    Kind(
        "widened",
        "16-bit values that are cast to 32 bits and sent so",
        (links.widened,),
        explains=False,
        costs="Twice the bytes.",
        cure="Cast what the transfer gives, not what it takes. XLA moves its own transfers before such a cast, and on "
        "GPUs all. Of what it widens for CPUs, all 16-bit floats, there is a note and no finding: judge programs in "
        "16 bits on a gpu: or tpu: target.",
        target="tpu:v5e:2x4",
    ),
    Kind(
        "dequantised_before",
        "8-bit values that are dequantised and then sent or summed wide",
        (narrow.dequantised_before,),
        explains=False,
        costs="Twice the bytes of 8-bit values where they travel in 16 bits, four times in 32.",
        cure="Move the narrow value and its scale, and dequantise what arrives. Where the compiler puts the transfer "
        "in, constrain the narrow value to the sharding that it has, then to the one that is asked for, and dequantise "
        "after that. Sums are not made in 8 bits: exchange narrow parts by an all_to_all, and sum what arrives.",
        mesh="fsdp=8",
        target="gpu:h100:1x8",
    ),
    Kind(
        "narrowed_after",
        "a value that is sent wide and cast to a narrower dtype by all that receive it",
        (links.narrowed_after,),
        explains=False,
        costs="Twice the bytes, or four times where it is cast from 32 bits to 8.",
        cure="Cast first, and pin the cast value to the sharding that it has there (jax.lax.with_sharding_constraint), "
        "before it is asked for elsewhere: XLA moves the wide value otherwise.",
        mesh="fsdp=8",
        target="gpu:h100:1x8",
    ),
    Kind(
        "on_slow_link",
        "an order of the mesh's axes that sends far more between hosts or slices than another would",
        (links.on_slow_link,),
        explains=False,
        costs="The network between hosts or slices has a fraction of the fast link's bandwidth. All transfers are "
        "counted, of both axes: those that would stay inside, and those that would then leave.",
        cure="Let the axis vary fastest in the mesh, inside a host or slice, and let the axis that communicates "
        "less span them (jax.experimental.mesh_utils.create_hybrid_device_mesh).",
        mesh="tensor=2,data=8",
        target="gpu:h100:2x8",
    ),
    Kind(
        "not_neighbours",
        "neighbours in the mesh that are far apart in the torus",
        (links.not_neighbours,),
        explains=False,
        costs="A message passes over several links, which others then cannot use.",
        cure="Make the mesh with jax.make_mesh or jax.experimental.mesh_utils.create_device_mesh, which follow the "
        "wires.",
        mesh="data=2,tensor=8",
        target="tpu:v5p:2x2x4",
    ),
    Kind(
        "held_whole",
        "replicated state of which each device uses only a part, or that has no room",
        (memory.held_whole, memory.made_whole, memory.updated_whole),
        explains=False,
        costs="Memory, no bytes: on P devices P times what each of them uses.",
        cure="Give the state the sharding of what it goes with: out_shardings where it is made (optimizer state "
        "made under jit takes no sharding from the parameters), in_shardings where it is used.",
        mesh="fsdp=8",
    ),
    Kind(
        "offload_undone",
        "a policy that moves what a function saves to the host, where nothing is moved",
        (memory.offload_undone,),
        explains=False,
        costs="Memory, no bytes: what was to wait on the host stays on the device.",
        cure="Name a value inside the rematerialized function that its backward pass reads, such as its input; what "
        "the function returns is saved by its caller.",
        target="gpu:h100:1x8",
    ),
    Kind(
        "array_constant",
        "an array that the function closes over: a constant that every device holds whole",
        (memory.array_constant,),
        explains=False,
        costs="Memory, no bytes: every device has the array whole, beside what the memory analysis counts as "
        "arguments.",
        cure="Pass it as an argument with a sharding instead of closing over it.",
    ),
    Kind(
        "donation_unused",
        "a donated argument whose memory no output can take",
        (memory.donation_unused,),
        explains=False,
        costs="Memory, no bytes: the old and the new array at once.",
        cure="Give the output the dtype and the sharding of the argument (out_shardings), or drop the donation.",
    ),
    Kind(
        "not_donated",
        "state that a step gives back updated, and is not given up for the update",
        (state.not_donated,),
        explains=False,
        costs="Memory, no bytes: the old and the new state at once.",
        cure="Name the state in donate_argnames (or donate_argnums) of jax.jit: XLA then makes the new state in the "
        "memory of the old one, which the caller can no longer read.",
        mesh="fsdp=8",
    ),
    Kind(
        "collected_anew",
        "a stack, such as a decode cache, that a scan takes as xs, writes a part of, and collects as ys",
        (state.collected_anew,),
        explains=False,
        costs="Memory and its traffic, no bytes: in every step the whole stack is held once more and copied, donated "
        "or not.",
        cure="Carry the stack through the scan, write the part into the whole of it "
        "(jax.lax.dynamic_update_slice with the layer's number), read its layer from it, and donate it.",
        mesh="tensor=8",
    ),
    Kind(
        "computed_redundantly",
        "work that all devices along an axis repeat, and that takes longer than what they would send to share it",
        (redundant.computed_redundantly,),
        explains=False,
        costs="No bytes: P devices do the same work that each could do a part of. A split is followed through what is "
        "made of it; what it sends at least is said, and weighed at the chip's full rates.",
        cure="Shard a dim of an operand over the axis, by its sharding or with jax.lax.with_sharding_constraint.",
    ),
)


def findings(program: Program) -> list[Finding]:
    """All that is wrong with a program, kind by kind."""
    found: list[Finding] = []
    explained: set[int] = set()  # The objects themselves: two operands of a combined transfer may be equal in all.
    for kind in KINDS:
        for finding in (finding for find in kind.find for finding in find(program)):
            told = set(map(id, finding.transfers))
            if not (kind.explains and told and told <= explained):
                found.append(finding)
                explained |= told if kind.explains else set()
    return found
