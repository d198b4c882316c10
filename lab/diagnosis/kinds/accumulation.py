"""Reductions inside a loop that only adds their results up: one reduction of the sum after the loop does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from lab.core.known import known
from lab.core.units import exact, part_text
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import SCALES, Flow, Place, Use, is_number_scale
from lab.diagnosis.kinds.peeled import peeled
from lab.diagnosis.program import Program, Site, largest, sent
from lab.hlo.loops import Scope, trip_count
from lab.hlo.text import Computation

_THROUGH = frozenset({"dynamic-slice", "dynamic-update-slice", *SCALES})
# Losses and other numbers for people; what they cost is a message's latency, not bytes.
_SMALLEST = 1024
_FARTHEST = 64


@dataclass(frozen=True)
class _Sum:
    """What a loop's body adds up: an element of its state."""

    body: Computation
    element: str


def reduced_in_loop(program: Program) -> Iterator[Finding]:
    by_loop: dict[str, list[tuple[Site, _Sum]]] = {}
    for site in program.sites:
        if (
            site.kind in ("all_reduce", "reduce_scatter")
            and site.transfer.executions != 1
            and site.primitive not in ("psum_scatter", "reduce_scatter")
        ):
            added = _adding_loop(program, site)
            if added is not None:
                by_loop.setdefault(added.body.name, []).append((site, added))
    for found in by_loop.values():
        if sum(site.transfer.payload_bytes for site, _ in found) >= _SMALLEST:
            yield _finding(program, found)


def _finding(program: Program, found: list[tuple[Site, _Sum]]) -> Finding:
    inside, body = [site for site, _ in found], found[0][1].body
    beside, often_run = peeled(program, inside, body), trips(program, body)
    largest_of = {added.element: max(sent([s]) for s, other in found if other == added) for _, added in found}
    needed = sum(largest_of.values(), Fraction(0)) / often_run if often_run else None
    sites = inside + beside
    often_run = round(sent(sites) / needed) if beside and needed else often_run
    often = f"{often_run} times a step" if often_run else "in every iteration"
    less = f"would send {part_text(needed / sent(sites))} of the bytes" if needed else "would do"
    what = "gradients are" if program.is_differentiated else "a sum is"
    each = _bytes_of_one_iteration(sites, often_run)
    sentence = (
        f"{what} reduced over devices {often}, inside the loop that accumulates{each}; one reduction "
        f"after the loop {less}"
    )
    advice = (
        "accumulate on each device and reduce once: put the loop inside jax.shard_map, with jax.lax.pcast(w, axis, "
        "to='varying') before it and one psum (or psum_scatter) after it"
    )
    most = largest(sites)
    write = program.in_specs(program.gradient_of(most), *program.split_over(most.transfer.axes or ()))
    return program.finding("reduced_in_loop", sentence, advice, *sites, needed_bytes=needed, write=write)


def _bytes_of_one_iteration(sites: list[Site], trips: int | None) -> str:
    """Some of them are in a loop over layers as well, and run several times in one iteration."""
    executions = [site.transfer.executions for site in sites]
    if not trips or None in executions:
        return ""
    total = sum(site.transfer.payload_bytes * known(n) for site, n in zip(sites, executions, strict=True))
    return f", {exact(total // trips)} B each time"


def _adding_loop(program: Program, site: Site) -> _Sum | None:
    """The sum of a loop that nothing else reads, to which the reduction's results are added, and nothing else is done
    with them."""
    sums = [_adds(program, site, use) for use in program.uses(site, through=_THROUGH)]
    return sums[0] if sums and all(one is not None and one.body is known(sums[0]).body for one in sums) else None


def _adds(program: Program, site: Site, use: Use) -> _Sum | None:
    flow = program.flow
    scales = [step for step in use.path if step.opcode in SCALES]
    # Where the compiler partitions, any number, such as how many tokens count, is the same on all devices.
    if use.opcode != "add" or not all(is_number_scale(flow, step, is_constant=site.is_written) for step in scales):
        return None
    operands = known(use.instruction).operands
    other = operands[1 - use.number] if len(operands) == 2 else None
    added = _summed_into(flow, use, other)
    return added if added is not None and _loops_over(flow, site, added.body) else None


