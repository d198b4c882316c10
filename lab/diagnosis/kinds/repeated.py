"""What is moved or reduced again though it is the same: in every iteration of a loop, or for each of its uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from lab.core.known import known
from lab.core.units import count, exact, part_text
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import Place
from lab.diagnosis.invariant import is_invariant, loop_of
from lab.diagnosis.kinds.accumulation import trips
from lab.diagnosis.kinds.peeled import peeled
from lab.diagnosis.program import Program, Site, largest, sent
from lab.diagnosis.remedy import PinArgument, Remedy
from lab.diagnosis.slices import ELEMENTWISE
from lab.diagnosis.specs import without
from lab.hlo.shapes import arrays, bits
from lab.hlo.text import Computation

_KINDS = ("all_gather", "all_reduce", "all_to_all", "collective_permute")
_SMALLEST = 1024
_REMAT = "rematted_computation"
_LESS = 1.25
_FARTHEST = 30


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
        by_value: dict[object, Site] = {}
        for site in sites:  # Several of one value are copies of an iteration in one.
            operand = known(program.moving(site))
            by_value.setdefault((_value(program, operand), program.between(site), site.transfer.payload_bytes), site)
        sizes = sorted(site.result.bytes for site in by_value.values())
        if sum(sizes[:-1]) <= sizes[-1] and sizes[-1] >= _SMALLEST:
            often = trips(program, bodies[name]) or 0
            yield _finding(program, sites + peeled(program, sites, bodies[name]), [*by_value.values()], often)


def _unchanged_in(program: Program, site: Site) -> Computation | None:
    operand = program.moving(site)
    if site.kind not in _KINDS or site.transfer.executions in (None, 1) or operand is None:
        return None
    body = loop_of(program.flow, site.visit.computation)
    if body is None or any(i.opcode == "while" for i in body.instructions) or (trips(program, body) or 0) < 2:
        return None
    return body if is_invariant(program.flow, Place(*operand), body) else None


def _finding(program: Program, sites: list[Site], values: list[Site], often: int) -> Finding:
    """Args: values: of the sites one for each value that is moved."""
    most, now, needed = largest(values), sent(sites), sent(values) / often
    times = round(now / needed)
    does = "reduced" if most.kind == "all_reduce" else "gathered" if most.kind == "all_gather" else "moved"
    sentence = (
        f"{program.moved(most)} is {does} {times} times by a loop that does not change it, "
        f"{exact(most.transfer.payload_bytes)} B each time; once before the loop would send "
        f"{part_text(needed / now)} of the bytes"
    )
    is_written = any(site.is_written for site in sites)
    advice = (
        "do it before the loop: take the call out of the loop's body, which then reads the result"
        if is_written
        else "do it before the loop: constrain the value there to the sharding that the loop uses, such as "
        "jax.lax.with_sharding_constraint(w, P()), outside of any jax.checkpoint of the loop's body"
    )
    return program.finding(
        "repeated_in_loop",
        sentence,
        advice,
        *sites,
        needed_bytes=needed,
        remedy=() if is_written else _gathered_first(program, values),
    )


@dataclass(frozen=True)
class _Value:
    """What is gathered, or what that is computed from element by element, in itself.

    Attributes:
      computation, name: an element of a loop's state as one iteration has it, else what makes it, and which of several
        results.
      dtype: before it is computed with.
      is_gathered: it is gathered as it is.
    """

    computation: str
    name: str
    dtype: str = field(compare=False)
    is_gathered: bool = field(compare=False)


def gathered_twice(program: Program) -> Iterator[Finding]:
    """Gathers of one value, or of what is computed from it element by element, in one pass of one computation, for uses
    that ask for it in other layouts or at other times. What is recomputed gathers again so as not to keep it."""
    found: dict[object, list[tuple[Site, _Value]]] = {}
    for site in program.inserted:
        if site.kind == "all_gather" and site.transfer.payload_bytes >= _SMALLEST and (value := _base(program, site)):
            t = site.transfer
            # Newer XLA names some gathers after what they move, which tells no pass.
            in_pass = (site.phase, _REMAT in site.op_name) if program.is_differentiated else None
            # TPUs start a gather in a fusion of its own.
            around = tuple(i.name for i, _ in site.visit.callers if "fusion" not in i.opcode)
            key = around, value, t.axes, site.result.elements, in_pass
            found.setdefault(key, []).append((site, value))
    for group in found.values():
        sites, narrow = [site for site, _ in group], min(group, key=lambda each: bits(each[1].dtype))
        once = sent([narrow[0]]) * Fraction(bits(narrow[1].dtype), bits(narrow[0].transfer.dtype) or 1)
        if len(sites) > 1 and sites[0].transfer.axes and _LESS * once <= sent(sites):
            yield _gathered_once(program, group, once)


def _gathered_once(program: Program, group: list[tuple[Site, _Value]], once: Fraction) -> Finding:
    sites, plain = [site for site, _ in group], [site for site, value in group if value.is_gathered]
    first, over = (plain or sites)[0], sites[0].transfer.span
    loop = " in every iteration" if (first.transfer.executions or 1) > 1 else ""
    if len(plain) == len(sites):
        each = f"{exact(first.transfer.payload_bytes)} B each time, once for each of its uses"
        what = f"{program.moved(first)} is gathered {count(len(sites), 'time')} over {over}{loop}, {each}"
    else:
        payload = exact(sum(site.transfer.payload_bytes for site in sites))
        what = (
            f"{program.moved(first)} and what is computed from the same, element by element, are gathered over "
            f"{over}{loop}, {count(len(sites), 'time')}, {payload} B in all"
        )
    sentence = f"{what}; gathered once for all, each device would send {exact(once)} B instead of {exact(sent(sites))}"
    advice = (
        "gather it before its first use: x = jax.lax.with_sharding_constraint(x, a spec without "
        f"{over}), and use that; it is whole on every device until the last use"
    )
    return program.finding(
        "gathered_twice", sentence, advice, *sites, needed_bytes=once, remedy=_gathered_first(program, plain)
    )


def _base(program: Program, site: Site) -> _Value | None:
    """The value that all is computed from, back through operations on it and numbers alone; None of a constant or an
    unknown."""
    place, is_gathered = program.moving(site), True
    for _ in range(_FARTHEST):
        if place is None:
            break
        maker = program.flow.source(*place)
        before = _computed_from(program, maker) if maker.instruction.opcode in ELEMENTWISE else None
        if before is None:
            break
        place, is_gathered = before, False
    value = None if place is None else _value(program, place)
    shapes = () if place is None else arrays(place.instruction.shape)
    return _Value(*value, shapes[0].dtype, is_gathered) if value and len(shapes) == 1 else None


def _computed_from(program: Program, maker: Place) -> Place | None:
    """The one array that an operation computes with; None where there are several."""
    found: dict[tuple[str, str], Place] = {}
    for number in range(len(maker.instruction.operands)):
        side = program.operand(maker, number)
        source = None if side is None else program.flow.source(*side, through=frozenset({"broadcast"}))
        if side is None or source is None:
            return None
        shapes = arrays(source.instruction.shape)
        if source.instruction.opcode != "constant" and not (len(shapes) == 1 and shapes[0].elements == 1):
            found[source.computation.name, source.instruction.name] = side
    (side,) = found.values() if len(found) == 1 else (None,)
    return side


def _value(program: Program, place: Place) -> tuple[str, str] | None:
    """An element of a loop's state as one iteration has it, else what makes a value, and which of several results; None
    of a constant."""
    last, element = place, ""
    for step in program.flow.back(*place):
        i, c = last = step
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
