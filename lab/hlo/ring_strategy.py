"""How the compiler for TPUs says that a collective goes: in one ring through all chips of a group, or in rings along
each direction of the torus, and over how many links of a chip at once.

What stands in `collective_algorithm_config` of jax 0.10 and 0.11: gathers (`1DAllGather...`) and scatters go in one
ring, sums in rings of so many colors. A color has both directions of its ring, one of them where the strategy is called
`UniDirection...`: a sum of v6e in two colors was measured at 2.6 links' rate (tpu-recipes, trillium/collectives).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from lab.hlo.text import Instruction

_EMITTER = re.compile(r'"collective_algorithm_config":\{"emitter":"(\w+)"(?:,"strategy":"(\w+)")?')
_COLORS = re.compile(r"colors:(\d+) phases:(\d+)")


@dataclass(frozen=True)
class Rings:
    """Attributes: links: of a chip that send at once; is_one: a single ring through the group."""

    links: int
    is_one: bool


def rings_of(instructions: Iterable[Instruction]) -> Rings | None:
    """By the first of a collective and what it is fused into that tells; None where none does, as on a SparseCore."""
    for instruction in instructions:
        if emitter := _EMITTER.search(instruction.extras):
            if emitter[1].startswith("1D"):
                return Rings(2, is_one=True)
            if colors := _COLORS.search(instruction.extras, emitter.end()):
                directions = 1 if (emitter[2] or "").startswith("UniDirection") else 2
                return Rings(int(colors[1]) * directions, is_one=colors[2] == "1")
    return None
