"""How often a loop runs: the trip count that XLA printed, or the one that follows from condition, start and step.

Integers are followed through the text symbolically. A value is a known `int`, a `Carried` element of the loop's state
plus an offset, or None where it cannot be known. TPU text has no trip counts, so there all of them are found this way.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeGuard

from lab.hlo.shapes import arrays, bits
from lab.hlo.text import PARAMETER, Computation, Instruction, Module, split_outside_brackets

_COMMENT = re.compile(r"/\*.{0,40}?\*/")
_KNOWN_TRIP_COUNT = re.compile(r'"known_trip_count":\s*\{"n":\s*"?(\d{1,18})\b')
"""With quotes as they are: in the names that users give, XLA escapes them."""
_PASS_THROUGH = frozenset(
    {"copy", "copy-start", "copy-done", "bitcast", "reshape", "broadcast", "opt-barrier", "domain"}
)
_CALLS = frozenset({"fusion", "call"})
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
}
_OPPOSITE = {"LT": "GE", "LE": "GT", "GT": "LE", "GE": "LT", "EQ": "NE", "NE": "EQ"}
_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "EQ": "EQ", "NE": "NE"}
_DEEPEST, _MOST_STEPS = 100, 10_000
"""Of one question for a value: a damaged text may lead back to where it came from, or double its ways at every call."""


@dataclass(frozen=True)
class Carried:
    """Element `index` of the loop's state at the start of an iteration, plus `offset`."""

    index: int
    offset: int = 0


Value = int | Carried | None
# The value of element `index` of parameter `number` of a computation (index None: of the parameter itself), asked for
# at some depth.
Parameters = Callable[[int, int | None, int], Value]


def unknown(number: int, index: int | None, depth: int) -> Value:
    """Parameters of which nothing is known."""
    return None


@dataclass(frozen=True)
class Scope:
    """A computation and what is known of its parameters."""

    module: Module
    computation: Computation
    parameters: Parameters = unknown
    _known: dict[tuple[str, int | None], Value] = field(default_factory=dict, compare=False, repr=False)
    _steps: list[int] = field(default_factory=lambda: [0], compare=False, repr=False)

    def inner(self, computation: Computation, parameters: Parameters = unknown) -> Scope:
        return Scope(self.module, computation, parameters, _steps=self._steps)

    def numbers(self) -> tuple[Value, ...]:
        """The parameters, and elements of them, that are integers alone."""
        places: list[tuple[str, int | None]] = []
        for i in self.computation.instructions.having(PARAMETER):
            indices = range(len(_elements(i.shape))) if i.shape.startswith("(") else [None]
            places += [(i.name, index) for index in indices]
        return tuple(self.value(name, index) for name, index in places)

    def value(self, name: str | None, index: int | None = None, depth: int = 0) -> Value:
        """The value of an instruction, or of element `index` of the tuple that it gives."""
        instruction = self.computation.by_name.get(name or "")
        self._steps[0] = 0 if depth == 0 else self._steps[0] + 1
        if instruction is None or depth > _DEEPEST or self._steps[0] > _MOST_STEPS:
            return None
        key = instruction.name, index
        if key not in self._known:
            self._known[key] = None  # What depends on itself, in a damaged text, is not known.
            self._known[key] = self._value(instruction, index, depth + 1)
        return self._known[key]

    def _value(self, instruction: Instruction, index: int | None, depth: int) -> Value:
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "parameter":
            return self.parameters(self.computation.parameters.get(instruction.name, -1), index, depth)
        if opcode == "constant":
            return _constant(instruction)
        if opcode == "get-tuple-element":
            element = instruction.attribute("index")
            return self.value(_at(operands, 0), int(element), depth) if index is None and _is_number(element) else None
        if opcode == "tuple":
            return self.value(_at(operands, index), None, depth)
        if opcode in _PASS_THROUGH:
            return self.value(_at(operands, 0), index, depth)
        if opcode == "convert":
            return self._converted(instruction, self.value(_at(operands, 0), index, depth))
        if opcode in _CALLS:
            return self._called(instruction, index, depth)
        if opcode == "while":
            return self._after_loop(instruction, index, depth)
        if opcode in _ARITHMETIC and len(operands) == 2:
            left, right = (self.value(operand, None, depth) for operand in operands)
            return _wrap(_combine(opcode, left, right), instruction.shape)
        return None

    def root_value(self, index: int | None = None, depth: int = 0) -> Value:
        root = self.computation.root
        return None if root is None else self.value(root.name, index, depth)

    def callee(self, instruction: Instruction) -> Scope | None:
        """The computation that a fusion or call runs, its parameters bound to the operands."""
        name = instruction.attribute("calls") or instruction.attribute("to_apply")
        computation = self.module.called(self.computation, name)
        if computation is None:
            return None
        operands = instruction.operands
        return self.inner(computation, lambda n, i, depth: self.value(_at(operands, n), i, depth))

    def body(self, loop: Instruction) -> Scope | None:
        """The body of a loop: of its state, what no iteration changes keeps the value from before the loop."""
        computation = self.module.called(self.computation, loop.attribute("body"))
        return None if computation is None else self.inner(computation, self._invariants(loop, computation))

    def branches(self, instruction: Instruction) -> Iterator[Scope]:
        """Of a conditional; nothing is known of their parameters."""
        listed = instruction.braced("branch_computations")
        names = (
            re.findall(r"%?([\w.\-]+)", listed)
            if listed
            else [instruction.attribute(f"{which}_computation") for which in ("true", "false")]
        )
        for name in names:
            if branch := self.module.called(self.computation, name):
                yield self.inner(branch)

    def _invariants(self, loop: Instruction, body: Computation) -> Parameters:
        symbolic = self.inner(body, _carried)

        def element(number: int, index: int | None, depth: int) -> Value:
            if index is None or symbolic.root_value(index, depth) != Carried(index):
                return None
            return self.value(_at(loop.operands, 0), index, depth)

        return element

    def _called(self, instruction: Instruction, index: int | None, depth: int) -> Value:
        callee = self.callee(instruction)
        return None if callee is None else callee.root_value(index, depth)

    def _converted(self, convert: Instruction, value: Value) -> Value:
        """A number as the new type has it; of the loop's state what no such type changes."""
        source = self.computation.by_name.get(_at(convert.operands, 0) or "")
        old, new = (_integers(i.shape) if i else None for i in (source, convert))
        if old is None or new is None:
            return None
        is_kept = old == new or (old[0] < new[0] and (new[1] or not old[1]))
        return _wrap(value, convert.shape) if isinstance(value, int) or is_kept else None

    def _after_loop(self, loop: Instruction, index: int | None, depth: int) -> Value:
        computation = self.module.called(self.computation, loop.attribute("body"))
        if index is None or computation is None:
            return None
        unchanged = self.inner(computation, _carried).root_value(index, depth) == Carried(index)
        return self.value(_at(loop.operands, 0), index, depth) if unchanged else None


