"""Values that XLA packs into one flat array, to move them in one collective: by a concatenation or, on TPUs, by writing
one after the other, or as the largest of all, each padded to its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from lab.hlo.shapes import Shape, arrays
from lab.hlo.text import Computation, Instruction, Module

_PASSED_ON = frozenset({"bitcast", "reshape", "copy", "transpose", "convert"})
PACKS = frozenset({"concatenate", "dynamic-update-slice", "pad"})
_PADDING = re.compile(r"^(\d+)_\d+$")
FILLS = 'custom_call_target="ZeroCrop"'
_MOST_PIECES = 1 << 12
_FARTHEST = 100
"""Of a value: only a damaged text's are made of each other."""


class Piece(NamedTuple):
    """Of a packed array.

    Attributes:
      source: what makes it, by its name where the array is made; empty where it is computed as it is packed.
      filling: bytes after it that mean nothing.
    """

    shape: Shape
    source: str
    filling: int = 0


class _Written(NamedTuple):
    start: int
    piece: Piece


class _Place(NamedTuple):
    """A value of a computation, and of a fused one what stands for its parameters."""

    name: str
    computation: Computation
    arguments: tuple[_Place, ...] = ()

    @property
    def instruction(self) -> Instruction | None:
        return self.computation.by_name.get(self.name)

    def operands(self) -> tuple[_Place, ...]:
        found = self.instruction.operands if self.instruction else ()
        return tuple(self._replace(name=name) for name in found)

    def outside(self) -> _Place | None:
        """What is passed for a parameter of a fused computation."""
        number = self.computation.parameters.get(self.name) if self.arguments else None
        return None if number is None or number >= len(self.arguments) else self.arguments[number]


def pieces(name: str, computation: Computation, module: Module, packed_by: frozenset[str] = PACKS) -> tuple[Piece, ...]:
    """The pieces of a packed array, first to last, of the last with what fills the array up; () of another one, and
    where they do not make up the whole.

    Args:
      packed_by: operations that are taken for packing.
    """
    place = _Place(name, computation)
    own = _filled(place)
    packed, whole = _shape(own or place), _shape(place)
    if packed is None or whole is None:
        return ()
    written = sorted(_written(own or place, packed.elements, module, packed_by), key=lambda one: one.start)
    end = 0
    for start, piece in written[:_MOST_PIECES]:
        if start != end or piece.shape.dtype != packed.dtype:
            return ()
        end += piece.shape.elements
    found = [one.piece for one in written] if end == packed.elements else []
    return (*found[:-1], *(piece._replace(filling=whole.bytes - packed.bytes) for piece in found[-1:]))


def filled_from_bytes(name: str, computation: Computation) -> int | None:
    """Of a value that a TPU's compiler fills up to whole tiles, before it is summed inside a slice or after: its own
    bytes; None of another one."""
    place = _Place(name, computation)
    own = _filled(place) or _filled(_before_sum(place))
    shape = _shape(own) if own else None
    return shape.bytes if shape else None


def _filled(place: _Place) -> _Place | None:
    """What a value was filled up from: by a call, or where a smaller one is taken for it with its tile."""
    for _ in range(_FARTHEST):
        instruction = place.instruction
        if instruction is None or not instruction.operands:
            break
        inner = place.operands()[0]
        if instruction.opcode == "custom-call" and FILLS in instruction.attributes:
            return inner
        if instruction.opcode != "bitcast":
            break
        before, after = _shape(inner), _shape(place)
        if before is not None and after is not None and before.bytes < after.bytes:
            return inner
        place = inner
    return None


def _before_sum(place: _Place) -> _Place:
    """What an all-reduce, of one value or of several, makes a value of; where none does, the value in some shape."""
    for _ in range(_FARTHEST):
        instruction = place.instruction
        if instruction is None or not instruction.operands:
            break
        first, index = place.operands()[0], instruction.attribute("index") or ""
        if instruction.opcode == "all-reduce":
            return first
        if instruction.opcode == "get-tuple-element" and index.isdecimal() and first.instruction is not None:
            is_sum = first.instruction.opcode == "all-reduce"
            return next(iter(first.operands()[int(index) :]), place) if is_sum else place
        if instruction.opcode != "bitcast":
            break
        place = first
    return place


def _written(start: _Place, elements: int, module: Module, packed_by: frozenset[str]) -> Iterator[_Written]:
    """What is written to which place of a flat array of so many elements."""
    pending = [start]
    for _ in range(_MOST_PIECES):
        if not pending:
            return
        place = pending.pop()
        instruction, operands, shape = place.instruction, place.operands(), _shape(place)
        if instruction is None or shape is None or shape.elements != elements:
            continue
        fused = _fused(place, module)
        if outside := place.outside():
            pending.append(outside)
        elif fused is not None:
            pending.append(fused)
        elif instruction.opcode in _PASSED_ON or instruction.opcode == "maximum":
            pending += operands
        elif len(shape.dims) != 1 or instruction.opcode not in packed_by:
            continue
        elif instruction.opcode == "concatenate":
            at = 0
            for operand in operands:
                yield from _piece(operand, at)
                at += known_elements(operand)
        elif instruction.opcode == "dynamic-update-slice" and len(operands) == 3:
            pending.append(operands[0])
            yield from _piece(operands[1], _constant(operands[2]))
        elif instruction.opcode == "pad" and (padding := _PADDING.match(instruction.attribute("padding") or "")):
            yield from _piece(operands[0], int(padding[1]))


def _piece(value: _Place, start: int | None) -> Iterator[_Written]:
    shape = _shape(value)
    if shape is not None and start is not None:
        yield _Written(start, Piece(shape, _source(value)))


def known_elements(value: _Place) -> int:
    shape = _shape(value)
    return shape.elements if shape else 0


def _source(value: _Place) -> str:
    """The name of the value outside of fusions, in whatever shape."""
    for _ in range(_FARTHEST):
        if not value.arguments:
            return value.name
        outside, instruction = value.outside(), value.instruction
        if outside is not None:
            value = outside
        elif instruction is not None and instruction.opcode in _PASSED_ON and instruction.operands:
            value = value._replace(name=instruction.operands[0])
        else:
            break
    return ""


def _fused(place: _Place, module: Module) -> _Place | None:
    instruction = place.instruction
    if instruction is None or instruction.opcode != "fusion":
        return None
    called = module.computations.get(instruction.attribute("calls") or "")
    return _Place(called.root.name, called, place.operands()) if called is not None and called.root else None


def _shape(place: _Place) -> Shape | None:
    """Of one array."""
    found = arrays(place.instruction.shape) if place.instruction else ()
    return found[0] if len(found) == 1 else None


def _constant(place: _Place) -> int | None:
    instruction = place.instruction
    is_number = instruction is not None and instruction.opcode == "constant" and instruction.literal.isdecimal()
    return int(instruction.literal) if instruction is not None and is_number else None
