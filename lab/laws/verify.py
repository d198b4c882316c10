"""Holds a law against compiles that it was not derived from. Imports no JAX."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import ceil, lcm, prod
from typing import Any, NamedTuple

from lab.core import codec
from lab.core.units import exact
from lab.laws import evaluate
from lab.laws.bundles import Measured
from lab.laws.derive import About, Measure, Start, derived, site_text, wire_of, with_compiled
from lab.laws.evaluate import OutsideLaw, wire_bytes
from lab.laws.law import Check, Compiled, Condition, Difference, Law, Refused, Term
from lab.laws.measurement import Measurement, Refusal, Site
from lab.laws.polynomial import collected, value, variables
from lab.meshes.axes import Axes

Fits = Callable[[int], bool]
"""Whether a target has as many devices, and they are not too many."""


HELD_OUT = 3


@dataclass(frozen=True)
class Wish:
    """Sizes to hold a law against.

    Attributes:
      degrees: of the first axis, and of all others; the next where the program or the target refuses them.
      factor: about which sizes are larger than the first ones.
      units: that sizes are odd multiples of, the next where the law or the program asks for another.
      skew: how much more widths grow than others, one after the other, and over again: partitioners choose by which
        array is larger. What is small counts layers or steps.
    """

    degrees: tuple[tuple[int, int], ...]
    factor: Fraction
    units: tuple[int, ...]
    skew: tuple[int, ...] = (1,)


# The largest units are those that XLA's kernels for GPUs ask for (jax 0.10.2: it finds no tiles for others).
ODD = Wish(((3, 3), (6, 2), (12, 2), (2, 2)), Fraction(5, 4), (1, 9, 192, 576))
SAME_RATIOS = (3, 9, 5, 6)
"""How much larger all sizes are at once, where some have to divide others."""
ATTEMPTS = 2
FLOPS, MEMORY = "FLOPs", "memory: "
MIXED = Wish(((4, 2), (2, 2)), Fraction(3, 2), (64, 128, 16, 4, 1), (64, 1))
LARGE = Wish(((16, 8), (8, 8), (8, 4), (4, 4), (2, 2)), Fraction(4), (1024, 512, 128, 64, 8, 1), (1, 64))
DEGREES = (16, 8, 4, 2)
COUNTS, WIDEST = 32, 1 << 16
"""From which size on a variable is a width, and to which it is skewed."""


def verified(about: About, start: Start, measure: Measure, fits: Fits) -> Law:
    """The law of a program, with what four compiles say of it that it was not derived from: sizes that no power of two
    divides, where the program takes such, others of another degree on each axis, large ones on many devices, and the
    first ones on many.

    A term that one of them refutes is derived anew with that compile among the others, and held against four fresh
    ones; what those refute has no law.

    Raises:
      UsageError: as `derived`.
    """
    known: Measured = {}
    for attempt in range(ATTEMPTS):
        law, known = derived(about, start, measure, known)
        checks: list[Check] = []
        for wish in (ODD, MIXED, LARGE, None):
            seen = [*(each.sizes for each in law.compiled), *(check.sizes for check in checks)]
            for sizes in _wished(_of_any_unit(law), start.mesh, wish, attempt, fits):
                found = measure([sizes])[0] if sizes not in seen else None
                if isinstance(found, Measurement):
                    check, wrong, together = checked(law, start.mesh, sizes, found)
                    known = {**known, tuple(sizes[name] for name in start.sizes): found}
                    law = with_compiled(_without(_joined(law, together), wrong), sizes)
                    if attempt == ATTEMPTS - 1:
                        law, check = without_totals(law, check)
                    checks.append(check)
                    break
        few = f"held against {len(checks)} compiles, not {HELD_OUT}: the program or the target refuses other sizes"
        law = replace(law, checks=tuple(checks), notes=(*law.notes, *([few] if len(checks) < HELD_OUT else [])))
        if all(check.is_equal for check in checks):
            break
    return _from_one(law, start, measure)


def _from_one(law: Law, start: Start, measure: Measure) -> Law:
    """With degrees of 1 where that is the same law: groups of one device send nothing, and all else is as it says. Two
    compiles tell, of the first sizes and of the largest ones held out."""
    if any(each.kind for each in law.refused):
        return law
    for axis in [v.name for v in law.variables if v.is_axis and v.least > 1]:
        largest = max((check.sizes for check in law.checks), key=lambda of: prod(of.values()), default=start.sizes)
        places = [{**start.sizes, axis: 1}, {**largest, axis: 1}]
        found = measure(places)
        different = next(
            (why for place, each in zip(places, found, strict=True) if (why := _at_one(law, start.mesh, place, each))),
            "",
        )
        if different:
            law = replace(law, notes=(*law.notes, f"{axis}=1 is another program: {different}"))
        else:
            seconds = [each.seconds for each in found if isinstance(each, Measurement)]
            law = replace(
                law,
                variables=tuple(replace(v, least=1) if v.name == axis else v for v in law.variables),
                compiled=(*law.compiled, *map(Compiled, places, seconds)),
            )
    return law


def _at_one(law: Law, mesh: Axes, sizes: Mapping[str, int], found: Measurement | Refusal) -> str:
    """How a compile with a degree of 1 differs from the law."""
    if isinstance(found, Refusal):
        return found.reason
    degrees = mesh.shape | {name: size for name, size in sizes.items() if name in mesh.names}

    def key(of: Term | Site) -> tuple[str, tuple[str, ...]]:
        return str(of.kind), tuple(axis for axis in of.axes if degrees.get(axis) != 1)

    said, seen = (defaultdict[tuple[str, tuple[str, ...]], list[Fraction]](lambda: [Fraction(0)] * 3) for _ in range(2))
    for term in law.terms:
        if value(term.group, sizes) > 1:
            said[key(term)] = [a + b for a, b in zip(said[key(term)], _sums([term], sizes), strict=True)]
    for site in found.sites:
        if site.group_size != 1:
            seen[key(site)] = [a + b for a, b in zip(seen[key(site)], _measured([site]), strict=True)]
    for which in sorted({*said, *seen}):
        if said[which] != seen[which]:
            kind, axes = which
            return f"{kind} over {'+'.join(axes)} is {_says(*seen[which])}, not {_says(*said[which])}"
    if not all(_holds(term.where, sizes) for term in law.terms):
        return "some terms say nothing of these sizes"
    totals = _totals(law, sizes, found)
    return next((f"{what} is {exact(there)}, not {exact(of)}" for what, of, there in totals if of != there), "")


def _of_any_unit(law: Law) -> Law:
    """Also at what was never compiled a multiple of: it is what has to be held against."""
    return replace(law, variables=tuple(replace(v, unit=1) for v in law.variables))


def _wished(law: Law, mesh: Axes, wish: Wish | None, attempt: int, fits: Fits) -> Iterator[dict[str, int]]:
    """Args: wish: None: the first sizes on many devices."""
    if wish is None:
        return first_on_many(law, mesh, fits)
    return candidates(law, mesh, replace(wish, factor=wish.factor + attempt), fits)


def first_on_many(law: Law, mesh: Axes, fits: Fits) -> Iterator[dict[str, int]]:
    """Where degrees outgrow sizes, as far as both were compiled: heads are copied where there are fewer than devices,
    and a pipeline has as many micro-batches as stages."""
    first = law.compiled[0].sizes
    some = {v.name: [size for size in DEGREES if size <= v.most] for v in law.variables if v.is_axis}
    each = [dict(zip(some, degrees, strict=True)) for degrees in product(*some.values())]
    for degrees in sorted(each, key=lambda of: -prod(of.values())):
        if fits(prod((mesh.shape | degrees).values())) and holds(law, {**first, **degrees}):
            yield {**first, **degrees}


def candidates(law: Law, mesh: Axes, wish: Wish, fits: Fits) -> Iterator[dict[str, int]]:
    """Where the law holds: first where all of its terms do."""
    found = list(_candidates(law, mesh, wish, fits))
    everywhere = [condition for term in law.terms for condition in term.where]
    whole = [sizes for sizes in found if _holds(everywhere, sizes)]
    yield from (*whole, *(sizes for sizes in found if sizes not in whole))


def _candidates(law: Law, mesh: Axes, wish: Wish, fits: Fits) -> Iterator[dict[str, int]]:
    first, axes = law.compiled[0].sizes, [v.name for v in law.variables if v.is_axis]
    own = [v.name for v in law.variables if not v.is_axis]
    for leading, other in wish.degrees:
        degrees = {name: other if number else leading for number, name in enumerate(axes)}
        if not fits(prod((mesh.shape | degrees).values())):
            continue
        least = _least(law, degrees)
        for skew in dict.fromkeys((wish.skew, (1,))):
            for unit in wish.units:
                sizes = degrees | {
                    name: _odd_multiple(first[name] * factor, unit, least.get(name, 1), number % 3)
                    for number, (name, factor) in enumerate(_factors(first, own, wish.factor, skew))
                }
                if holds(law, sizes):
                    yield sizes
        for times in SAME_RATIOS:
            sizes = degrees | {name: first[name] * times for name in own}
            if holds(law, sizes):
                yield sizes


def _factors(
    first: Mapping[str, int], names: Sequence[str], factor: Fraction, skew: Sequence[int]
) -> Iterator[tuple[str, Fraction]]:
    place = 0
    for name in names:
        more = 1
        if first[name] >= COUNTS:
            more = max(1, min(skew[place % len(skew)], int(WIDEST / (first[name] * factor))))
            place += 1
        yield name, factor * more


def _least(law: Law, degrees: Mapping[str, int]) -> dict[str, int]:
    """What each size has to be a multiple of, by conditions of one size alone."""
    found: dict[str, int] = {}
    for condition in (*law.conditions, *(each for term in law.terms for each in term.where)):
        if len(condition.dim) == 1 and variables(condition.parts) <= set(degrees):
            (dim,) = condition.dim
            parts = value(condition.parts, degrees) / dim.coefficient
            if list(dim.exponents.values()) == [1]:
                (name,) = dim.exponents
                found[name] = lcm(found.get(name, 1), parts.numerator)
    return found


def _odd_multiple(size: Fraction, unit: int, least: int, later: int) -> int:
    """The first from `size` on, or a later one; of a unit that is no larger, as few have as many layers as columns."""
    while unit % 2 == 0 and unit > size:
        unit //= 2
    unit = lcm(unit, least)
    count = ceil(size / unit)
    return unit * (count + 1 - count % 2 + 2 * later)


def holds(law: Law, sizes: Mapping[str, int]) -> bool:
    """By its conditions: a term that then comes to no whole number is a wrong one."""
    try:
        evaluate.check(codec.to_json(law), sizes)
    except OutsideLaw:
        return False
    return True


class Checked(NamedTuple):
    """What one compile says of a law.

    Attributes:
      wrong: the terms that it refutes, and how.
      together: terms that are right as a sum alone: none of them says how often it sends what.
    """

    check: Check
    wrong: list[tuple[Term, str]]
    together: list[tuple[Term, ...]]


def checked(law: Law, mesh: Axes, sizes: Mapping[str, int], found: Measurement) -> Checked:
    wrong: list[tuple[Term, str]] = []
    together: list[tuple[Term, ...]] = []
    differences: list[Difference] = []
    left = [term for term in law.terms if _holds(term.where, sizes)]
    seen = list(found.sites)
    equal: list[Term] = []
    for level, is_each in ((0, True), (0, False), (1, False), (2, False)):
        by_name: dict[Hashable, list[Site]] = defaultdict(list)
        for site in seen:
            by_name[_site_names(site)[level]].append(site)
        of_terms: dict[Hashable, list[Term]] = defaultdict(list)
        for term in left:
            of_terms[term_names(term)[level]].append(term)
        for name, terms in of_terms.items():
            those = by_name.get(name, [])
            alone = _are_payloads(terms, those, sizes)
            if _sums(terms, sizes) == _measured(those) and (alone or not is_each):
                equal += terms
                if is_each:
                    together += _indistinct(terms, those, sizes)
                elif len(terms) > 1 or not alone:
                    together.append(tuple(terms))
                left = [term for term in left if term not in terms]
                seen = [site for site in seen if site not in those]
    for term in left:
        law_says = _sums([term], sizes)
        there = [site for site in found.sites if _site_names(site)[0] == term_names(term)[0]]
        says = _says(*_measured(there))
        differences.append(Difference(term_text(term), _says(*law_says), says))
        wrong.append((term, f"refuted at {_text(sizes)}: by the law {_says(*law_says)}, compiled {says}"))
    silent = {(term.kind, term.axes) for term in law.terms if not _holds(term.where, sizes)}
    silent |= {(each.kind, each.axes) for each in law.refused if each.kind}
    differences += [
        Difference(site_text(site), "nothing", _says(*_measured([site])))
        for site in (() if left else seen)
        if (site.kind, site.axes) not in silent
    ]
    for what, law_value, compiled in _totals(law, sizes, found):
        if law_value != compiled:
            differences.append(Difference(what, exact(law_value), exact(compiled)))
    whole = sum(map(wire_of, found.sites))
    under = whole - sum(map(wire_of, seen))
    devices = prod(sizes.get(name, size) for name, size in mesh.shape.items())
    check = Check(
        dict(sizes), devices, len(law.terms), len(equal), float(whole), float(under), tuple(differences), found.seconds
    )
    return Checked(check, wrong, together)


def _are_payloads(terms: Sequence[Term], sites: Sequence[Site], sizes: Mapping[str, int]) -> bool:
    """Whether each payload is sent as often as the terms say, where they say it."""
    said, seen = Counter[Fraction](), Counter[Fraction]()
    for term in terms:
        if term.payload is None:
            return True
        said[value(term.payload, sizes)] += value(term.executions, sizes)  # type: ignore[assignment]  # As often.
    for site in sites:
        seen[Fraction(site.payload_bytes)] += site.executions or 0
    return said == seen


def _indistinct(terms: Sequence[Term], sites: Sequence[Site], sizes: Mapping[str, int]) -> Iterator[tuple[Term, ...]]:
    """Terms of one name and payload that are not each as often there as they say."""
    alike: dict[str, tuple[Term, ...]] = {}
    for term in terms:
        alike[repr(term.payload)] = (*alike.get(repr(term.payload), ()), term)
    often = Counter(Fraction(site.executions or 0) for site in sites)
    for some in alike.values():
        if len(some) > 1 and Counter(value(term.executions, sizes) for term in some) - often:
            yield some


def _joined(law: Law, together: Sequence[Sequence[Term]]) -> Law:
    """With one term for those that are right together alone, under the names that they share."""
    terms = list(law.terms)
    for some in together:
        if len({repr(term.group) for term in some}) > 1:
            continue
        place = terms.index(some[0])
        terms = [term for term in terms if term not in some]
        terms.insert(place, _one_of(some))
    return replace(law, terms=tuple(terms))


def _one_of(terms: Sequence[Term]) -> Term:
    def shared(name: str, otherwise: Any) -> Any:
        found = {getattr(term, name) for term in terms}
        return found.pop() if len(found) == 1 else otherwise

    one = terms[0]
    payloads = {repr(term.payload) for term in terms}
    return replace(
        one,
        phase=shared("phase", None),
        scope=shared("scope", ""),
        function=shared("function", ""),
        origin=shared("origin", None),
        dtype="+".join(sorted({term.dtype for term in terms})),
        is_widened=all(term.is_widened for term in terms),
        is_masked_gather=all(term.is_masked_gather for term in terms),
        payload=one.payload if len(terms) > 1 and len(payloads) == 1 else None,
        executions=collected(each for term in terms for each in term.executions),
        payload_of_step=collected(each for term in terms for each in term.payload_of_step),
        where=tuple({each.text: each for term in terms for each in term.where}.values()),
        level=max(term.level for term in terms),
        sites=sum(term.sites for term in terms),
        shift=shared("shift", None),
    )


def _holds(where: Sequence[Condition], sizes: Mapping[str, int]) -> bool:
    return all(value(one.dim, sizes) % value(one.parts, sizes) == 0 for one in where)


def _totals(law: Law, sizes: Mapping[str, int], found: Measurement) -> Iterator[tuple[str, Fraction, int]]:
    if law.flops is not None and found.flops is not None and _holds(law.flops_where, sizes):
        yield FLOPS, value(law.flops, sizes), found.flops
    for name, of in law.memory.items():
        compiled = getattr(found.memory, name, None)
        if compiled is not None and _holds(law.memory_where.get(name, ()), sizes):
            yield MEMORY + name, value(of, sizes), compiled


def _without(law: Law, wrong: Sequence[tuple[Term, str]]) -> Law:
    """Refuted terms have no law."""
    first = law.compiled[0].sizes
    whole = _sums(law.terms, first)[2] or Fraction(1)
    lost = [term for term, _ in wrong]
    refused = [
        Refused(term.kind, term.axes, term_text(term), reason, float(_sums([term], first)[2] / whole))
        for term, reason in wrong
    ]
    kept = tuple(term for term in law.terms if term not in lost)
    return replace(law, terms=kept, refused=(*law.refused, *refused))


def without_totals(law: Law, check: Check) -> tuple[Law, Check]:
    """FLOPs and memory that a check refutes have no law: what it refutes is no part of the law, then."""
    totals = {each.what: each for each in check.differences if each.what == FLOPS or each.what.startswith(MEMORY)}
    refused = [
        Refused(
            None, (), what, f"refuted at {_text(check.sizes)}: by the law {each.law}, compiled {each.compiled}", 0.0
        )
        for what, each in totals.items()
    ]
    kept = replace(
        law,
        flops=None if FLOPS in totals else law.flops,
        flops_where=() if FLOPS in totals else law.flops_where,
        memory={name: of for name, of in law.memory.items() if MEMORY + name not in totals},
        refused=(*law.refused, *refused),
    )
    return kept, replace(check, differences=tuple(each for each in check.differences if each.what not in totals))


def _site_names(site: Site) -> tuple[Hashable, ...]:
    least = (site.kind, site.axes, site.network_kind, site.conditional)
    return (
        (*least, site.phase, site.dtype, site.scope, site.origin or ""),
        (*least, site.phase, site.dtype, site.scope),
        least,
    )


def term_names(term: Term) -> tuple[Hashable, ...]:
    """From all of its names to few of them."""
    least = (term.kind, term.axes, term.network_kind, term.conditional)
    return (
        (*least, term.phase, term.dtype, term.scope, term.origin or ""),
        (*least, term.phase, term.dtype, term.scope),
        least,
    )


def _sums(terms: Iterable[Term], sizes: Mapping[str, int]) -> tuple[Fraction, Fraction, Fraction]:
    """Executions, and payload and wire bytes of a step."""
    executions = payload = wire = Fraction(0)
    for term in terms:
        step, group = value(term.payload_of_step, sizes), value(term.group, sizes)
        executions += value(term.executions, sizes)
        payload += step
        wire += wire_bytes(term.kind, term.network_kind, int(step), int(group))
    return executions, payload, wire


def _measured(sites: Iterable[Site]) -> tuple[Fraction, Fraction, Fraction]:
    some = list(sites)
    executions = Fraction(sum(site.executions or 0 for site in some))
    payload = Fraction(sum((site.executions or 0) * site.payload_bytes for site in some))
    return executions, payload, sum(map(wire_of, some), Fraction(0))


def _says(executions: Fraction, payload: Fraction, wire: Fraction) -> str:
    return f"{float(executions):,g} x, {float(payload):,.0f} B" if payload else "nothing"


def term_text(term: Term) -> str:
    """`all_gather over fsdp, layers/mlp/up`."""
    where = term.scope or term.function or term.origin or ""
    return f"{term.kind} over {'+'.join(term.axes)}" + (f", {where}" if where else "")


def full_text(term: Term) -> str:
    """`all_gather over fsdp, layers/mlp/up, backward`."""
    return ", ".join(filter(None, (term_text(term), term.phase)))


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