def trip_count(loop: Instruction, scope: Scope) -> int | None:
    """Iterations of a `while` that stands in `scope`; None where the text does not decide it."""
    known = _KNOWN_TRIP_COUNT.search(loop.extras)
    return int(known[1]) if known else derived_trip_count(loop, scope)


def printed_and_derived(loop: Instruction, scope: Scope) -> tuple[int, int] | None:
    """Both trip counts of a loop where they differ: in a damaged text, or where XLA counts wrongly and runs the loop as
    often as it counted."""
    known = _KNOWN_TRIP_COUNT.search(loop.extras)
    derived = derived_trip_count(loop, scope) if known else None
    return None if known is None or derived in (None, int(known[1])) else (int(known[1]), derived)


def derived_trip_count(loop: Instruction, scope: Scope) -> int | None:
    """The trip count from condition, start and step alone."""
    condition, body = (scope.module.called(scope.computation, loop.attribute(name)) for name in ("condition", "body"))
    if condition is None or body is None:
        return None
    comparison = _comparison(scope.inner(condition, _carried))
    if comparison is None:
        return None
    direction, left, right = comparison
    counter, limit = (_line(value, loop, scope, scope.inner(body, _carried)) for value in (left, right))
    if counter is None or limit is None:
        return None
    (start, step), (bound, drift) = counter, limit
    trips = _iterations(direction, start - bound, step - drift)
    turns = trips or 0
    is_kept = _fits(left, start + turns * step, loop) and _fits(right, bound + turns * drift, loop)
    return trips if is_kept else None


def _comparison(scope: Scope, depth: int = 0) -> tuple[str, Value, Value] | None:
    """Direction and both sides of the comparison that a condition returns."""
    instruction, negated = scope.computation.root, False
    while instruction is not None and instruction.opcode in _PASS_THROUGH | {"not"}:
        negated ^= instruction.opcode == "not"
        instruction = scope.computation.by_name.get(_at(instruction.operands, 0) or "")
    if instruction is None or depth > _DEEPEST:
        return None
    if instruction.opcode in _CALLS:
        callee = scope.callee(instruction)
        inside = None if callee is None else _comparison(callee, depth + 1)
        return (_OPPOSITE[inside[0]], *inside[1:]) if inside and negated else inside
    direction = instruction.attribute("direction")
    if instruction.opcode != "compare" or direction not in _MIRRORED or len(instruction.operands) != 2:
        return None
    left, right = (scope.value(operand) for operand in instruction.operands)
    return _OPPOSITE[direction] if negated else direction, left, right


