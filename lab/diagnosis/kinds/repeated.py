"""What a loop moves or reduces again in every iteration though no iteration changes it."""

from __future__ import annotations

from collections.abc import Iterator

from lab.core.units import exact
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import Place
from lab.diagnosis.invariant import is_invariant, loop_of
from lab.diagnosis.kinds.accumulation import trips
from lab.diagnosis.program import Program, Site, largest, sent, times
from lab.hlo.text import Computation

_KINDS = ("all_gather", "all_reduce", "all_to_all", "collective_permute")
_SMALLEST = 1024


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
        f"{exact(most.transfer.payload_bytes)} B each time; once before the loop would send {times(often)} fewer bytes"
    )
    advice = (
        "do it before the loop: constrain the value there to the sharding that the loop uses, such as "
        "jax.lax.with_sharding_constraint(w, P()), outside of any jax.checkpoint of the loop's body"
    )
    return program.finding(
        "repeated_in_loop", sentence, advice, *sites, needed_bytes=sent(sites) / often if often else None
    )
