"""State that a step takes and gives back anew: parameters, moments, caches, of which a device need hold one copy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from lab.core.known import known
from lab.core.units import exact, listed
from lab.diagnosis.dims import followed
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import Place, Use
from lab.diagnosis.holding import CACHE, MOMENTS, OTHERS, PARAMETERS, kinds
from lab.diagnosis.invariant import loop_of
from lab.diagnosis.kinds.accumulation import trips
from lab.diagnosis.numbers import number_on
from lab.diagnosis.program import Argument, Program
from lab.diagnosis.remedy import Donate
from lab.diagnosis.slices import ELEMENTWISE
from lab.hlo.flops import operand_shapes
from lab.hlo.shapes import Shape, arrays
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
    state = _state(program)
    if not {argument.number for argument in state} - program.aliased:
        return
    found = {argument.number: _updates(program, argument) for argument in state}
    anew = {argument.number for argument, _ in _collected(program)}
    updates = {number: frozenset(use.number for use in uses) for number, uses in found.items()}
    matched = _matched(updates)
    free = {result for results in updates.values() for result in results} - set(matched.values())
    # Which donated argument a result takes over is all the same.
    kept = [
        argument
        for argument in program.arguments
        if argument.number in matched.keys() - program.aliased - anew and not updates[argument.number] & free
    ]
    held = sum(argument.local.bytes for argument in kept)
    if held >= _SMALLEST:
        largest = max(kept, key=lambda argument: argument.local.bytes)
        most = program.named(largest)
        told = f"{most} is" if len(kept) == 1 else f"{len(kept)} arrays of state (the largest is {most}) are"
        copied = sum(a.local.bytes for a in kept if any(map(_writes_a_part, found[a.number])))
        names = tuple(dict.fromkeys(map(_top, kept)))
        yield program.finding(
            "not_donated",
            f"{told} given back updated and not donated: the update is made in other memory, {exact(held)} B on each "
            f"device{_share(program, held)}",
            f"donate {listed(names)} (donate_argnames={names!r} in jax.jit): the caller can then read only the new",
            origin=program.first_use(largest.place),
            memory_bytes=held,
            accessed_bytes=2 * copied,
            remedy=(Donate(tuple(argument.name for argument in kept)),),
            value=most,
        )


def _state(program: Program) -> list[Argument]:
    """What may be state by its name, and has the shape of a result: where nothing is differentiated, caches, and
    parameters beside their moments, as an optimizer takes them."""
    results, kind_of = set(_results(program)), kinds(program)
    is_optimizer = {PARAMETERS, MOMENTS} <= set(kind_of.values())
    state = {PARAMETERS, MOMENTS, CACHE, OTHERS} if program.is_differentiated else {CACHE}
    state |= {PARAMETERS, MOMENTS} if is_optimizer else set()
    return [
        argument
        for argument in program.arguments
        if argument.local in results and argument.number not in program.donors and kind_of[argument.number] in state
    ]


def _updates(program: Program, argument: Argument) -> list[Use]:
    """The results that are its updates and could be made in its memory, and what makes them."""
    if any(use.opcode is None for use in program.flow.uses(*argument.place)):
        return []
    shapes = _results(program)  # Of a damaged text there may be fewer.
    return [
        use
        for use in program.flow.uses(*argument.place, ELEMENTWISE | _WRITES | _PARTS, without=_is_in_a_pass)
        if use.opcode is None and shapes[use.number : use.number + 1] == (argument.local,)
    ]


def _results(program: Program) -> tuple[Shape, ...]:
    root = program.module.entry.root if program.module.entry else None
    return arrays(root.shape) if root else ()


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


def collected_anew(program: Program) -> Iterator[Finding]:
    """Stacks, such as a decode cache, of which a loop takes a layer at a time, writes a part of it, and collects the
    layers in another array. Where the loop carries the stack, all else of it stays where it is."""
    found = _collected(program)
    held = sum(argument.local.bytes for argument, _ in found)
    if held >= _SMALLEST:
        most, write = max(found, key=lambda each: each[0].local.bytes)
        stacks = f"{program.named(most)} is" if len(found) == 1 else f"{len(found)} stacks ({program.named(most)}) are"
        names = listed(dict.fromkeys(_top(argument) for argument, _ in found))
        kept = program.aliased | program.donors
        undonated = tuple(dict.fromkeys(_top(argument) for argument, _ in found if argument.number not in kept))
        donating = f"donate {listed(undonated)} (donate_argnames={undonated!r} in jax.jit), " if undonated else ""
        yield program.finding(
            "collected_anew",
            f"{stacks} taken by a loop one layer at a time and collected in another array, though the loop writes only "
            f"a part of each layer: {exact(held)} B are held once more and copied, donated or not"
            f"{_share(program, held)}",
            f"{donating}carry {names} through the loop and write the part into the whole stack, which is then updated "
            "in place: in jax.lax.scan with xs=jnp.arange(layers), x = jax.lax.dynamic_update_slice(x, part[None], "
            "(layer, ...)) of the carry; read x[layer]",
            origin=program.origin(write),
            memory_bytes=held,
            accessed_bytes=2 * held,
            value=program.named(most),
        )


def _collected(program: Program) -> list[tuple[Argument, Instruction]]:
    """Arguments, and what writes a part of a layer of theirs."""
    found: dict[int, tuple[Argument, Instruction]] = {}
    for cut in map(Place._make, program.module.having(frozenset({"dynamic-slice"}))):
        whole = program.operand(cut)
        argument = None if whole is None or not program.flow.loops(cut.computation) else program.argument_of(*whole)
        if argument is None or argument.number in found:
            continue
        for use in program.flow.uses(*cut):
            if use.number == 0 and _writes_little(use) and _is_stacked(program, use, argument):
                found[argument.number] = argument, known(use.instruction)
    return [found[number] for number in sorted(found)]


def _writes_little(use: Use) -> bool:
    """It writes half of what it is given at most: of the rest, nothing changes."""
    shapes = operand_shapes(known(use.instruction), use.computation) if use.opcode in _WRITES else ()
    written = shapes[2:] if use.opcode == "scatter" else shapes[1:]
    return bool(written) and 2 * written[0].elements <= shapes[0].elements


def _is_stacked(program: Program, write: Use, argument: Argument) -> bool:
    """What is written becomes a layer of an array like the argument, which is not the argument itself and is given
    back."""
    for use in program.flow.uses(known(write.instruction), write.computation):
        if use.opcode == "dynamic-update-slice" and use.number == 1:
            stack = Place(known(use.instruction), use.computation)
            into = program.operand(stack)
            shapes = arrays(stack.instruction.shape)
            is_alike = [sorted(shape.dims) for shape in shapes] == [sorted(argument.local.dims)]
            if is_alike and into is not None and program.argument_of(*into) is None:
                ends = [after for after in program.flow.uses(*stack) if after.opcode is None]
                uses = program.flow.uses(*argument.place)
                return bool(ends) and all(_is_at_same_place(program, argument, use, stack, ends[0]) for use in uses)
    return False


def _is_at_same_place(program: Program, argument: Argument, read: Use, stack: Place, end: Use) -> bool:
    """A use of a stack reads the layer that its iteration writes, which is the same layer of the result. Where anything
    else is read, or layers change places, each iteration would write over what is still to be read."""
    if read.opcode != "dynamic-slice" or read.number != 0:
        return False
    cut = Place(known(read.instruction), read.computation)
    bodies = [loop_of(program.flow, place.computation) for place in (cut, stack)]
    often = trips(program, bodies[0]) if bodies[0] is not None and bodies[0] is bodies[1] else None
    if often is None:
        return False
    dims = set[tuple[int, int]]()
    for iteration in {0, 1, often - 1}:
        taken, written = (_starts(program, *each, iteration) for each in ((cut, 1), (stack, 2)))
        layer = {dim: start for dim, start in taken.items() if start is not None}  # Of which it may read any part.
        if None in written.values() or [*layer.values()] != [*written.values()]:
            return False
        dims |= set(zip(layer, written, strict=True))
    split = range(len(argument.local.dims))
    before = {followed(dim, argument.place.instruction.shape, read.path): dim for dim in split}
    return all(followed(to, stack.instruction.shape, end.path) == before.get(of) for of, to in dims)


def _starts(program: Program, place: Place, first: int, iteration: int) -> dict[int, int | None]:
    """Where it reads or writes, by dim, all but zeros: dims may be in another order."""
    operands = [program.operand(place, number) for number in range(first, len(place.instruction.operands))]
    starts = [None if one is None else number_on(program.flow, one, None, iteration) for one in operands]
    return {dim: start for dim, start in enumerate(starts) if start != 0}


def _top(argument: Argument) -> str:
    """Of `cache['k']` the name that the function gives it."""
    name = _NAME.match(argument.name)
    return name[0] if name else argument.name
