"""How the compiler for TPUs says that a collective goes: in one ring through all chips of a group, or in rings along
each direction of the torus, and over how many links of a chip at once.

What stands in texts of jax 0.10 and 0.11. In `collective_algorithm_config` gathers (`1DAllGather...`) and scatters go
in one ring, sums in rings of so many colors: a color has both directions of its ring, one of them where the strategy is
called `UniDirection...` (a sum of v6e in two colors was measured at the rate of 2.6 links: tpu-recipes,
trillium/collectives). In the `ici_strategy_config` of a SparseCore each color lists the rings of its phases, each with
its direction (a gather of 7x in two colors was measured at 89 % of two links: tpu-recipes, ironwood/collectives).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from lab.hlo.text import Instruction

_EMITTER = re.compile(r'"collective_algorithm_config":\{"emitter":"(\w+)"(?:,"strategy":"(\w+)")?')
_COLORS = re.compile(r"colors:(\d+) phases:(\d+)")
_PHASES = re.compile(r'"phase_rings":\[([^\]]*)\]')
_RING = re.compile(r'"ring_type":"ICI_RING_TYPE_(\w+)"')


@dataclass(frozen=True)
class Rings:
    """Attributes: links: of a chip that send at once, if it has as many; is_one: a single ring through the group."""

    links: int
    is_one: bool


def rings_of(instructions: Iterable[Instruction]) -> Rings | None:
    """By the first of a collective and what it is fused into that tells; None where none does."""
    found = (_of_emitter(one.extras) or _of_sparse_core(one.extras) for one in instructions)
    return next((rings for rings in found if rings), None)


def _of_emitter(extras: str) -> Rings | None:
    emitter = _EMITTER.search(extras)
    if emitter is None:
        return None
    if emitter[1].startswith("1D"):
        return Rings(2, is_one=True)
    colors = _COLORS.search(extras, emitter.end())
    directions = 1 if (emitter[2] or "").startswith("UniDirection") else 2
    return Rings(int(colors[1]) * directions, is_one=colors[2] == "1") if colors else None


def _of_sparse_core(extras: str) -> Rings | None:
    colors = [rings for phases in _PHASES.findall(extras) if (rings := _RING.findall(phases))]
    links = sum(1 if rings[0].startswith("UNIDIR") else 2 for rings in colors)
    return Rings(links, is_one=all(len(rings) == 1 for rings in colors)) if colors else None
