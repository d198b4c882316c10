"""Where a value of compiled text comes from and where it goes, through fusions, calls and loops, and through what only
lays it out anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from lab.hlo.shapes import arrays
from lab.hlo.text import RUNS_CALLEE, Computation, Instruction, Module

LAYOUT = frozenset(
    """copy copy-start copy-done bitcast bitcast-convert transpose reshape convert get-tuple-element opt-barrier
    all-gather-done all-reduce-done reduce-scatter-done all-to-all-done collective-permute-done async-done
    async-update fusion-done call-done""".split()
)
SCALES = ("multiply", "divide")
CALLS = frozenset({"fusion", "call", "async-start", "fusion-start", "call-start"})
"""Each operand is a parameter of the one computation that they run, and its root their result, or what awaits them
gives."""
_FARTHEST = 400


class Place(NamedTuple):
    """An instruction and the computation that holds it."""

    instruction: Instruction
    computation: Computation


class Use(NamedTuple):
    """An instruction that does something with a value, which is its operand `number`; the entry's root is a use of
    opcode None."""

    instruction: Instruction | None
    computation: Computation
    number: int
    path: tuple[Instruction, ...] = ()

    @property
    def opcode(self) -> str | None:
        return self.instruction.opcode if self.instruction else None


@dataclass(frozen=True)
class Flow:
    """The paths of values through a module."""

    module: Module

    @cached_property
    def _callers(self) -> dict[str, list[Place]]:
        found: dict[str, list[Place]] = {}
        for computation in self.module.computations.values():
            for instruction in computation.instructions:
                if instruction.opcode in RUNS_CALLEE and "=" in instruction.tail:
                    for name in instruction.callees:
                        found.setdefault(name, []).append(Place(instruction, computation))
        return found

    @cached_property
    def home(self) -> dict[Instruction, Computation]:
        """The computation of each multiplication and division."""
        return {i: c for c in self.module.computations.values() for i in c.instructions if i.opcode in SCALES}

    @cached_property
    def _users(self) -> dict[str, dict[str, list[tuple[Instruction, int]]]]:
        return {}

    def users(self, computation: Computation, name: str) -> list[tuple[Instruction, int]]:
        """The instructions of the same computation that name it as an operand, with the operand's number."""
        if computation.name not in self._users:
            table: dict[str, list[tuple[Instruction, int]]] = {}
            for instruction in computation.instructions:
                for number, operand in enumerate(instruction.operands):
                    table.setdefault(operand, []).append((instruction, number))
            self._users[computation.name] = table
        return self._users[computation.name].get(name, [])

    def callers(self, computation: Computation) -> list[Place]:
        return self._callers.get(computation.name, [])

    def loops(self, computation: Computation) -> frozenset[str]:
        """The bodies of the loops that a computation runs in."""
        found: set[str] = set()
        pending = [computation]
        while pending and len(found) < _FARTHEST:
            inner = pending.pop()
            for caller, outer in self.callers(inner):
                found |= {inner.name} if caller.opcode == "while" else set()
                pending.append(outer)
        return frozenset(found)

    def source(
        self, instruction: Instruction, computation: Computation, through: frozenset[str] = frozenset()
    ) -> Place:
        """Where the value of an instruction is made: the first instruction, going back, that does more than lay it out
        anew.

        Args:
          through: opcodes to pass all the same, along their first operand.
        """
        return list(self.back(instruction, computation, through))[-1]

    def back(
        self, instruction: Instruction, computation: Computation, through: frozenset[str] = frozenset()
    ) -> Iterator[Place]:
        """The instructions on the way back to where a value is made, that one included."""
        index: int | None = None
        seen: set[tuple[str, str, int | None]] = set()
        calls: list[Place] = []
        while (computation.name, instruction.name, index) not in seen and len(seen) < _FARTHEST:
            seen.add((computation.name, instruction.name, index))
            yield Place(instruction, computation)
            step = self._before(instruction, computation, index, through, calls)
            if step is None:
                return
            instruction, computation, index = step

    def _before(
        self, i: Instruction, c: Computation, index: int | None, through: frozenset[str], calls: list[Place]
    ) -> tuple[Instruction, Computation, int | None] | None:
        if i.opcode == "parameter":
            return self._argument(i, c, index, calls)
        if i.opcode in CALLS:
            callee = self.module.called(c, i.attribute("calls") or i.attribute("to_apply"))
            if callee is None or callee.root is None:
                return None
            calls.append(Place(i, c))
            return callee.root, callee, index
        if i.opcode == "while":
            return self._operand(i, c, 0, index)
        if i.opcode == "tuple" and index is not None:
            return self._operand(i, c, index, None)
        if i.opcode == "get-tuple-element":
            element = i.attribute("index")
            return self._operand(i, c, 0, int(element)) if element and element.isdigit() else None
        if i.opcode in LAYOUT or i.opcode in through:
            if index is not None and len(i.operands) > 1:
                return self._operand(i, c, index, None)
            return self._operand(i, c, 0, index)
        return None

    def _argument(
        self, i: Instruction, c: Computation, index: int | None, calls: list[Place]
    ) -> tuple[Instruction, Computation, int | None] | None:
        """From a parameter to what the caller hands over."""
        if calls and calls[-1].instruction.opcode in CALLS:
            caller: Place | None = calls.pop()
        else:
            caller = next(iter(self.callers(c)), None)
        if caller is None or caller.instruction.opcode not in CALLS | {"while"}:
            return None
        number = 0 if caller.instruction.opcode == "while" else c.parameters.get(i.name, -1)
        return self._operand(caller.instruction, caller.computation, number, index)

    def _operand(
        self, i: Instruction, c: Computation, number: int, index: int | None
    ) -> tuple[Instruction, Computation, int | None] | None:
        operands = i.operands
        found = c.by_name.get(operands[number]) if 0 <= number < len(operands) else None
        return None if found is None else (found, c, index)

    def uses(
        self,
        instruction: Instruction,
        computation: Computation,
        through: frozenset[str] = frozenset(),
        element: int | None = None,
        without: Callable[[Instruction], bool] = lambda _: False,
    ) -> list[Use]:
        """What is done with a value, in the end.

        Args:
          through: opcodes to follow all the same, to what their result is used for.
          element: of a tuple, the element that is asked for.
          without: instructions that are left out, with all that is done with what they give.
        """
        found: list[Use] = []
        seen: set[tuple[str, str, int | None]] = set()
        pending: list[tuple[Instruction, Computation, int | None, tuple[Instruction, ...]]] = [
            (instruction, computation, element, ())
        ]
        while pending and len(seen) < _FARTHEST:
            i, c, index, path = pending.pop()
            if (c.name, i.name, index) in seen:
                continue
            seen.add((c.name, i.name, index))
            pending += [(*step, path) for step in self._out(i, c, index)]
            if i.is_root and c.is_entry:
                found.append(Use(None, c, index or 0, path))
            for user, number in self.users(c, i.name):
                if without(user):
                    continue
                steps = self._after(user, c, number, index, through)
                if steps is None:
                    found.append(Use(user, c, number, path))
                else:
                    pending += [(*step, (*path, user)) for step in steps]
        return found

    def _out(
        self, i: Instruction, c: Computation, index: int | None
    ) -> list[tuple[Instruction, Computation, int | None]]:
        """From a computation's root to the results of its callers, and of a loop to its next iteration."""
        if not i.is_root or c.is_entry:
            return []
        steps: list[tuple[Instruction, Computation, int | None]] = []
        for caller, outer in self.callers(c):
            if caller.opcode in CALLS:
                steps.append((caller, outer, index))
            elif caller.opcode == "while" and caller.attribute("body") == c.name:
                steps.append((caller, outer, index))
                steps += [(parameter, c, index) for parameter in _parameters(c, 0)]
        return steps

    def _after(
        self, user: Instruction, c: Computation, number: int, index: int | None, through: frozenset[str]
    ) -> list[tuple[Instruction, Computation, int | None]] | None:
        """The values that hold this one after `user`; None where `user` does something with it."""
        if user.opcode == "get-tuple-element":
            element = user.attribute("index")
            return [(user, c, None)] if index is None or element == str(index) else []
        if user.opcode == "tuple":
            return [(user, c, number)]
        if user.opcode in CALLS:
            callee = self.module.called(c, user.attribute("calls") or user.attribute("to_apply"))
            return None if callee is None else [(parameter, callee, index) for parameter in _parameters(callee, number)]
        if user.opcode == "while":
            body = self.module.called(c, user.attribute("body"))
            return None if body is None else [(parameter, body, index) for parameter in _parameters(body, 0)]
        if user.opcode in LAYOUT or user.opcode in through:
            return [(user, c, index)]
        if (
            user.opcode == "custom-call" and "AsyncCollective" in user.tail
        ):  # TPU: what waits gives the value on; what starts gives nothing yet.
            return [(user, c, None)] if "AsyncCollectiveDone" in user.tail else []
        return None


def is_number_scale(flow: Flow, step: Instruction, is_constant: bool = False) -> bool:
    """A factor or divisor is one number, and a constant where that is asked for."""
    computation = flow.home[step]
    makers = [
        flow.source(computation.by_name[name], computation, frozenset({"broadcast"})).instruction
        for name in step.operands[step.opcode == "divide" :]
        if name in computation.by_name
    ]
    return any(maker.opcode == "constant" or (not is_constant and _is_number(maker)) for maker in makers)


def _is_number(maker: Instruction) -> bool:
    shapes = arrays(maker.shape)
    return len(shapes) == 1 and shapes[0].elements == 1


def _parameters(computation: Computation, number: int) -> list[Instruction]:
    return [computation.by_name[name] for name, n in computation.parameters.items() if n == number]
