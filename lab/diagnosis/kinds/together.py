"""Transfers that one line of the program causes, as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lab.core.known import known
from lab.diagnosis.program import Program, Site, operation
from lab.diagnosis.slices import ELEMENTWISE

_COLLECTIVES = frozenset(
    f"{name}{suffix}"
    for name in ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
    for suffix in ("", "-start")
)
_JOINS = _COLLECTIVES | ELEMENTWISE | {"concatenate", "pad"}
"""TPUs pad what they join, and take the maximum."""


def together(program: Program, concerns: Callable[[Site], bool]) -> Iterator[list[Site]]:
    """The compiler's own transfers that `concerns`, those of one operation and line at a time, with what the text does
    not name, or names after that operation, and goes on with these, on that line."""
    by_cause: dict[tuple[str, str | None], list[Site]] = {}
    for site in program.inserted:
        if concerns(site):
            by_cause.setdefault((site.primitive, site.line), []).append(site)
    concerned = {site.key for sites in by_cause.values() for site in sites}
    for (primitive, line), sites in by_cause.items():
        others = [s for s in program.inserted if s.key not in concerned and line and _is_of_line(s, primitive, line)]
        yield sites + [site for site in others if _is_of_a_chain(program, site, sites)]


def _is_of_line(site: Site, primitive: str, line: str) -> bool:
    """The text does not say what for, or says this operation: what moves its result is named after it, too."""
    t = site.transfer
    return site.line == line if t.op_name is None else (operation(t.op_name), t.origin) == (primitive, line)


def _is_of_a_chain(program: Program, other: Site, sites: list[Site]) -> bool:
    """It moves on what one of these has moved, or moves for one of these: on one line much may stand beside."""
    keys = {site.key[:2] for site in sites}
    operand = program.moving(other)
    before = (
        ()
        if operand is None
        else program.flow.back(*operand, through=_COLLECTIVES if other.transfer.op_name is None else _JOINS)
    )
    if any((c.name, i.name) in keys for i, c in before):
        return True
    users = [(use.computation.name, known(use.instruction).name) for use in program.uses(other) if use.instruction]
    return any(user in keys for user in users)
