"""Along which axes of the mesh a value may differ between devices: from shardings of arguments, through the
instructions, loops included.

What is not known to be equal counts as different, so that "nothing varies there" is certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce

from lab.core.ledger import Transfer
from lab.diagnosis.slices import ELEMENTWISE
from lab.diagnosis.specs import Dims
from lab.hlo import calls, collectives, flops
from lab.hlo.text import Computation, Instruction, Module
from lab.hlo.walk import Visit
from lab.meshes.axes import Axes

Value = frozenset[str] | tuple["Value", ...]
"""The axes along which an array varies; of a tuple, those of each element."""

_NOTHING: frozenset[str] = frozenset()
_OWN = frozenset(
    {
        "partition-id",
        "replica-id",
        "recv",
        "recv-done",
        "infeed",
        "send",
        "rng",
        "rng-bit-generator",
        "rng-get-and-update-state",
        "outfeed",
    }
)
_EQUAL_AFTER = ("all-reduce", "all-gather", "collective-broadcast")
_MIXES = ("reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute")
_ASKED = collectives.OPCODES | flops.OPCODES | {"reduce"}
_WRAPS = frozenset({"fusion", "call", "async-start", "fusion-start", "call-start"})
_NOT_SIMPLE = _ASKED | _OWN | _WRAPS | {"while", "conditional", "tuple", "custom-call"}
# The most frequent of those that give what their operands are, so that they need not be told from the others.
_PLAIN = ELEMENTWISE | frozenset(
    """bitcast reshape transpose broadcast convert slice reduce dot constant iota pad concatenate
    dynamic-slice""".split()
)


def joined(value: Value) -> frozenset[str]:
    """All axes along which any element varies."""
    return value if isinstance(value, frozenset) else frozenset().union(*map(joined, value))


def _all(used: Sequence[Value]) -> frozenset[str]:
    """All axes along which any of these varies."""
    if used and isinstance(used[0], frozenset) and all(value is used[0] for value in used):
        return used[0]
    return _NOTHING.union(*map(joined, used))


@dataclass
class Variation:
    """The axes along which each operand of a collective, a product or a reduction varies, by computation and
    instruction, and those of each loop's state, by its body; of several calls, all together."""

    module: Module
    axes: Axes | None
    operands: dict[tuple[str, str], tuple[frozenset[str], ...]] = field(default_factory=dict)
    states: dict[str, Value] = field(default_factory=dict)
    _values: set[frozenset[str]] = field(default_factory=set)
    _simple: dict[str, bool] = field(default_factory=dict)
    _done: dict[tuple[str, tuple[Value, ...]], Value] = field(default_factory=dict)
    _axes: Mapping[tuple[str, str], frozenset[str] | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        module: Module,
        axes: Axes | None,
        given: Mapping[str, Dims | None],
        transfers: Iterable[tuple[Transfer, Visit]],
    ) -> Variation:
        """Args: given: how each argument's dims are split, by the name of its instruction; transfers: each with where
        it stands."""
        spanned = {
            (v.computation.name, v.instruction.name): None if t.axes is None else frozenset(t.axes)
            for t, v in transfers
        }
        variation = cls(module, axes, _axes=spanned)
        entry = module.entry
        if entry is not None:
            values = {name: variation._given(given.get(name)) for name in entry.parameters}
            variation._values |= set(values.values())
            variation._run(entry, dict(values))
        return variation

    @cached_property
    def everything(self) -> frozenset[str]:
        return frozenset(name for name, size in self.axes.shape.items() if size > 1) if self.axes else _NOTHING

    @property
    def anywhere(self) -> frozenset[str]:
        """The axes along which any value varies."""
        return _NOTHING.union(*self._values)

    def along(self, visit: Visit, number: int | None = None) -> frozenset[str]:
        """The axes along which an operand of an instruction varies, or any of its operands."""
        used = self.operands.get((visit.computation.name, visit.instruction.name), (self.everything,))
        return _NOTHING.union(*used) if number is None else used[number]

    def of_operands(self, instruction: Instruction, computation: Computation) -> frozenset[str]:
        """The axes along which any operand of a collective, a product or a reduction varies."""
        return _NOTHING.union(*self.operands.get((computation.name, instruction.name), (self.everything,)))

    def of_state(self, body: Computation, element: int) -> frozenset[str]:
        """The axes along which an element of a loop's state varies."""
        return joined(self._element(self.states.get(body.name, self.everything), str(element)))

    def _given(self, dims: Dims | None) -> frozenset[str]:
        return self.everything if dims is None else frozenset(axis for names in dims for axis in names)

    def _run(self, computation: Computation, values: dict[str, Value]) -> Value:
        everything = self.everything
        for i in computation.instructions:
            if i.opcode != "parameter" or i.name not in values:
                used = [values.get(name, everything) for name in i.operands]
                if i.opcode in _ASKED:
                    self._keep((computation.name, i.name), tuple(map(joined, used)))
                value = values[i.name] = self._value(i, computation, used)
                if isinstance(value, frozenset):
                    self._values.add(value)
        return values.get(computation.root.name, everything) if computation.root else everything

    def _keep(self, key: tuple[str, str], varies: tuple[frozenset[str], ...]) -> None:
        before = self.operands.get(key)
        self.operands[key] = varies if before is None else tuple(map(frozenset.union, before, varies))

    def _value(self, i: Instruction, c: Computation, used: Sequence[Value]) -> Value:
        if i.opcode in _PLAIN:
            return _all(used)
        opcode = i.opcode.removesuffix("-start")
        if i.opcode in _OWN:
            return self.everything
        if opcode in _EQUAL_AFTER + _MIXES:
            return self._after_collective(opcode, (c.name, i.name), used)
        if i.opcode == "tuple":
            return tuple(used)
        if i.opcode == "get-tuple-element":
            return self._element(used[0], i.attribute("index"))
        if i.opcode == "while":
            return self._loop(i, c, used[0])
        if i.opcode == "conditional":
            return self._chosen(i, c, used)
        if i.opcode in calls.OPCODES and calls.may_differ(i):
            return self.everything
        if i.opcode in _WRAPS and "=" in i.tail:
            callee = self.module.called(c, i.attribute("calls") or i.attribute("to_apply"))
            return _all(used) if callee is None or self._is_simple(callee) else self._called(callee, tuple(used))
        if used and (i.opcode in ("copy", "opt-barrier") or i.opcode.endswith("-done")):
            return used[0]
        return _all(used) if i.opcode != "parameter" else self.everything

    def _after_collective(self, opcode: str, key: tuple[str, str], used: Sequence[Value]) -> Value:
        axes = self._axes.get(key)
        if opcode in _EQUAL_AFTER:
            after = tuple(joined(one) - (axes or _NOTHING) for one in used)
            return after if len(after) > 1 else joined(after)
        return frozenset().union(*map(joined, used)) | (self.everything if axes is None else axes)

    def _element(self, value: Value, index: str | None) -> Value:
        if isinstance(value, frozenset) or index is None or int(index) >= len(value):
            return joined(value)
        return value[int(index)]

    def _is_simple(self, callee: Computation) -> bool:
        """It gives one value, in which nothing of a device's own comes in, and nobody asks what is inside."""
        if callee.name not in self._simple:
            self._simple[callee.name] = not any(i.opcode in _NOT_SIMPLE for i in callee.instructions)
        return self._simple[callee.name]

    def _called(self, callee: Computation | None, used: tuple[Value, ...]) -> Value:
        if callee is None:
            return _all(used)
        key = callee.name, used
        if key not in self._done:
            values = {
                name: used[number] if number < len(used) else self.everything
                for name, number in callee.parameters.items()
            }
            self._done[key] = self._run(callee, values)
        return self._done[key]

    def _chosen(self, i: Instruction, c: Computation, used: Sequence[Value]) -> Value:
        """What any of the branches gives; which of them runs may differ between devices, where what asks does."""
        branches = [self.module.called(c, name) for name in i.callees]
        if not branches or None in branches or len(branches) >= len(used):
            return self.everything
        given = [self._called(branch, (one,)) for branch, one in zip(branches, used[1:], strict=False)]
        decided = joined(used[0])
        return reduce(_union, (*given, decided) if decided else given)

    def _loop(self, loop: Instruction, c: Computation, state: Value) -> Value:
        """The state after any number of iterations: it grows until an iteration adds nothing, at most once for each
        axis and element."""
        body = self.module.called(c, loop.attribute("body"))
        condition = self.module.called(c, loop.attribute("condition"))
        for _ in range(1 + len(self.everything) * (1 if isinstance(state, frozenset) else len(state))):
            after = _union(state, self._called(body, (state,)))
            if after == state:
                break
            state = after
        if body is not None:
            self.states[body.name] = _union(self.states.get(body.name, state), state)
        # How often it runs may differ between devices, where its condition does.
        decided = joined(self._called(condition, (state,))) if condition else _NOTHING
        return _union(state, decided) if decided else state


def _union(one: Value, other: Value) -> Value:
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return tuple(map(_union, one, other))
    if isinstance(one, tuple) and isinstance(other, frozenset):
        return tuple(_union(each, other) for each in one)
    return joined(one) | joined(other)
