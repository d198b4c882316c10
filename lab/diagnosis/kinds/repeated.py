"""What is moved or reduced again though it is the same: in every iteration of a loop, or for each of its uses."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from lab.core.units import count, exact, part_text
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import Place
from lab.diagnosis.invariant import is_invariant, loop_of
from lab.diagnosis.kinds.accumulation import trips
from lab.diagnosis.program import Program, Site, largest, sent
from lab.diagnosis.remedy import PinArgument, Remedy
from lab.diagnosis.specs import without
from lab.hlo.shapes import arrays
from lab.hlo.text import Computation

_KINDS = ("all_gather", "all_reduce", "all_to_all", "collective_permute")
_SMALLEST = 1024
_REMAT = "rematted_computation"


def repeated_in_loop(program: Program) -> Iterator[Finding]:
    """Of a loop without loops inside, so that what it moves would be no more memory before it: a loop over
    micro-batches gathers each layer's weights again so that one layer's are whole at a time."""
    by_loop: dict[str, list[Site]] = {}
    bodies: dict[str, Computation] = {}
    for site in program.sites:
        body = _unchanged_in(program, site)
        if body is not None:
            by_loop.setdefault(body.name, []).append(site)
            bodies[body.name] = body
    for name, sites in by_loop.items():
        sizes = sorted(site.result.bytes for site in sites)
        if sum(sizes[:-1]) <= sizes[-1] and sizes[-1] >= _SMALLEST:
            yield _finding(program, sites, trips(program, bodies[name]) or 0)


def _unchanged_in(program: Program, site: Site) -> Computation | None:
    operand = program.moving(site)
    if site.kind not in _KINDS or site.transfer.executions in (None, 1) or operand is None:
        return None
    body = loop_of(program.flow, site.visit.computation)
    if body is None or any(i.opcode == "while" for i in body.instructions) or (trips(program, body) or 0) < 2:
        return None
    return body if is_invariant(program.flow, Place(*operand), body) else None


def _finding(program: Program, sites: list[Site], often: int) -> Finding:
    most = largest(sites)
    does = "reduced" if most.kind == "all_reduce" else "gathered" if most.kind == "all_gather" else "moved"
    sentence = (
        f"{program.moved(most)} is {does} {often} times by a loop that does not change it, "
        f"{exact(most.transfer.payload_bytes)} B each time; once before the loop would send "
        f"{part_text(Fraction(1, often or 1))} of the bytes"
    )
    advice = (
        "do it before the loop: constrain the value there to the sharding that the loop uses, such as "
        "jax.lax.with_sharding_constraint(w, P()), outside of any jax.checkpoint of the loop's body"
    )
    return program.finding(
        "repeated_in_loop",
        sentence,
        advice,
        *sites,
        needed_bytes=sent(sites) / often if often else None,
        remedy=_gathered_first(program, sites),
    )


def gathered_twice(program: Program) -> Iterator[Finding]:
    """Gathers of one value, in one pass of one computation, for uses that ask for it in other layouts or at other
    times. What is recomputed gathers again so as not to keep it."""
    found: dict[object, list[Site]] = {}
    for site in program.inserted:
        if site.kind == "all_gather" and site.transfer.payload_bytes >= _SMALLEST and (value := _value(program, site)):
            t = site.transfer
            # Newer XLA names some gathers after what they move, which tells no pass.
            in_pass = (site.phase, _REMAT in site.op_name) if program.is_differentiated else None
            key = site.visit.computation.name, value, t.axes, t.payload_bytes, in_pass
            found.setdefault(key, []).append(site)
    for sites in found.values():
        if len(sites) > 1 and sites[0].transfer.axes:
            often = sites[0].transfer.executions or 1
            loop = " in every iteration" if often > 1 else ""
            once = sent(sites[:1])
            sentence = (
                f"{program.moved(sites[0])} is gathered {count(len(sites), 'time')} over {sites[0].transfer.span}"
                f"{loop}, {exact(sites[0].transfer.payload_bytes)} B each time, once for each of its uses; gathered "
                f"once for all, each device would send {exact(once)} B instead of {exact(sent(sites))}"
            )
            advice = (
                "gather it before its first use: x = jax.lax.with_sharding_constraint(x, a spec without "
                f"{sites[0].transfer.span}), and use that; it is whole on every device until the last use"
            )
            remedy = _gathered_first(program, sites)
            yield program.finding("gathered_twice", sentence, advice, *sites, needed_bytes=once, remedy=remedy)


def _value(program: Program, site: Site) -> tuple[str, str] | None:
    """What is gathered: an element of a loop's state as one iteration has it, else what makes it, and which of several
    results; None of a constant or an unknown."""
    operand = program.moving(site)
    if operand is None:
        return None
    last, element = operand, ""
    for place in program.flow.back(*operand):
        i, c = last = place
        maker = c.by_name.get(i.operands[0]) if i.opcode == "get-tuple-element" else None
        if maker is not None and maker.opcode == "parameter":
            return c.name, f"{maker.name} {i.attribute('index')}"
        if i.opcode == "get-tuple-element":
            element = i.attribute("index") or ""
    made = f"{last.instruction.name} {element}" if len(arrays(last.instruction.shape)) > 1 else last.instruction.name
    return (last.computation.name, made) if last.instruction.opcode != "constant" else None


def _gathered_first(program: Program, sites: list[Site]) -> Remedy:
    """Arguments that are gathered, pinned without the axes that they are gathered over."""
    found: list[PinArgument] = []
    for site in sites:
        operand = program.moving(site)
        argument = None if operand is None else program.argument_of(*operand)
        if site.kind != "all_gather" or argument is None or argument.dims is None:
            return ()
        found.append(PinArgument(argument.name, without(argument.dims, site.transfer.axes or ())))
    return tuple(dict.fromkeys(found))
