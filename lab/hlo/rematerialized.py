"""What XLA computes again because a step has no room: its rematerialization clones an instruction, and names the clone
`X.remat`, `X.remat2` and so on after it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from lab.hlo.flops import Work
from lab.hlo.walk import Visit

_CLONE = re.compile(r"\.remat\d*(?:\.\d+(?=\.remat|$))?")


def repeats(products: Sequence[tuple[Visit, Work]]) -> tuple[tuple[Visit, Work], ...]:
    """All products but the first of those that repeat each other: where every use has a clone of its own, the one that
    is repeated is gone."""
    met, seen, found = set[tuple[str, ...]](), Counter[tuple[str, ...]](), []
    for visit, work in products:
        callers = tuple(site.instruction.name for site in visit.callers)
        if visit.callers and visit.callers[-1].instruction.opcode == "fusion":
            # A clone's computation has new names, in the same order.
            own = str(seen[callers])
            seen[callers] += 1
        else:
            own = visit.instruction.name
        key = tuple(_CLONE.sub("", name) for name in (*callers, own))
        if key in met:
            found.append((visit, work))
        met.add(key)
    return tuple(found)
