"""What a law says of growth: which terms shrink with a degree and which do not, which of them is most in the end, and
where communication takes longer than the products. Imports no JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from lab.core import codec
from lab.laws.evaluate import OutsideLaw, check, wire_bytes
from lab.laws.law import Law, Term
from lab.laws.polynomial import value
from lab.laws.verify import full_text
from lab.meshes.errors import UsageError, no_such
from lab.meshes.hardware import chip as described
from lab.meshes.platforms import Platform
from lab.meshes.targets import parse_target

DEVICES = "devices"
"""All degrees of the law, of which the first grows."""
TIMES = (1, 10, 100, 1000)
FARTHEST = 20
"""Doublings within which communication passes the products, or never is said to."""
DTYPE = "bf16"
GPUS_OF_HOST = 8
"""Where the target does not say."""


@dataclass(frozen=True)
class Growth:
    """One term as a variable grows and all else stays.

    Attributes:
      does: "shrinks", "stays" or "grows".
      power: of the variable, in the end.
      wire_bytes: of a step of one device, at each of `TIMES` as large a value.
    """

    what: str
    origin: str | None
    does: str
    power: int
    wire_bytes: tuple[float, ...]


@dataclass(frozen=True)
class Winner:
    """The term that sends most; `others` send as much."""

    times: int
    what: str
    share: float
    others: int


@dataclass(frozen=True)
class Crossing:
    """Where communication along the links of the target takes longer than the products, at the rates of the data sheet.

    Attributes:
      at: the first power of two times the variable's value at which it does; null where it does at none.
      is_there: it does from the start.
    """

    chip: str
    at: int | None
    is_there: bool


@dataclass(frozen=True)
class Scale:
    """A law along one variable.

    Attributes:
      no_crossing: why there is no crossing to tell of.
      outside: why the law says nothing of the first of these sizes of which it does not, as formulas go on there.
    """

    variable: str
    sizes: Mapping[str, int]
    growths: tuple[Growth, ...]
    winners: tuple[Winner, ...]
    crossing: Crossing | None
    no_crossing: str = ""
    outside: str = ""


def scaled(law: Law, name: str, sizes: Mapping[str, int], chip: str | None = None) -> Scale:
    """A law from these sizes on.

    Args:
      name: a variable, or `devices` for the law's first degree.
      chip: whose data sheet says where communication passes the products; None for the target's.
    Raises:
      UsageError: no such variable, `devices` of a law in no degree, or no such chip.
    """
    axes = [v.name for v in law.variables if v.is_axis]
    if name == DEVICES and not axes:
        raise UsageError(f"{DEVICES}: the law is in no degree of the mesh; known are {', '.join(law.names)}")
    variable = axes[0] if name == DEVICES else name
    if variable not in law.names:
        raise no_such("variable", name, law.names)

    def at(times: int) -> dict[str, int]:
        return {**sizes, variable: sizes[variable] * times}

    growths = tuple(
        Growth(full_text(term), term.origin, *_does(term, variable), tuple(float(_wire(term, at(n))) for n in TIMES))
        for term in law.terms
    )
    winners = []
    for place, times in enumerate(TIMES):
        most = max(growths, key=lambda growth: growth.wire_bytes[place], default=None)
        whole = sum(growth.wire_bytes[place] for growth in growths)
        if most is not None and whole:
            alike = sum(growth.wire_bytes[place] == most.wire_bytes[place] for growth in growths)
            winners.append(Winner(times, most.what, most.wire_bytes[place] / whole, alike - 1))
    crossing = _crossing(law, variable, sizes, chip)
    found, why = (None, crossing) if isinstance(crossing, str) else (crossing, "")
    outside = next(filter(None, (_outside(law, at(n)) for n in TIMES)), "")
    return Scale(variable, dict(sizes), growths, tuple(winners), found, why, outside)


def _outside(law: Law, sizes: Mapping[str, int]) -> str:
    """Why the law says nothing of these sizes."""
    try:
        check(codec.to_json(law), sizes)
    except OutsideLaw as why:
        return str(why)
    return ""


def _does(term: Term, variable: str) -> tuple[str, int]:
    power = max((each.exponents.get(variable, 0) for each in term.payload_of_step), default=0)
    return ("shrinks" if power < 0 else "grows" if power else "stays"), power


def _wire(term: Term, sizes: Mapping[str, int]) -> Fraction:
    """Also where a dim does not divide: how it grows is asked, not what a device sends."""
    step, group = value(term.payload_of_step, sizes), value(term.group, sizes)
    return step * wire_bytes(term.kind, term.network_kind, int(group), int(group)) / int(group)


def _crossing(law: Law, variable: str, sizes: Mapping[str, int], name: str | None) -> Crossing | str:
    """Or why there is none."""
    target = parse_target(law.target)
    if law.flops is None:
        reasons = (each.reason for each in law.refused if each.what == "FLOPs")
        return f"FLOPs have no law ({next(reasons, 'none was asked for')}), so that no time of products is known"
    name = name or target.chip
    if name is None:
        return f"{target.platform} devices have no data sheet; name a chip by --chip"
    flops, chip = law.flops, described(name)
    peak = chip.flops_per_s[DTYPE].value / chip.devices_per_chip
    here = target.per_host if target.platform == Platform.GPU else GPUS_OF_HOST
    inside = here if chip.platform == Platform.GPU else None

    def passes(times: int) -> bool:
        here = {**sizes, variable: sizes[variable] * times}
        degrees = {name: here.get(name, size) for name, size in law.mesh.items()}
        sent = sum(
            float(_wire(term, here)) / (chip.fast if _is_near(term.axes, degrees, inside) else chip.slow).value
            for term in law.terms
        )
        return sent * chip.devices_per_chip > float(value(flops, here)) / peak

    if passes(1):
        return Crossing(chip.name, sizes[variable], True)
    at = next((2**n for n in range(1, FARTHEST) if passes(2**n)), None)
    return Crossing(chip.name, at and at * sizes[variable], False)


def _is_near(axes: Sequence[str], degrees: Mapping[str, int], inside: int | None) -> bool:
    """Whether groups along these axes lie in one host; of one TPU slice always."""
    names = list(degrees)
    known = [names.index(axis) for axis in axes if axis in degrees]
    return inside is None or not known or prod(list(degrees.values())[min(known) :]) <= inside
