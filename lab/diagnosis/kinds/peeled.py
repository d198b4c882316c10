"""Transfers of iterations that a compiler has taken out of a loop: flags that pipeline collectives, and loops of which
a part is unrolled, leave the first or the last iteration's beside the loop."""

from __future__ import annotations

from collections.abc import Sequence

from lab.diagnosis.program import Program, Site
from lab.hlo.text import Computation

_IN_A_LOOP = "/body/"
"""Of the name that JAX gives what it traces in one."""


def peeled(program: Program, sites: Sequence[Site], body: Computation) -> list[Site]:
    """What stands beside a loop, has the name of one of these that are inside, and sends as much over the same axes."""
    around = {caller.computation.name for caller in program.flow.callers(body) if caller.instruction.opcode == "while"}
    alike = {_marks(site) for site in sites if _IN_A_LOOP in site.op_name}
    return [s for s in program.sites if s.visit.computation.name in around and _marks(s) in alike]


def _marks(site: Site) -> tuple[object, ...]:
    return site.op_name, site.kind, site.transfer.axes, site.transfer.payload_bytes, site.transfer.dtype
