"""Sums that gather: each device adds its own part of a value to zeros (TPUs)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from lab.hlo.calls import target
from lab.hlo.shapes import arrays
from lab.hlo.text import Computation, Instruction, Module

_AS_THEY_ARE = frozenset({"bitcast", "copy", "copy-done", "copy-start"})
MAY_BE_PADDED = _AS_THEY_ARE | {"fusion", "dynamic-update-slice", "get-tuple-element"}
"""No other instruction gives zeros but for a slice."""
_SAME_NUMBER = _AS_THEY_ARE | {"reshape", "convert"}
_DEEPEST = 10
"""Steps to a position: a damaged text may double its ways at every one."""
_ZEROS = frozenset({"0", "-0", "0.0"})


class _Position(NamedTuple):
    """Where a part begins: on device 0, and how far further on each next one; None where a table tells it by the
    device's number, which texts print without its entries."""

    start: int
    step: int | None

    def plus(self, other: _Position) -> _Position | None:
        is_known = self.step is not None and other.step is not None
        return _Position(self.start + other.start, (self.step or 0) + (other.step or 0)) if is_known else None

    def times(self, other: _Position) -> _Position | None:
        if other.step != 0:
            return other.times(self) if self.step == 0 else None
        if self.step is None:
            return self if other.start else None
        return _Position(self.start * other.start, self.step * other.start)


_OF_DEVICE = {"partition-id": _Position(0, 1), "replica-id": _Position(0, 0)}
_LOOKED_UP = _Position(0, None)
_LOOPS = frozenset({"while"})
_OF_SLICE = "SliceId"
"""A custom call: which TPU slice a device is of. All that sum inside of one have the same."""
_PARTITIONS = re.compile(r"\bnum_partitions=(\d{1,9})\b")
_PositionOfParameter = Callable[[int], _Position | None]


def _nowhere(parameter: int) -> None:
    """Of parameters of which nothing is known."""


def is_zero_padded_shard(value: Instruction, computation: Computation, module: Module) -> bool:
    """Whether it is zeros but for the device's own part, as `dynamic-update-slice` makes it, alone or at the end of a
    fusion, which may make something else beside it.

    Parts are the devices' own where each begins at the device's number times its size, or where a table has it by that
    number."""
    if "replica_count=" in module.first_line:  # Of more than one: JAX's programs for TPUs have partitions.
        return False
    if value.opcode in _AS_THEY_ARE:
        value = _source(value, computation)
    element = value if value.opcode == "get-tuple-element" else None
    if element is not None:
        value = _defined(element, 0, computation) or element
    if value.opcode != "fusion":
        return (
            value.opcode == "dynamic-update-slice"
            and _is_zeros(_defined(value, 0, computation), computation)
            and _is_own_part(value, computation, module, _nowhere)
        )
    fused = module.computations.get(value.attribute("calls") or "")
    if fused is None or fused.root is None:
        return False
    written = _written(fused.root, fused, element)
    if written is None or written.opcode != "dynamic-update-slice":
        return False

    def outside(number: int) -> _Position | None:
        return _position(_defined(value, number, computation), computation, module, _nowhere)

    if not _is_own_part(written, fused, module, outside):
        return False
    into = _defined(written, 0, fused)
    if into is not None and into.opcode == "parameter":
        return _is_zeros(_defined(value, fused.parameters.get(into.name, 0), computation), computation)
    return _is_zeros(into, fused)


def _written(root: Instruction, fused: Computation, element: Instruction | None) -> Instruction | None:
    """What a fusion ends with; or of several the one that an element of its result is."""
    if element is None:
        return _source(root, fused)
    index = (element.attribute("index") or "")[:9]
    made = _defined(root, int(index), fused) if root.opcode == "tuple" and index.isdecimal() else None
    return made and _source(made, fused)


def _is_own_part(written: Instruction, computation: Computation, module: Module, outside: _PositionOfParameter) -> bool:
    """Whether parts of no two devices lie in the same place."""
    part = _defined(written, 1, computation)
    sizes = arrays(part.shape) if part else ()
    starts = range(2, len(written.operands))
    at = [_position(_defined(written, n, computation), computation, module, outside) for n in starts]
    if len(sizes) != 1 or len(at) != len(sizes[0].dims):
        return False
    moved = [(one, size) for one, size in zip(at, sizes[0].dims, strict=True) if one != _Position(0, 0)]
    return len(moved) == 1 and moved[0][0] in (_Position(0, moved[0][1]), _LOOKED_UP)


