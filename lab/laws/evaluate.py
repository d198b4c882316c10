"""Evaluates a law anywhere: `evaluate(json.load(file), {"fsdp": 4096, "layers": 126, ...})`. It needs this file and
Python alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

SHARES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""What devices of a group of P send of a payload n: this times (P-1)/P n; of all other kinds n."""


MOST_POWERS = 64
"""Of a variable; no program has as many, and larger ones would not end."""


class OutsideLaw(ValueError):
    """The law says nothing of these sizes."""


def evaluate(law: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """What a step of one device sends, multiplies and holds at these sizes.

    Args:
      law: what `lab law --json` prints.
      sizes: one whole number for each of the law's variables.
    Returns:
      `terms`: of each its executions, and payload and wire bytes of a step; `payload_bytes`, `wire_bytes`, `by_axes`;
      `flops`, `arguments` and what else of memory has a law, or null; `memory_at_least`: bounds; `beyond`: variables
      larger than all that was compiled; `is_whole`: no transfer of the program is without a law. Bytes on wires are
      fractions where P does not divide them.
    Raises:
      OutsideLaw: a variable is missing or unknown, the law does not hold there, or this is no law.
    """
    try:
        return _evaluated(law, sizes)
    except OutsideLaw:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise OutsideLaw(f"expected a law as lab law --json prints it ({what})") from error


def _evaluated(law: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    check(law, sizes)
    held = [term for term in law["terms"] if divides(term["where"], sizes) is None]
    # Where a degree is 1, groups along it are no groups, and the program has no such transfer.
    alone = {axis for axis, size in sizes.items() if size == 1}
    terms = [
        _term(term, sizes) for term in held if not (alone & set(term["axes"]) and value(term["group"], sizes) == 1)
    ]
    knows_flops = law["flops"] is not None and divides(law["flops_where"], sizes) is None
    by_axes: dict[str, Fraction] = {}
    for term in terms:
        axes = "+".join(term["axes"])
        by_axes[axes] = by_axes.get(axes, Fraction(0)) + term["wire_bytes"]
    where = law.get("memory_where", {})
    memory = {
        name: _whole(each, sizes, name)
        for name, each in law["memory"].items()
        if divides(where.get(name, ()), sizes) is None
    }
    return {
        "terms": terms,
        "payload_bytes": sum(term["payload_bytes"] for term in terms),
        "wire_bytes": sum((term["wire_bytes"] for term in terms), Fraction(0)),
        "by_axes": by_axes,
        "flops": _whole(law["flops"], sizes, "FLOPs") if knows_flops else None,
        "memory": memory,
        "beyond": [each["name"] for each in law["variables"] if sizes[each["name"]] > each["most"]],
        "memory_at_least": {
            name: _whole(each, sizes, name)
            for name, each in law.get("memory_at_least", {}).items()
            if name not in memory
        },
        "is_whole": len(held) == len(law["terms"]) and not any(each["kind"] for each in law["refused"]),
    }


def check(law: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Raises OutsideLaw where the law does not hold."""
    known = {variable["name"]: variable for variable in law["variables"]}
    for name in sizes:
        if name not in known:
            raise OutsideLaw(f"{name}: no variable of the law; expected {', '.join(known)}")
    for name, variable in known.items():
        if name not in sizes:
            raise OutsideLaw(f"{name} is missing; the law has the variables {', '.join(known)}")
        if type(sizes[name]) is not int or sizes[name] < 1:
            raise OutsideLaw(f"{name}={sizes[name]!r}: expected a whole number from 1 on")
        if sizes[name] < variable["least"]:
            raise OutsideLaw(f"{name}={sizes[name]}: the law holds from {variable['least']} on")
        if sizes[name] != variable["least"] and sizes[name] % variable.get("unit", 1):
            raise OutsideLaw(f"{name}={sizes[name]}: only multiples of {variable['unit']} were compiled")
    alone = [name for name, variable in known.items() if variable["is_axis"] and sizes[name] == 1]
    if len(alone) > 1:
        raise OutsideLaw(f"{'=1, '.join(alone)}=1: one degree of 1 at a time was compiled")
    broken = divides(law["conditions"], sizes)
    if broken:
        raise OutsideLaw(broken)


def divides(conditions: Sequence[Mapping[str, Any]], sizes: Mapping[str, int]) -> str | None:
    """None where all conditions hold, else a sentence about the first that does not."""
    for condition in conditions:
        dim, parts = value(condition["dim"], sizes), value(condition["parts"], sizes)
        if dim.denominator != 1 or dim % parts:
            return f"{condition['text']} does not hold: {dim} does not divide into {parts}"
    return None


def value(polynomial: Sequence[Mapping[str, Any]], sizes: Mapping[str, int]) -> Fraction:
    """A sum of monomials."""
    above, below = 0, 1
    for monomial in polynomial:
        numerator, denominator = monomial["numerator"], monomial["denominator"]
        if not type(numerator) is type(denominator) is int:
            raise OutsideLaw(f"{numerator!r} / {denominator!r}: expected whole numbers")
        for name, exponent in monomial["exponents"].items():
            if not -MOST_POWERS <= exponent <= MOST_POWERS:
                raise OutsideLaw(f"{name}^{exponent}: expected powers up to {MOST_POWERS}")
            if exponent > 0:
                numerator *= sizes[name] ** exponent
            else:
                denominator *= sizes[name] ** -exponent
        above, below = above * denominator + numerator * below, below * denominator
    return Fraction(above, below)


def wire_bytes(kind: str, network_kind: str | None, payload_bytes: int, group: int) -> Fraction:
    """Bytes that one device sends, by the conventions of the lab (`lab.core.ledger`)."""
    if group <= 1:
        return Fraction(0)
    if network_kind is not None:
        whole = payload_bytes * (group if network_kind == "all_gather" else 1)
        return wire_bytes(network_kind, None, whole, group)
    if kind in SHARES:
        return Fraction(SHARES[kind] * (group - 1) * payload_bytes, group)
    return Fraction(payload_bytes)


def _term(term: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    name = f"{term['kind']} of {term['scope'] or term['origin'] or 'the program'}"
    executions = _whole(term["executions"], sizes, name)
    step = _whole(term["payload_of_step"], sizes, name)
    if term["payload"] is not None:
        _whole(term["payload"], sizes, name)
    group = _whole(term["group"], sizes, name)
    if group < 1:
        raise OutsideLaw(f"{name} has groups of {group} devices at these sizes")
    return {
        **{key: term[key] for key in ("kind", "axes", "phase", "scope", "function", "origin", "dtype")},
        "executions": executions,
        "payload_bytes": step,
        "wire_bytes": wire_bytes(term["kind"], term["network_kind"], step, group),
    }


def _whole(polynomial: Sequence[Mapping[str, Any]], sizes: Mapping[str, int], what: str) -> int:
    found = value(polynomial, sizes)
    if found.denominator != 1 or found < 0:
        raise OutsideLaw(f"{what} comes to {found} at these sizes, which is no count; a dim does not divide there")
    return int(found)
