"""The way a program runs: every instruction that communicates or multiplies, with how often it is reached in one
step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lab.core.note import Note, NoteKind
from lab.hlo.loops import Scope, trip_count
from lab.hlo.text import RUNS_CALLEE, Computation, Instruction, Module

Notes = dict[Note, bool]
"""What was noted while reading, and whether something is therefore missing from the ledger."""


class Site(NamedTuple):
    """An instruction and where it stands."""

    instruction: Instruction
    computation: Computation


@dataclass(frozen=True)
class Visit:
    """One instruction as it is reached from the entry.

    Attributes:
      callers: the sites that lead to its computation, outermost first.
      executions: times a step, None where a loop on the way has no known trip count.
      conditional: a branch on the way may not be taken.
    """

    instruction: Instruction
    computation: Computation
    callers: tuple[Site, ...]
    executions: int | None
    conditional: bool


@dataclass(frozen=True)
class _State:
    """Where the walk stands."""

    scope: Scope
    callers: tuple[Site, ...] = ()
    executions: int | None = 1
    conditional: bool = False

    def enter(self, scope: Scope, caller: Instruction, times: int | None = 1, conditional: bool = False) -> _State:
        executions = None if times is None or self.executions is None else self.executions * times
        site = Site(caller, self.scope.computation)
        return _State(scope, (*self.callers, site), executions, self.conditional or conditional)


@dataclass
class Walk:
    """The visits of a module's run, and what had to be noted on the way."""

    module: Module
    wanted: frozenset[str]
    visits: list[Visit] = field(default_factory=list)
    notes: Notes = field(default_factory=dict)


def walk(module: Module, wanted: frozenset[str]) -> Walk:
    """Visits every instruction whose opcode is `wanted`, from the entry or, in a cut text without one, from what nobody
    calls."""
    result = Walk(module, wanted)
    holds = _computations_that_hold(module, wanted)
    if module.entry is not None:
        _visit(result, _State(Scope(module, module.entry)), holds)
        return result
    sentence = "the text has no entry computation: executions cannot be known"
    result.notes[Note(NoteKind.NO_ENTRY, sentence)] = True
    called = {callee for callees in module.calls.values() for callee in callees}
    for name, computation in module.computations.items():
        if name not in called:
            _visit(result, _State(Scope(module, computation), executions=None), holds)
    return result


def _visit(result: Walk, state: _State, holds: frozenset[str]) -> None:
    if state.scope.computation.name not in holds:
        return
    for instruction in state.scope.computation.instructions:
        if instruction.opcode in result.wanted:
            result.visits.append(
                Visit(instruction, state.scope.computation, state.callers, state.executions, state.conditional)
            )
        if instruction.opcode in RUNS_CALLEE:
            for entered in _entered(instruction, state, result.notes, holds):
                _visit(result, entered, holds)


def _entered(instruction: Instruction, state: _State, notes: Notes, holds: frozenset[str]) -> Iterator[_State]:
    """The computations that an instruction runs."""
    if instruction.opcode == "while":
        yield from _loop(instruction, state, notes, holds)
    elif instruction.opcode == "conditional":
        for scope in state.scope.branches(instruction):
            yield state.enter(scope, instruction, conditional=True)
    elif "=" in instruction.tail:
        callee = state.scope.callee(instruction)
        if callee is not None:
            yield state.enter(callee, instruction)


def _loop(loop: Instruction, state: _State, notes: Notes, holds: frozenset[str]) -> Iterator[_State]:
    body = state.scope.body(loop)
    condition = state.scope.module.called(state.scope.computation, loop.attribute("condition"))
    if body is None or not holds & {body.computation.name, condition.name if condition else ""}:
        return
    trips = trip_count(loop, state.scope)
    if trips is None:
        sentence = f"loop {loop.name}: how often it runs cannot be known from the text"
        notes[Note(NoteKind.UNKNOWN_TRIP_COUNT, sentence)] = False
    yield state.enter(body, loop, trips)
    if condition is not None:
        yield state.enter(replace(body, computation=condition), loop, None if trips is None else trips + 1)


def _computations_that_hold(module: Module, wanted: frozenset[str]) -> frozenset[str]:
    """Names of the computations that contain a wanted instruction, or lead to one."""
    callers: dict[str, list[str]] = {}
    for caller, callees in module.calls.items():
        for callee in callees:
            callers.setdefault(callee, []).append(caller)
    found = {name for name, c in module.computations.items() if any(i.opcode in wanted for i in c.instructions)}
    frontier = list(found)
    while frontier:
        for caller in callers.get(frontier.pop(), ()):
            if caller not in found:
                found.add(caller)
                frontier.append(caller)
    return frozenset(found)
