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
        "an operation that XLA does not split: gathered, and computed by every device",
        (unsplit.unsplit_operation, unsplit.grouped_convolution),
    ),
    Kind(
        "random_numbers_moved",
        "random bits drawn in another order than they are kept in",
        (layout.random_numbers_moved,),
    ),
    Kind(
        "gathered_for_slice", "a slice or update of a part that gathers the whole array", (offsets.gathered_for_slice,)
    ),
    Kind(
        "table_gathered",
        "a lookup that gathers its table, or its cotangents, where the rows would be less",
        (offsets.table_gathered, offsets.cotangents_gathered),
    ),
    Kind("reduced_in_loop", "a reduction inside a loop that only adds the results up", (accumulation.reduced_in_loop,)),
    Kind("reduced_twice", "one value reduced twice over the same devices", (reductions.reduced_twice,)),
    Kind(
        "reduced_for_nothing", "a reduction over an axis along which nothing varies", (reductions.reduced_for_nothing,)
    ),
    Kind(
        "not_scattered",
        "an all-reduce of which each device keeps a part: a reduce-scatter would do",
        (reductions.not_scattered,),
    ),
    Kind(
        "given_back_whole",
        "the gradient of a split argument summed and given back whole",
        (reductions.given_back_whole,),
    ),
    Kind("last_stage_broadcast", "one pipeline stage's output sent to all stages", (pipeline.last_stage_broadcast,)),
    Kind("experts_gathered", "tokens gathered to experts where all-to-alls would do", (products.experts_gathered,)),
    Kind(
        "constraint_undone", "a constraint that replicates what is split before and after", (rebuilt.constraint_undone,)
    ),
    Kind("rebuilt_whole", "an array rebuilt whole to move between two shardings", (rebuilt.rebuilt_whole,)),
    Kind("kept_whole", "split weights gathered once and kept for the backward pass", (memory.kept_whole,)),
    Kind("larger_side_gathered", "a product that gathers its larger operand", (products.larger_side_gathered,)),
    Kind("heads_split_apart", "key-value heads fewer than the axis that splits them", (products.heads_split_apart,)),
    Kind("moved_to_reshape", "a reshape or concatenation along a split dim", (layout.moved_to_reshape,)),
    Kind("axis_order", "whole shards permuted since axes stand in another order", (layout.axis_order,)),
    Kind("padded", "a dim that does not divide, gathered with its padding", (layout.padded,)),
    Kind("widened", "16-bit values moved in 32 bits", (links.widened,), explains=False),
    Kind(
        "on_slow_link",
        "activations reduced over the network while the fast link is free",
        (links.on_slow_link,),
        explains=False,
    ),
    Kind(
        "not_neighbours", "neighbours of the mesh that are none in the torus", (links.not_neighbours,), explains=False
    ),
    Kind(
        "held_whole",
        "state held whole of which each device uses a part",
        (memory.held_whole, memory.made_whole),
        explains=False,
    ),
    Kind("array_constant", "an array closed over, held whole as a constant", (memory.array_constant,), explains=False),
    Kind("donation_unused", "a donation in vain", (memory.donation_unused,), explains=False),
    Kind(
        "computed_redundantly",
        "work that all devices of an axis do alike",
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
