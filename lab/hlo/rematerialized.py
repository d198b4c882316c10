"""What XLA does again because a step has no room: its rematerialization clones an instruction, and names the clone
`X.remat`, `X.remat2` and so on after it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from lab.hlo.flops import Work
from lab.hlo.text import Computation, Instruction
from lab.hlo.walk import Visit

_CLONE = re.compile(r"\.remat\d*(?:\.\d+(?=\.remat|$))?")
_VIEWS = ("bitcast", "get-tuple-element")
_MANY_VIEWS = 8
"""Of one value one after the other: no text has as many."""


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
        key = tuple(_original(name) for name in (*callers, own))
        if key in met:
            found.append((visit, work))
        met.add(key)
    return tuple(found)


def repeated_transfers(visits: Iterable[Visit]) -> dict[Instruction, str]:
    """Collectives that are clones, each with the name of the first that moves the same value: one of the same
    computation, type and attributes, its channel aside, with the same operands, or with clones of them."""
    first: dict[tuple[str, ...], str] = {}
    found: dict[Instruction, str] = {}
    for visit in visits:
        i, computation = visit.instruction, visit.computation
        values = (_value(name, computation) for name in i.operands)
        key = computation.name, _original(i.name), i.opcode, i.shape, i.wording, *values
        if (name := first.setdefault(key, i.name)) != i.name:
            found[i] = name
    return found


def _original(name: str) -> str:
    return _CLONE.sub("", name)


def _value(name: str, computation: Computation) -> str:
    """What makes a value, whatever views of it lie in between: a clone has its own."""
    elements = ""
    for _ in range(_MANY_VIEWS):
        source = computation.by_name.get(name)
        if source is None or source.opcode not in _VIEWS or not source.operands:
            break
        name = source.operands[0]
        elements += f"[{index}]" if (index := source.attribute("index")) else ""
    return _original(name) + elements
