"""Whole numbers that a program computes from the device's own number and the iteration of a loop, such as where a part
of an array begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from operator import add, and_, eq, ge, gt, le, lshift, lt, mul, ne, rshift, sub
from typing import Any

from lab.diagnosis.flow import Flow, Place
from lab.hlo.loops import Scope, counted


def _quotient(a: int, b: int) -> int:
    """Towards zero, as XLA divides."""
    found = abs(a) // abs(b)
    return found if (a < 0) == (b < 0) else -found


_TWO: Mapping[str, Callable[[int, int], int]] = {
    "add": add,
    "subtract": sub,
    "multiply": mul,
    "divide": _quotient,
    "remainder": lambda a, b: a - b * _quotient(a, b),
    "and": and_,
    "shift-left": lshift,
    "shift-right-logical": rshift,
    "maximum": max,
    "minimum": min,
}
_COMPARE: Mapping[str, Callable[[int, int], bool]] = {"LT": lt, "LE": le, "GT": gt, "GE": ge, "EQ": eq, "NE": ne}
_DEEPEST = 24


def number_on(flow: Flow, place: Place, device: int | None, iteration: int = 0, depth: int = 0) -> int | None:
    """A number as one device computes it, inside a loop in one iteration; None where it depends on anything but these,
    or is not understood."""
    way = list(flow.back(*place))
    found = next((found for step in way if iteration and (found := _loop_of_state(flow, step))), None)
    if found is not None:
        loop, element = found
        line = counted(loop.instruction, Scope(flow.module, loop.computation), element)
        return None if line is None else line[0] + iteration * line[1]
    i, c = way[-1]
    if depth > _DEEPEST:
        return None
    if i.opcode == "constant":
        return int(i.literal) if i.literal.lstrip("-").isdecimal() and len(i.literal) < 20 else None
    if i.opcode == "partition-id":
        return device
    sides = [Place(c.by_name[name], c) for name in i.operands if name in c.by_name]
    known = [number_on(flow, side, device, iteration, depth + 1) for side in sides]
    numbers = [number for number in known if number is not None]
    if len(numbers) != len(i.operands):
        return None
    if i.opcode in _TWO and len(numbers) == 2 and _is_defined(i.opcode, *numbers):
        return _TWO[i.opcode](*numbers)
    if i.opcode == "compare" and (compare := _COMPARE.get(i.attribute("direction") or "")):
        return int(compare(*numbers))
    if i.opcode == "clamp" and len(numbers) == 3:
        return min(max(numbers[0], numbers[1]), numbers[2])
    if i.opcode == "select" and len(numbers) == 3:
        return numbers[1] if numbers[0] else numbers[2]
    return None


def _is_defined(opcode: str, a: int, b: int) -> bool:
    """Whatever the width of the type."""
    if opcode.startswith("shift"):
        return a >= 0 and 0 <= b < 32
    return b != 0 or opcode not in ("divide", "remainder")


def _loop_of_state(flow: Flow, step: Place) -> tuple[Place, int] | None:
    """The loop whose state's element a value is, and which."""
    i, c = step
    index = i.attribute("index") if i.opcode == "get-tuple-element" and i.operands[0] in c.parameters else None
    loops = [place for place in flow.callers(c) if place.instruction.attribute("body") == c.name]
    return (loops[0], int(index)) if len(loops) == 1 and index and index.isdecimal() else None


def is_rising(places: Sequence[Any]) -> bool:
    """Each comes after the one before it."""
    return all(one < other for one, other in pairwise(places))
