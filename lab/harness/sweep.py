"""A formula held against simulations at many sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose

from lab.harness.claim import Claim, decided


@dataclass(frozen=True)
class Point:
    """One size, such as "P 4, m 8", and what simulation and formula give there."""

    at: str
    simulated: float
    formula: float

    @property
    def agrees(self) -> bool:
        return isclose(self.simulated, self.formula, rel_tol=1e-9, abs_tol=1e-12)


def swept(
    id: str, points: Sequence[Point], *, statement: str, disputed: str | None = None, structural: bool = False
) -> Claim:
    """Confirmed where a formula gives what was simulated at every size; the evidence names the last one, or the first
    that differs."""
    different = [point for point in points if not point.agrees]
    shown = different[0] if different else points[-1]
    found = (
        f"{len(different)} of {len(points)} simulations differ"
        if different
        else f"{len(points)} of {len(points)} simulations agree"
    )
    evidence = f"{found}: {_number(shown.simulated)} at {shown.at}" + f", not {_number(shown.formula)}" * bool(
        different
    )
    return decided(id, not different, evidence, statement=statement, disputed=disputed, structural=structural)


def _number(value: float) -> str:
    return f"{float(value):,.5g}"
