"""The way a program runs: which computations an instruction runs and how often, and every instruction that is wanted
with how often it is reached in one step.

The ledger, its FLOPs and the time of a step all go this way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from lab.core.note import Note, NoteKind
from lab.hlo.loops import Scope, printed_and_derived, trip_count
from lab.hlo.text import RUNS_CALLEE, Computation, Instruction, Module

_WAYS, _DEEPEST = 8, 101
"""Ways to one computation that are kept apart, and levels that are followed; a text with more levels is damaged."""
_PASSES_OPERANDS = RUNS_CALLEE - {"while", "conditional", "custom-call", "custom-call-start"}
"""Each operand is a parameter of the one computation that they run."""
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


def operand_sites(visit: Visit, module: Module) -> tuple[Site, ...]:
    """What makes the operands, where the text shows it: outside, where the instruction alone was offloaded (to the
    SparseCores of a TPU) and takes the parameters of the computation that was made for it."""
    sites = (_made_at(name, visit, module) for name in visit.instruction.operands)
    return tuple(site for site in sites if site is not None)


def outermost(visit: Visit) -> Site:
    """The instruction itself, or the outermost call of it alone."""
    site = Site(visit.instruction, visit.computation)
    for caller in reversed(visit.callers):
        if not site.instruction.is_root or caller.instruction.opcode not in _PASSES_OPERANDS:
            break
        site = caller
    return site


def _made_at(name: str, visit: Visit, module: Module) -> Site | None:
    value, computation = visit.computation.by_name.get(name), visit.computation
    for caller in reversed(visit.callers):
        number = computation.parameters.get(value.name) if value is not None and value.opcode == "parameter" else None
        operands = caller.instruction.operands
        is_passed = caller.instruction.opcode in _PASSES_OPERANDS and module.times_called[computation.name] == 1
        if number is None or number >= len(operands) or not is_passed:
            break
        computation = caller.computation
        value = computation.by_name.get(operands[number])
    return None if value is None else Site(value, computation)


class Run(NamedTuple):
    """A computation that an instruction runs.

    Attributes:
      times: for one execution of the instruction, None where the text does not tell.
      is_branch: it is one of several, of which one runs.
    """

    scope: Scope
    times: int | None = 1
    is_branch: bool = False


def runs(instruction: Instruction, scope: Scope) -> Iterator[Run]:
    """The computations that an instruction of `scope` runs, of a loop the body first and then the condition; nothing
    where the text lacks them."""
    if instruction.opcode == "while":
        body = scope.body(instruction)
        condition = scope.module.called(scope.computation, instruction.attribute("condition"))
        if body is not None:
            trips = trip_count(instruction, scope)
            yield Run(body, trips)
            if condition is not None:
                yield Run(body.inner(condition, body.parameters), None if trips is None else trips + 1)
    elif instruction.opcode == "conditional":
        for branch in scope.branches(instruction):
            yield Run(branch, is_branch=True)
    elif instruction.opcode in RUNS_CALLEE and "=" in instruction.tail:
        callee = scope.callee(instruction)
        if callee is not None:
            yield Run(callee)


@dataclass(frozen=True)
class _State:
    """Where the walk stands."""

    scope: Scope
    callers: tuple[Site, ...] = ()
    executions: int | None = 1
    conditional: bool = False

    def enter(self, run: Run, caller: Instruction) -> _State:
        executions = None if run.times is None or self.executions is None else self.executions * run.times
        site = Site(caller, self.scope.computation)
        return _State(run.scope, (*self.callers, site), executions, self.conditional or run.is_branch)


@dataclass
class Walk:
    """The visits of a module's run, and what had to be noted on the way."""

    module: Module
    wanted: frozenset[Instruction]
    visits: list[Visit] = field(default_factory=list)
    notes: Notes = field(default_factory=dict)


def walk(module: Module, wanted: frozenset[Instruction]) -> Walk:
    """Visits every instruction that is `wanted`, from the entry or, in a cut text without one, from what nobody
    calls."""
    result = Walk(module, wanted)
    holds = computations_that_hold(module, wanted)
    if module.entry is not None:
        starts = [_State(Scope(module, module.entry))]
    else:
        sentence = "the text has no entry computation: executions cannot be known"
        result.notes[Note(NoteKind.NO_ENTRY, sentence)] = True
        called = {callee for callees in module.calls.values() for callee in callees}
        starts = [
            _State(Scope(module, computation), executions=None)
            for name, computation in module.computations.items()
            if name not in called
        ]
    _visit(result, starts, holds)
    return result


