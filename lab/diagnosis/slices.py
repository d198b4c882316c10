"""Whether a value is only ever cut down to what one device keeps of it."""

from __future__ import annotations

from collections.abc import Iterator

from lab.diagnosis.flow import CALLS, LAYOUT, Flow, Place, Use
from lab.hlo.text import Computation

ELEMENTWISE = frozenset(
    """add subtract multiply divide maximum minimum negate abs sine cosine tan tanh exponential
    exponential-minus-one log log-plus-one logistic sqrt rsqrt cbrt power select compare and or not xor sign
    floor ceil round-nearest-afz round-nearest-even erf clamp remainder""".split()
)
_OWN = frozenset({"partition-id", "replica-id"})
_CONSTANTS = frozenset({"constant", "iota"})
_MOST = 300


def own_slices(flow: Flow, uses: list[Use]) -> list[Use]:
    """The slices that devices take of a value for themselves, where nothing else is done with it; [] where something
    is."""
    return uses if uses and all(is_own_slice(flow, use) for use in uses) else []


def is_own_slice(flow: Flow, use: Use) -> bool:
    """A slice of a value at an offset that follows from the device's number."""
    return use.number == 0 and use.instruction is not None and is_cut(flow, Place(use.instruction, use.computation))


def is_cut(flow: Flow, place: Place) -> bool:
    """It gives a slice at an offset that follows from the device's number."""
    i, c = place
    return i.opcode == "dynamic-slice" and any(depends_on_device(flow, c, name) for name in i.operands[1:])


def depends_on_device(flow: Flow, computation: Computation, name: str) -> bool:
    """Whether a value follows, in any way, from the device's number."""
    found = computation.by_name.get(name)
    return found is not None and any(
        place.instruction.opcode in _OWN for place in _made_of(flow, Place(found, computation))
    )


def is_known(flow: Flow, place: Place) -> bool:
    """Whether a value follows from constants and the device's number alone."""
    steps = list(_made_of(flow, place))
    ends = [step.instruction.opcode for step in steps if not _makers(flow, step)]
    return len(steps) < _MOST and bool(ends) and all(end in _OWN | _CONSTANTS for end in ends)


def _made_of(flow: Flow, place: Place) -> Iterator[Place]:
    """All that a value is made of, itself first."""
    pending = [place]
    seen: set[tuple[str, str]] = set()
    while pending and len(seen) < _MOST:
        place = pending.pop()
        if (place.computation.name, place.instruction.name) not in seen:
            seen.add((place.computation.name, place.instruction.name))
            yield place
            pending += [] if place.instruction.opcode in _OWN else _makers(flow, place)


def _makers(flow: Flow, place: Place) -> list[Place]:
    i, c = place
    if i.opcode in ("parameter", "get-tuple-element", *LAYOUT):
        source = flow.source(i, c)
        if source != place:
            return [source]
    if i.opcode in CALLS:
        callee = flow.module.called(c, i.attribute("calls") or i.attribute("to_apply"))
        return [] if callee is None or callee.root is None else [Place(callee.root, callee)]
    return [Place(c.by_name[name], c) for name in i.operands if name in c.by_name]