def counted(loop: Instruction, scope: Scope, index: int) -> tuple[int, int] | None:
    """An element of the state of a `while` that stands in `scope`, as (value in the first iteration, change in each);
    None of what does not count."""
    body = scope.module.called(scope.computation, loop.attribute("body"))
    return None if body is None else _line(Carried(index), loop, scope, scope.inner(body, _carried))


def _line(value: Value, loop: Instruction, outside: Scope, body: Scope) -> tuple[int, int] | None:
    """A side of the condition as (value at the first test, change an iteration)."""
    if not isinstance(value, Carried):
        return None if value is None else (value, 0)
    start = outside.value(_at(loop.operands, 0), value.index)
    after = body.root_value(value.index)
    if not isinstance(start, int) or not isinstance(after, Carried) or after.index != value.index:
        return None
    return start + value.offset, after.offset


def _fits(value: Value, last: int, loop: Instruction) -> bool:
    """Whether a counter ends inside its type: one that wraps around runs on."""
    if not isinstance(value, Carried):
        return True
    elements = _elements(loop.shape)
    shapes = arrays(elements[value.index]) if value.index < len(elements) else ()
    if len(shapes) != 1 or not bits(shapes[0].dtype):
        return True
    size, unsigned = 1 << bits(shapes[0].dtype), shapes[0].dtype.startswith("u")
    return 0 <= last < size if unsigned else -size // 2 <= last < size // 2


def _elements(shape: str) -> list[str]:
    """The types in that of a tuple."""
    return split_outside_brackets(_COMMENT.sub("", shape.strip()[1:-1]))


def _iterations(direction: str, distance: int, step: int) -> int | None:
    """How often `distance + k step` compares true with 0 for k = 0, 1, ... before it first does not."""
    if direction in ("GT", "GE"):
        return _iterations(_MIRRORED[direction], -distance, -step)
    if direction == "EQ":
        return (None if step == 0 else 1) if distance == 0 else 0
    if direction == "NE":
        if distance == 0:
            return 0
        return -distance // step if step and distance % step == 0 and -distance // step > 0 else None
    missing = -distance if direction == "LT" else 1 - distance
    if missing <= 0:
        return 0
    return -(-missing // step) if step > 0 else None


def _carried(number: int, index: int | None, depth: int) -> Value:
    return Carried(index) if number == 0 and index is not None else None


def _at(operands: tuple[str, ...], number: int | None) -> str | None:
    return operands[number] if number is not None and 0 <= number < len(operands) else None


def _constant(instruction: Instruction) -> Value:
    literal = instruction.literal.strip()
    if literal in ("true", "false"):
        return int(literal == "true")
    return int(literal) if _is_number(literal.removeprefix("-")) else None


def _is_number(text: str | None) -> TypeGuard[str]:
    return text is not None and text.isdecimal() and len(text) < 20


def _combine(opcode: str, left: Value, right: Value) -> Value:
    if isinstance(left, int) and isinstance(right, int):
        return _ARITHMETIC[opcode](left, right)
    if isinstance(left, Carried) and isinstance(right, int) and opcode != "multiply":
        return Carried(left.index, _ARITHMETIC[opcode](left.offset, right))
    if isinstance(left, int) and isinstance(right, Carried) and opcode == "add":
        return Carried(right.index, left + right.offset)
    return None


def _integers(shape: str) -> tuple[int, bool] | None:
    """Bits of an array's integers and whether they have a sign; None of what is rounded, or is a truth."""
    of = arrays(shape)
    return (bits(of[0].dtype), of[0].dtype[0] == "s") if len(of) == 1 and of[0].dtype[0] in "su" else None


def _wrap(value: Value, shape: str) -> Value:
    """Adding 4294967295 to a u32 takes one away: offsets are read as signed, values as the type has them."""
    if value is None or (of := _integers(shape)) is None:
        return None
    width, is_signed = of
    if isinstance(value, Carried):
        return Carried(value.index, _signed(value.offset, 1 << width))
    return _signed(value, 1 << width) if is_signed else value % (1 << width)


def _signed(value: int, modulus: int) -> int:
    return (value + modulus // 2) % modulus - modulus // 2
