"""State that a step takes and gives back anew: parameters, moments, caches, of which a device need hold one copy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from lab.core.units import exact, listed
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import Use
from lab.diagnosis.holding import BATCH, OTHERS, kinds
from lab.diagnosis.program import Argument, Program
from lab.diagnosis.remedy import Donate
from lab.diagnosis.slices import ELEMENTWISE
from lab.hlo.shapes import arrays
from lab.hlo.text import Instruction

# Counters, keys and norms are nothing to save.
_SMALLEST = 1 << 14
_WRITES = frozenset({"dynamic-update-slice", "scatter"})
_PARTS = frozenset({"dynamic-slice", "all-gather", "all-gather-start"})
"""An update of its own part by each device, and of a layer at a time by a loop."""
_PASSES = ("jvp(", "transpose(")
_NAME = re.compile(r"[A-Za-z_]\w*")


def not_donated(program: Program) -> Iterator[Finding]:
    """State of which a step gives back the update, made in other memory, since the state is not given up for it.

    A result is one's update where it is made of it entry by entry, outside of the passes of a gradient, or by writing a
    part of it. What the step also gives back as it is, or makes two results of, is kept on purpose.
    """
    found = {argument.number: _updates(program, argument) for argument in _state(program)}
    updates = {number: frozenset(use.number for use in uses) for number, uses in found.items()}
    matched = _matched(updates)
    free = {result for results in updates.values() for result in results} - set(matched.values())
    # Which donated argument a result takes over is all the same.
    kept = [
        argument
        for argument in program.arguments
        if argument.number in matched.keys() - program.aliased and not updates[argument.number] & free
    ]
    held = sum(argument.local.bytes for argument in kept)
    if held >= _SMALLEST:
        most = program.named(max(kept, key=lambda argument: argument.local.bytes))
        state = f"{most} is" if len(kept) == 1 else f"{len(kept)} arrays of state (the largest is {most}) are"
        copied = sum(a.local.bytes for a in kept if any(map(_writes_a_part, found[a.number])))
        names = tuple(dict.fromkeys(name[0] for argument in kept if (name := _NAME.match(argument.name))))
        yield program.finding(
            "not_donated",
            f"{state} given back updated and not donated: the update is made in other memory, {exact(held)} B on each "
            f"device{_share(program, held)}",
            f"donate {listed(names)} (donate_argnames={names!r} in jax.jit): the caller can then read only the new",
            memory_bytes=held,
            accessed_bytes=2 * copied,
            remedy=(Donate(tuple(argument.name for argument in kept)),),
        )


def _state(program: Program) -> list[Argument]:
    """What may be state by its name: where nothing is differentiated, parameters, moments and caches alone."""
    kind_of = kinds(program)
    others = {BATCH} if program.is_differentiated else {BATCH, OTHERS}
    return [
        argument
        for argument in program.arguments
        if argument.number not in program.donors
        and ("cache" in argument.name or kind_of[argument.number] not in others)
    ]


def _updates(program: Program, argument: Argument) -> list[Use]:
    """The results that are its updates and could be made in its memory, and what makes them."""
    if any(use.opcode is None for use in program.flow.uses(*argument.place)):
        return []
    root = program.module.entry.root if program.module.entry else None
    shapes = arrays(root.shape) if root else ()  # Of a damaged text there may be fewer.
    return [
        use
        for use in program.flow.uses(*argument.place, ELEMENTWISE | _WRITES | _PARTS, without=_is_in_a_pass)
        if use.opcode is None and shapes[use.number : use.number + 1] == (argument.local,)
    ]


def _writes_a_part(use: Use) -> bool:
    """Into a copy of all of it, then."""
    return any(step.opcode in _WRITES for step in use.path)


def _is_in_a_pass(step: Instruction) -> bool:
    return any(mark in (step.op_name or "") for mark in _PASSES)


def _matched(updates: Mapping[int, frozenset[int]]) -> dict[int, int]:
    """For each argument a result of its own, those with the fewest to choose from first: moments also make the new
    parameters."""
    found: dict[int, int] = {}
    for number in sorted(updates, key=lambda each: len(updates[each])):
        left = sorted(updates[number] - set(found.values()))
        found |= {number: left[0]} if left else {}
    return found


def _share(program: Program, held: int) -> str:
    memory = program.ledger.memory
    if memory is None:
        return ""
    peak = memory.peak or memory.arguments + memory.outputs + memory.temporaries - memory.aliased
    return f", {held / peak:.1%} of its peak" if peak else ""
