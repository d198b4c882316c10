"""Whether a value is only ever cut down to what one device keeps of it."""

from __future__ import annotations

from lab.core.known import known
from lab.diagnosis.flow import LAYOUT, Flow, Place, Use
from lab.hlo.text import Computation

ELEMENTWISE = frozenset(
    """add subtract multiply divide maximum minimum negate abs sine cosine tan tanh exponential
    exponential-minus-one log log-plus-one logistic sqrt rsqrt cbrt power select compare and or not xor sign
    floor ceil round-nearest-afz round-nearest-even erf clamp remainder""".split()
)
_OWN = frozenset({"partition-id", "replica-id"})
_MOST = 300


def own_slices(flow: Flow, uses: list[Use]) -> list[Use]:
    """The slices that devices take of a value for themselves, where nothing else is done with it; [] where something
    is."""
    return uses if uses and all(is_own_slice(flow, use) for use in uses) else []


def is_own_slice(flow: Flow, use: Use) -> bool:
    """A slice at an offset that follows from the device's number."""
    return (
        use.opcode == "dynamic-slice"
        and use.number == 0
        and any(depends_on_device(flow, use.computation, name) for name in known(use.instruction).operands[1:])
    )


def depends_on_device(flow: Flow, computation: Computation, name: str) -> bool:
    """Whether a value follows, in any way, from the device's number."""
    found = computation.by_name.get(name)
    pending = [] if found is None else [Place(found, computation)]
    seen: set[tuple[str, str]] = set()
    while pending and len(seen) < _MOST:
        place = pending.pop()
        if place.instruction.opcode in _OWN:
            return True
        if (place.computation.name, place.instruction.name) not in seen:
            seen.add((place.computation.name, place.instruction.name))
            pending += _makers(flow, place)
    return False


def _makers(flow: Flow, place: Place) -> list[Place]:
    i, c = place
    if i.opcode in ("parameter", "get-tuple-element", *LAYOUT):
        source = flow.source(i, c)
        if source != place:
            return [source]
    if i.opcode in ("fusion", "call"):
        callee = flow.module.called(c, i.attribute("calls") or i.attribute("to_apply"))
        return [] if callee is None or callee.root is None else [Place(callee.root, callee)]
    return [Place(c.by_name[name], c) for name in i.operands if name in c.by_name]
