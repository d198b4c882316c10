"""Reductions inside a loop that only adds their results up: one reduction of the sum after the loop does."""

from __future__ import annotations

from collections.abc import Iterator

from lab.core.known import known
from lab.core.units import exact
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import SCALES, Flow, Place, Use, is_number_scale
from lab.diagnosis.program import Program, Site, sent, times
from lab.hlo.loops import Scope, trip_count
from lab.hlo.text import Computation

_THROUGH = frozenset({"dynamic-slice", "dynamic-update-slice", *SCALES})
# Losses and other numbers for people; what they cost is a message's latency, not bytes.
_SMALLEST = 1024


def reduced_in_loop(program: Program) -> Iterator[Finding]:
    by_loop: dict[str, list[Site]] = {}
    bodies: dict[str, Computation] = {}
    for site in program.sites:
        if (
            site.kind in ("all_reduce", "reduce_scatter")
            and site.transfer.executions != 1
            and site.primitive not in ("psum_scatter", "reduce_scatter")
        ):
            body = _adding_loop(program, site)
            if body is not None:
                by_loop.setdefault(body.name, []).append(site)
                bodies[body.name] = body
    for name, sites in by_loop.items():
        if sum(site.transfer.payload_bytes for site in sites) >= _SMALLEST:
            yield _finding(program, sites, bodies[name])


def _finding(program: Program, sites: list[Site], body: Computation) -> Finding:
    often_run = trips(program, body)
    often = f"{often_run} times a step" if often_run else "in every iteration"
    less = f"would send {times(often_run)} fewer bytes" if often_run else "would do"
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
    needed = sent(sites) / often_run if often_run else None
    return program.finding("reduced_in_loop", sentence, advice, *sites, needed_bytes=needed)


def _bytes_of_one_iteration(sites: list[Site], trips: int | None) -> str:
    """Some of them are in a loop over layers as well, and run several times in one iteration."""
    executions = [site.transfer.executions for site in sites]
    if not trips or None in executions:
        return ""
    total = sum(site.transfer.payload_bytes * known(n) for site, n in zip(sites, executions, strict=True))
    return f", {exact(total // trips)} B each time"


def _adding_loop(program: Program, site: Site) -> Computation | None:
    """The body of the loop that adds the reduction's results to sums which nothing else reads, and does nothing else
    with them."""
    bodies = [_adds(program, site, use) for use in program.uses(site, through=_THROUGH)]
    return bodies[0] if bodies and all(body is bodies[0] for body in bodies) else None


def _adds(program: Program, site: Site, use: Use) -> Computation | None:
    flow = program.flow
    scales = [step for step in use.path if step.opcode in SCALES]
    # Where the compiler partitions, any number, such as how many tokens count, is the same on all devices.
    if use.opcode != "add" or not all(is_number_scale(flow, step, is_constant=site.is_written) for step in scales):
        return None
    operands = known(use.instruction).operands
    other = operands[1 - use.number] if len(operands) == 2 else None
    body = _summed_into(flow, use, other)
    return body if body is not None and _loops_over(flow, site, body) else None


def _summed_into(flow: Flow, use: Use, other: str | None) -> Computation | None:
    """The loop body whose carried element `other` is, if all that is ever done with the element is this addition."""
    operand = use.computation.by_name.get(other or "")
    if operand is None:
        return None
    for instruction, computation in _back(flow, Place(operand, use.computation)):
        if instruction.opcode != "get-tuple-element" or not _is_body(flow, computation):
            continue
        element = instruction.attribute("index")
        carried = [
            i
            for i in computation.instructions
            if i.opcode == "get-tuple-element"
            and i.attribute("index") == element
            and i.operands == instruction.operands
        ]
        readers = [reader for i in carried for reader in flow.uses(i, computation, through=frozenset({"select"}))]
        if all(reader.instruction is use.instruction for reader in readers) and _comes_back(
            computation, element, use, flow
        ):
            return computation
    return None


def _back(flow: Flow, place: Place) -> Iterator[Place]:
    """Back from a sum; TPUs select zero in place of it in the first iteration."""
    steps = list(flow.back(*place))
    yield from steps
    last, computation = steps[-1]
    if last.opcode == "select":
        for name in last.operands[1:]:
            if name in computation.by_name:
                yield from flow.back(computation.by_name[name], computation)


def _comes_back(body: Computation, element: str | None, use: Use, flow: Flow) -> bool:
    """The sum is what the next iteration carries on."""
    root = body.root
    if root is None or root.opcode != "tuple" or element is None or int(element) >= len(root.operands):
        return False
    following = body.by_name.get(root.operands[int(element)])
    return following is not None and any(i is use.instruction for i, _ in flow.back(following, body))


def _is_body(flow: Flow, computation: Computation) -> bool:
    return any(caller.opcode == "while" for caller, _ in flow.callers(computation))


def _loops_over(flow: Flow, site: Site, body: Computation) -> bool:
    return body.name == site.visit.computation.name or any(c.computation.name == body.name for c in site.visit.callers)


def trips(program: Program, body: Computation) -> int | None:
    """How often a loop runs; None where the text does not say."""
    loop = next((place for place in program.flow.callers(body) if place.instruction.opcode == "while"), None)
    return None if loop is None else trip_count(loop.instruction, Scope(program.module, loop.computation))