def _position(
    value: Instruction | None, computation: Computation, module: Module, outside: _PositionOfParameter, depth: int = 0
) -> _Position | None:
    """Of a module of one replica, in which a device's number is its partition's; None where it cannot be known."""
    if value is None or depth > _DEEPEST:
        return None
    if value.opcode in _SAME_NUMBER:
        return _position(_defined(value, 0, computation), computation, module, outside, depth + 1)
    if value.opcode == "parameter":
        number = computation.parameters.get(value.name)
        return None if number is None else outside(number)
    if value.opcode == "get-tuple-element":
        before = _before_loop(value, computation, module)
        return before and _position(*before, module, _nowhere, depth + 1)
    if value.opcode == "constant":
        printed = value.literal.strip("{}")
        is_number = printed.isdecimal() and len(printed) < 20
        return _Position(int(printed), 0) if is_number else None
    if value.opcode in _OF_DEVICE:
        return _OF_DEVICE[value.opcode]
    if value.opcode == "custom-call":
        return _Position(0, 0) if target(value) == _OF_SLICE else None
    if value.opcode == "clamp":
        least, at, most = (
            _position(_defined(value, n, computation), computation, module, outside, depth + 1) for n in range(3)
        )
        return at if least == _Position(0, 0) and _is_beyond_devices(most, module) else None
    if value.opcode == "dynamic-slice":
        asked = _position(_defined(value, 1, computation), computation, module, outside, depth + 1)
        is_own = asked == _OF_DEVICE["partition-id"] and _is_table(_defined(value, 0, computation), computation, module)
        return _LOOKED_UP if is_own else None
    if value.opcode not in ("add", "multiply"):
        return None
    operands = (_defined(value, n, computation) for n in (0, 1))
    one, other = (_position(operand, computation, module, outside, depth + 1) for operand in operands)
    if one is None or other is None:
        return None
    return one.plus(other) if value.opcode == "add" else one.times(other)


def _is_beyond_devices(bound: _Position | None, module: Module) -> bool:
    found = _PARTITIONS.search(module.first_line)
    return bound is not None and bound.step == 0 and found is not None and bound.start >= int(found[1]) - 1


def _is_table(value: Instruction | None, computation: Computation, module: Module) -> bool:
    for _ in range(_DEEPEST):
        if value is None or (value := _source(value, computation)).opcode != "get-tuple-element":
            break
        value, computation = _before_loop(value, computation, module) or (None, computation)
    return value is not None and value.opcode == "constant"


def _before_loop(
    element: Instruction, computation: Computation, module: Module
) -> tuple[Instruction | None, Computation] | None:
    """What an element of a loop's state, in its body or after it, is before the loop, where no iteration changes it."""
    state, index = _defined(element, 0, computation), (element.attribute("index") or "")[:9]
    if state is None or not index.isdecimal():
        return None
    if state.opcode == "while":
        loop, around, body = state, computation, module.computations.get(state.attribute("body") or "")
    else:
        loops = [(one, other) for one, other in module.having(_LOOPS) if one.attribute("body") == computation.name]
        if state.opcode != "parameter" or len(loops) != 1:
            return None
        (loop, around), body = loops[0], computation
    before = _defined(loop, 0, around)
    if body is None or before is None or before.opcode != "tuple" or not _is_kept(int(index), body):
        return None
    return _defined(before, int(index), around), around


def _is_kept(index: int, body: Computation) -> bool:
    """Whether each iteration gives on an element of the state as it is."""
    root = body.root
    after = _defined(root, index, body) if root is not None and root.opcode == "tuple" else None
    if after is None or after.opcode != "get-tuple-element" or after.attribute("index") != str(index):
        return False
    state = _defined(after, 0, body)
    return state is not None and state.opcode == "parameter"


def _source(value: Instruction, computation: Computation) -> Instruction:
    """The value itself, wherever it was copied to."""
    seen = {value.name}  # In a damaged text copies may be of each other.
    while value.opcode in _AS_THEY_ARE and (source := _defined(value, 0, computation)) and source.name not in seen:
        value = source
        seen.add(value.name)
    return value


def _defined(value: Instruction, number: int, computation: Computation) -> Instruction | None:
    """What defines an operand; None where the text, damaged, lacks it."""
    operands = value.operands
    return computation.by_name.get(operands[number]) if number < len(operands) else None


def _is_zeros(broadcast: Instruction | None, computation: Computation) -> bool:
    if broadcast is None or broadcast.opcode != "broadcast":
        return False
    constant = _defined(broadcast, 0, computation)
    return constant is not None and constant.opcode == "constant" and constant.literal in _ZEROS
