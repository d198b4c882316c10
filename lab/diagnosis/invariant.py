"""Whether a value of a loop's body is the same in every iteration."""

from __future__ import annotations

from lab.diagnosis.flow import LAYOUT, Flow, Place
from lab.hlo.text import Computation, Instruction

# What gives the same where it is given the same; random numbers, messages and inner loops are looked at no further.
_NOT_ALIKE = frozenset(
    """while conditional parameter rng rng-bit-generator rng-get-and-update-state infeed outfeed send send-done recv
    recv-done custom-call async-start""".split()
)
_FARTHEST = 300


def is_invariant(flow: Flow, place: Place, body: Computation) -> bool:
    """All that the value is made of lies before the loop: elements of its state that no iteration changes."""
    pending = [place]
    seen: set[tuple[str, str]] = set()
    while pending:
        way = list(flow.back(*pending.pop()))
        states = [i for i, c in way if i.opcode == "get-tuple-element" and _is_state(i, c, body)]
        i, c = way[-1]
        if (c.name, i.name) in seen:
            continue
        seen.add((c.name, i.name))
        if states:
            if not _is_kept(states[0].attribute("index"), body):
                return False
        elif len(seen) > _FARTHEST or i.opcode in _NOT_ALIKE:
            return False
        else:
            pending += [Place(c.by_name[name], c) for name in i.operands if name in c.by_name]
    return True


def _is_state(element: Instruction, computation: Computation, body: Computation) -> bool:
    found = computation.by_name.get(element.operands[0]) if element.operands else None
    return computation is body and found is not None and found.opcode == "parameter"


def _is_kept(index: str | None, body: Computation) -> bool:
    """The next iteration has this element as it was."""
    root = body.root
    if (
        root is None
        or root.opcode != "tuple"
        or index is None
        or not index.isdecimal()
        or int(index) >= len(root.operands)
    ):
        return False
    after = body.by_name.get(root.operands[int(index)])
    for _ in range(_FARTHEST):
        if after is None or not after.operands or after.opcode not in LAYOUT - {"get-tuple-element"}:
            break
        after = body.by_name.get(after.operands[0])
    return (
        after is not None
        and after.opcode == "get-tuple-element"
        and after.attribute("index") == index
        and _is_state(after, body, body)
    )


def loop_of(flow: Flow, computation: Computation) -> Computation | None:
    """The body of the innermost loop that a computation runs in."""
    for _ in range(_FARTHEST):
        callers = flow.callers(computation)
        if any(caller.opcode == "while" and caller.attribute("body") == computation.name for caller, _ in callers):
            return computation
        if not callers:
            return None
        computation = callers[0].computation
    return None
