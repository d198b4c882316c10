"""Transfers that one line of the program causes, as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lab.diagnosis.program import Program, Site


def together(program: Program, concerns: Callable[[Site], bool]) -> Iterator[list[Site]]:
    """The compiler's own transfers that `concerns`, those of one operation and line at a time, with what has no name on
    that line."""
    by_cause: dict[tuple[str, str | None], list[Site]] = {}
    for site in program.inserted:
        if concerns(site):
            by_cause.setdefault((site.primitive, site.line), []).append(site)
    for (_, line), sites in by_cause.items():
        nameless = [site for site in program.inserted if site.transfer.op_name is None and line and site.line == line]
        yield sites + [site for site in nameless if site not in sites]
