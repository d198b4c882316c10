"""Whole numbers that a program computes from the device's own number, such as where its part of an array begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import add, and_, floordiv, ge, gt, le, lt, mod, mul, sub

from lab.diagnosis.flow import Flow, Place

_TWO: Mapping[str, Callable[[int, int], int]] = {
    "add": add,
    "subtract": sub,
    "multiply": mul,
    "divide": floordiv,
    "remainder": mod,
    "and": and_,
    "maximum": max,
    "minimum": min,
}
_COMPARE: Mapping[str, Callable[[int, int], bool]] = {"LT": lt, "LE": le, "GT": gt, "GE": ge}
_DEEPEST = 24


def number_on(flow: Flow, place: Place, device: int, depth: int = 0) -> int | None:
    """A number as one device computes it; None where it depends on anything but the device, or is not understood."""
    i, c = flow.source(*place)
    if depth > _DEEPEST:
        return None
    if i.opcode == "constant":
        return int(i.literal) if i.literal.lstrip("-").isdecimal() and len(i.literal) < 20 else None
    if i.opcode == "partition-id":
        return device
    sides = [Place(c.by_name[name], c) for name in i.operands if name in c.by_name]
    known = [number_on(flow, side, device, depth + 1) for side in sides]
    numbers = [number for number in known if number is not None]
    if len(numbers) != len(i.operands):
        return None
    if i.opcode in _TWO and len(numbers) == 2 and (numbers[1] or i.opcode not in ("divide", "remainder")):
        return _TWO[i.opcode](*numbers)
    if i.opcode == "compare" and (compare := _COMPARE.get(i.attribute("direction") or "")):
        return int(compare(*numbers))
    if i.opcode == "select" and len(numbers) == 3:
        return numbers[1] if numbers[0] else numbers[2]
    return None
