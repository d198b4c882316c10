"""Complex numbers on the wire."""

from __future__ import annotations

from collections.abc import Iterator

from lab.core.units import count
from lab.diagnosis.finding import Finding
from lab.diagnosis.program import Program


def complex_moved(program: Program) -> Iterator[Finding]:
    """Complex numbers are moved, of which real parts alone may be needed."""
    sites = [site for site in program.sites if site.transfer.dtype in ("c64", "c128")]
    if sites:
        sentence = f"{count(len(sites), 'transfer')} of complex numbers, {program.moved(sites[0])} first"
        yield program.finding("complex_moved", sentence, "take jnp.real before the move, or use rfft", *sites)
