"""Transfers that one line of the program causes, as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lab.core.known import known
from lab.diagnosis.program import Program, Site

_COLLECTIVES = frozenset(
    f"{name}{suffix}"
    for name in ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
    for suffix in ("", "-start")
)


def together(program: Program, concerns: Callable[[Site], bool]) -> Iterator[list[Site]]:
    """The compiler's own transfers that `concerns`, those of one operation and line at a time, with what has no
    name and goes on with these, on that line."""
    by_cause: dict[tuple[str, str | None], list[Site]] = {}
    for site in program.inserted:
        if concerns(site):
            by_cause.setdefault((site.primitive, site.line), []).append(site)
    for (_, line), sites in by_cause.items():
        nameless = [site for site in program.inserted if site.transfer.op_name is None and line and site.line == line]
        yield sites + [site for site in nameless if site not in sites and _is_of_a_chain(program, site, sites)]


def _is_of_a_chain(program: Program, nameless: Site, sites: list[Site]) -> bool:
    """It moves on what one of these has moved, or moves for one of these: on one line much may stand beside."""
    if moves_on(program, nameless, sites):
        return True
    keys = {site.key[:2] for site in sites}
    users = [(use.computation.name, known(use.instruction).name) for use in program.uses(nameless) if use.instruction]
    return any(user in keys for user in users)


def moves_on(program: Program, site: Site, sites: list[Site], through: frozenset[str] = frozenset()) -> bool:
    """What it moves is what one of these has moved, or operations of opcodes `through` have made of that."""
    keys, operand = {each.key[:2] for each in sites}, program.moving(site)
    before = () if operand is None else program.flow.back(*operand, through=_COLLECTIVES | through)
    return any((c.name, i.name) in keys for i, c in before)
