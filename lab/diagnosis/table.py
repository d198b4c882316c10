"""The kinds of findings, and what finds them. A transfer is told of once, by the first kind that explains it; what
costs memory, time or bytes beside comes after."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lab.diagnosis.finding import Finding
from lab.diagnosis.kinds import (
    accumulation,
    layout,
    links,
    memory,
    offsets,
    pipeline,
    products,
    rebuilt,
    reductions,
    redundant,
    unsplit,
)
from lab.diagnosis.program import Program


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
      name: of its findings.
      what: it is, in a line.
      find: the rules that look for it.
      explains: it says why a transfer is there, so that no later kind need.
    """

    name: str
    what: str
    find: tuple[Callable[[Program], Iterable[Finding]], ...]
    explains: bool = True


KINDS: tuple[Kind, ...] = (
    Kind(
        "unsplit_operation",
        "an operation that XLA does not partition: its operand is gathered, and every device computes all of it",
        (unsplit.unsplit_operation, unsplit.grouped_convolution),
    ),
    Kind(
        "random_numbers_moved",
        "random numbers for a sharded array that are drawn on other devices than those that keep them",
        (layout.random_numbers_moved,),
    ),
    Kind(
        "gathered_for_slice",
        "a read or an update of a part of an array that gathers all of it",
        (offsets.gathered_for_slice,),
    ),
    Kind(
        "table_gathered",
        "a lookup that gathers its table, or its gradient the cotangents, where the rows or the table would be less",
        (offsets.table_gathered, offsets.cotangents_gathered),
    ),
    Kind(
        "reduced_in_loop",
        "a reduction in every iteration of a loop that only adds the results up",
        (accumulation.reduced_in_loop,),
    ),
    Kind("reduced_twice", "one value reduced twice over the same devices", (reductions.reduced_twice,)),
    Kind(
        "reduced_for_nothing",
        "a reduction over an axis along which all devices have the same value",
        (reductions.reduced_for_nothing,),
    ),
    Kind(
        "not_scattered",
        "an all-reduce of which each device keeps only a part: a reduce-scatter would do",
        (reductions.not_scattered,),
    ),
    Kind(
        "given_back_whole",
        "the gradient of a sharded argument that is all-reduced and returned whole",
        (reductions.given_back_whole,),
    ),
    Kind(
        "last_stage_broadcast",
        "the output of one pipeline stage that is sent to all stages",
        (pipeline.last_stage_broadcast,),
    ),
    Kind(
        "experts_gathered",
        "tokens that are gathered by all experts where all-to-alls would do",
        (products.experts_gathered,),
    ),
    Kind(
        "constraint_undone",
        "a sharding constraint that replicates what is sharded before and after it",
        (rebuilt.constraint_undone,),
    ),
    Kind("rebuilt_whole", "an array that is gathered whole to change its sharding", (rebuilt.rebuilt_whole,)),
    Kind(
        "kept_whole",
        "sharded weights that are gathered once and kept whole for the backward pass",
        (memory.kept_whole,),
    ),
    Kind(
        "larger_side_gathered",
        "a matrix product that gathers the larger of its operands",
        (products.larger_side_gathered,),
    ),
    Kind(
        "heads_split_apart",
        "fewer key-value heads than the axis that shards them has devices",
        (products.heads_split_apart,),
    ),
    Kind(
        "moved_to_reshape",
        "a reshape, concatenation, split or repetition along a sharded dim",
        (layout.moved_to_reshape,),
    ),
    Kind(
        "axis_order",
        "whole shards that change places, since two shardings name axes in different orders",
        (layout.axis_order,),
    ),
    Kind("padded", "a dim that does not divide, and is gathered with its padding", (layout.padded,)),
    Kind("widened", "16-bit values that are sent in 32 bits", (links.widened,), explains=False),
    Kind(
        "on_slow_link",
        "activations that are reduced over the network while the fast link is free",
        (links.on_slow_link,),
        explains=False,
    ),
    Kind(
        "not_neighbours",
        "neighbours in the mesh that are far apart in the torus",
        (links.not_neighbours,),
        explains=False,
    ),
    Kind(
        "held_whole",
        "replicated state of which each device uses only a part",
        (memory.held_whole, memory.made_whole),
        explains=False,
    ),
    Kind(
        "array_constant",
        "an array that the function closes over: a constant that every device holds whole",
        (memory.array_constant,),
        explains=False,
    ),
    Kind(
        "donation_unused",
        "a donated argument whose memory no output can take",
        (memory.donation_unused,),
        explains=False,
    ),
    Kind(
        "computed_redundantly",
        "work that all devices along an axis repeat",
        (redundant.computed_redundantly,),
        explains=False,
    ),
)


def findings(program: Program) -> list[Finding]:
    """All that is wrong with a program, the worst first: by wire bytes, then by memory."""
    found: list[Finding] = []
    explained: set[int] = set()  # The objects themselves: two operands of a combined transfer may be equal in all.
    for kind in KINDS:
        for finding in (finding for find in kind.find for finding in find(program)):
            told = set(map(id, finding.transfers))
            if not (kind.explains and told and told <= explained):
                found.append(finding)
                explained |= told if kind.explains else set()
    return sorted(found, key=lambda finding: finding.cost, reverse=True)