def _summed_into(flow: Flow, use: Use, other: str | None) -> _Sum | None:
    """The running sum of a loop, if this addition is one of those that are all that is ever done with it."""
    operand = use.computation.by_name.get(other or "")
    if operand is None:
        return None
    for place in _back(flow, Place(operand, use.computation)):
        element = place.instruction.attribute("index")
        if place.instruction.opcode == "get-tuple-element" and element and _is_body(flow, place.computation):
            additions = _running_sum(flow, place.computation, element)
            if any(addition.instruction is use.instruction for addition in additions):
                return _Sum(place.computation, element)
    return None


def _running_sum(flow: Flow, body: Computation, element: str) -> list[Place]:
    """The additions, the last first, by which an iteration carries an element on; [] where anything else is done with
    it on the way, or reads it."""
    root = body.root
    following = root.operands[int(element)] if root and int(element) < len(root.operands) else None
    place = Place(body.by_name[following], body) if following and following in body.by_name else None
    additions = list[Place]()
    while place is not None:
        way = list(flow.back(*place))
        if any(_is_element(step, body, element) for step in way):
            break
        last = way[-1]
        sides = _sides(last)
        place = next((s for s in sides if any(_is_element(step, body, element) for step in _back(flow, s))), None)
        additions += [last] if last.instruction.opcode == "add" else []
    carried = [Place(i, body) for i in body.instructions if _is_element(Place(i, body), body, element)]
    readers = [use for one in (*carried, *additions[1:]) for use in flow.uses(*one, through=frozenset({"select"}))]
    # What is done with the last one in the same iteration: behind the loop anything may be.
    ends = [use for one in additions[:1] for use in flow.uses(*one, through=frozenset({"select"}))]
    readers += [use for use in ends if body.name in flow.loops(use.computation)]
    is_only_added_to = all(any(use.instruction is one.instruction for one in additions) for use in readers)
    return additions if place is not None and is_only_added_to and not _is_asked_for(flow, body, element) else []


def _is_asked_for(flow: Flow, body: Computation, element: str) -> bool:
    """Whether the loop goes on depends on an element of its state."""
    loops = [place for place in flow.callers(body) if place.instruction.attribute("body") == body.name]
    names = [place.instruction.attribute("condition") for place in loops]
    conditions = [flow.module.called(place.computation, name) for place, name in zip(loops, names, strict=True)]
    return any(
        _is_element(Place(i, one), one, element) and flow.users(one, i.name)
        for one in conditions
        if one is not None
        for i in one.instructions
    )


def _is_element(place: Place, body: Computation, element: str) -> bool:
    i, c = place
    is_of_state = c is body and i.opcode == "get-tuple-element" and i.attribute("index") == element
    return is_of_state and i.operands[0] in body.parameters


def _sides(place: Place) -> list[Place]:
    """What an addition adds; TPUs select zero in place of a sum in the first iteration."""
    i, c = place
    names = i.operands if i.opcode == "add" else i.operands[1:] if i.opcode == "select" else ()
    return [Place(c.by_name[name], c) for name in names if name in c.by_name]


def _back(flow: Flow, place: Place) -> Iterator[Place]:
    """Back from a sum, through the additions that make it."""
    pending, seen = [place], set[tuple[str, str]]()
    while pending and len(seen) < _FARTHEST:
        steps = list(flow.back(*pending.pop()))
        last = steps[-1]
        if (last.computation.name, last.instruction.name) not in seen:
            seen.add((last.computation.name, last.instruction.name))
            yield from steps
            pending += _sides(last)


def _is_body(flow: Flow, computation: Computation) -> bool:
    return any(caller.opcode == "while" for caller, _ in flow.callers(computation))


def _loops_over(flow: Flow, site: Site, body: Computation) -> bool:
    return body.name == site.visit.computation.name or any(c.computation.name == body.name for c in site.visit.callers)


def trips(program: Program, body: Computation) -> int | None:
    """How often a loop runs; None where the text does not say."""
    loop = next((place for place in program.flow.callers(body) if place.instruction.opcode == "while"), None)
    return None if loop is None else trip_count(loop.instruction, Scope(program.module, loop.computation))