def _visit(result: Walk, starts: list[_State], holds: frozenset[str]) -> None:
    """Each computation once, for all the ways that lead to it: their number may double with every level of calls."""
    arrived: dict[str, list[_State]] = {}
    for start in starts:
        arrived.setdefault(start.scope.computation.name, []).append(start)
    entered: dict[str, dict[str, list[str]]] = {}
    for name in _callers_first(result.module, list(arrived), holds):
        arrived[name] = states = _merged(arrived.get(name, []))
        inside = entered[name] = dict[str, list[str]]()
        for state in states:
            if len(state.callers) == _DEEPEST:
                continue
            for instruction in state.scope.computation.instructions.having(RUNS_CALLEE):
                if not holds.isdisjoint(instruction.callees):
                    _note_trip_counts(instruction, state.scope, result.notes)
                    for run in _once_each(runs(instruction, state.scope)):
                        if run.times is None:
                            sentence = f"loop {instruction.name}: how often it runs cannot be known from the text"
                            result.notes[Note(NoteKind.UNKNOWN_TRIP_COUNT, sentence)] = False
                        callee = run.scope.computation.name
                        arrived.setdefault(callee, []).append(state.enter(run, instruction))
                        inside.setdefault(instruction.name, []).append(callee)
    for start in starts:
        result.visits += _in_program_order(result, start.scope.computation.name, arrived, entered)


def _once_each(found: Iterator[Run]) -> Iterator[Run]:
    """Of a computation that stands for two branches, one: of all branches one runs."""
    branches = set[str]()
    for run in found:
        name = run.scope.computation.name
        if not (run.is_branch and name in branches):
            branches.add(name)
            yield run


def _note_trip_counts(instruction: Instruction, scope: Scope, notes: Notes) -> None:
    differ = printed_and_derived(instruction, scope) if instruction.opcode == "while" else None
    if differ:
        said, derived = differ
        sentence = (
            f"damaged text, or a loop that XLA counts wrongly: {instruction.name} runs {said} times as it says, "
            f"{derived} by its condition"
        )
        notes[Note(NoteKind.TEXT_DAMAGED, sentence)] = True


def _in_program_order(
    result: Walk, start: str, arrived: dict[str, list[_State]], entered: dict[str, dict[str, list[str]]]
) -> Iterator[Visit]:
    """What a computation runs stands where it is run first."""
    opcodes = RUNS_CALLEE | {instruction.opcode for instruction in result.wanted}

    def steps(name: str) -> Iterator[Instruction]:
        return iter(result.module.computations[name].instructions.having(opcodes))

    pending = [(start, steps(start))]
    done = {start}
    while pending:
        name, instructions = pending[-1]
        computation, inside = result.module.computations[name], entered.get(name, {})
        for instruction in instructions:
            if instruction in result.wanted:
                for state in arrived.get(name, ()):
                    yield Visit(instruction, computation, state.callers, state.executions, state.conditional)
            if inside and (callees := [c for c in dict.fromkeys(inside.get(instruction.name, ())) if c not in done]):
                done.update(callees)
                pending += [(c, steps(c)) for c in reversed(callees)]
                break
        else:
            pending.pop()


def _callers_first(module: Module, starts: list[str], holds: frozenset[str]) -> list[str]:
    """The computations that hold something, each after all that run it."""
    order: list[str] = []
    seen = set(starts)
    pending = [(name, iter(module.calls.get(name, ()))) for name in starts if name in holds]
    while pending:
        name, callees = pending[-1]
        callee = next((c for c in callees if c in holds and c not in seen and not module.is_circle(name, c)), None)
        if callee is None:
            order.append(name)
            pending.pop()
        else:
            seen.add(callee)
            pending.append((callee, iter(module.calls.get(callee, ()))))
    return order[::-1]


def _merged(states: list[_State]) -> list[_State]:
    """The same states while they are few; of many, one for each set of numbers that loops may depend on; of many sets
    one of which nothing is known."""
    if len(states) <= _WAYS:
        return states
    alike: dict[object, list[_State]] = {}
    for state in states:
        alike.setdefault(state.scope.numbers(), []).append(state)
    if len(alike) <= _WAYS:
        return [_together(some, some[0].scope) for some in alike.values()]
    scope = states[0].scope
    return [_together(states, Scope(scope.module, scope.computation))]


def _together(states: list[_State], scope: Scope) -> _State:
    times = [state.executions for state in states]
    executions = None if None in times else sum(time for time in times if time is not None)
    return _State(scope, states[0].callers, executions, all(state.conditional for state in states))


def computations_that_hold(module: Module, wanted: frozenset[Instruction]) -> frozenset[str]:
    """Names of the computations that contain a wanted instruction, or lead to one."""
    callers: dict[str, list[str]] = {}
    for caller, callees in module.calls.items():
        for callee in callees:
            callers.setdefault(callee, []).append(caller)
    opcodes = frozenset([instruction.opcode for instruction in wanted])
    found = {computation.name for i, computation in module.having(opcodes) if i in wanted}
    frontier = list(found)
    while frontier:
        for caller in callers.get(frontier.pop(), ()):
            if caller not in found:
                found.add(caller)
                frontier.append(caller)
    return frozenset(found)
