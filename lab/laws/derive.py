"""From a family of programs to its law: which sizes to compile, one after the other, until no term can be two
things. Imports no JAX."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from math import gcd, prod
from operator import attrgetter
from types import MappingProxyType
from typing import Generic, TypeVar

from lab.core.ledger import Memory, Phase, wire_bytes
from lab.laws import formula
from lab.laws.bundles import Bundle, Measured, Subject, grown, items_at, merged, relatives
from lab.laws.interpolation import Grid, Missing, NoLaw, Point, Unknowable, solved
from lab.laws.law import Compiled, Condition, Law, Products, Refused, Term, Variable
from lab.laws.measurement import Argument, Measurement, Product, Refusal, Site
from lab.laws.polynomial import Polynomial, collected, monomial, product, value, variables
from lab.laws.transfers import (
    Exact,
    Grain,
    TransferLaw,
    apart,
    arguments,
    common,
    graded,
    is_of_grains,
    outputs,
    products,
    reproduced,
    shift,
    transfers,
)
from lab.meshes.axes import Axes

Measure = Callable[[Sequence[Mapping[str, int]]], Sequence[Measurement | Refusal]]
"""Measures a program at several assignments of sizes."""
Splits = Mapping[tuple[str, tuple[str, ...]], tuple[int, ...]]
"""Sizes of dims by what splits them, and along which axes."""
FACTORS = (Fraction(2), Fraction(4), Fraction(3), Fraction(8), Fraction(1, 2), Fraction(5))
"""What a variable is multiplied with, in this order."""
MOST_COMPILES = 80
BOUNDS = {"stays": "peak"}
"""What has to be there at a peak: arguments, and outputs that are none of them."""
REPORTED: Mapping[str, Callable[[Memory], int | None]] = {
    name: attrgetter(name) for name in ("arguments", "outputs", "temporaries", "peak")
}
LARGEST = "a sum, or the largest of several, that these sizes do not tell apart"
MANY = "a sum of more powers than the compiles tell apart"
UNTOLD = "where it has to divide is not told"
I = TypeVar("I")  # noqa: E741
T = TypeVar("T")


@dataclass(frozen=True)
class Start:
    """Where the search begins.

    Attributes:
      sizes: the first value of each variable.
      mesh: all axes, with the degrees of those that are not varied.
      fixed: sizes that are not varied.
    """

    sizes: Mapping[str, int]
    mesh: Axes
    fixed: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class About:
    """What a law says of where it is from."""

    source: str
    target: str
    platform: str
    style: str | None
    compiler: str


@dataclass
class _Search:
    """What was measured so far."""

    start: Start
    measure: Measure
    most: int
    measured: dict[Point, Measurement | Refusal] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.start.sizes)

    @property
    def first(self) -> Point:
        return tuple(self.start.sizes.values())

    def sizes(self, point: Point) -> dict[str, int]:
        return dict(zip(self.names, point, strict=True))

    def points(self) -> list[Point]:
        return [point for point, found in self.measured.items() if isinstance(found, Measurement)]

    def at(self, point: Point) -> Measurement:
        """Of one of `points`."""
        found = self.measured[point]
        if isinstance(found, Refusal):
            raise LookupError(point)
        return found

    def compile(self, points: Iterable[Point]) -> None:
        new = [point for point in dict.fromkeys(points) if point not in self.measured]
        self.measured |= dict(zip(new, self.measure([self.sizes(point) for point in new]), strict=True))

    def values(self, i: int) -> tuple[int, ...]:
        """Of one variable, without those at which the program is refused."""
        first = self.first[i]
        scaled = [first * factor for factor in FACTORS if (first * factor).denominator == 1]
        least = 2 if self.names[i] in self.start.mesh.names else 1
        some = [int(size) for size in scaled if size >= least]
        return (first, *(v for v in some if not isinstance(self.measured.get(self.along(i, v)), Refusal)))

    def along(self, i: int, value: int) -> Point:
        return (*self.first[:i], value, *self.first[i + 1 :])

    def grid(self) -> Grid:
        plain = Grid(self.names, tuple(self.values(i) for i in range(len(self.names))))
        sizes = [name for name in self.names if name not in self.start.mesh.names]
        split = [(each.dim, each.parts) for each in _conditions(self, plain)]
        whole = [
            (dim, (monomial(1, {}),))
            for name in sizes
            if (dim := (monomial(1, {name: 1}),)) not in [one for one, _ in split]
        ]
        return replace(plain, dims=(*whole, *split))


def derived(
    about: About, start: Start, measure: Measure, known: Measured = MappingProxyType({}), most: int = MOST_COMPILES
) -> tuple[Law, Measured]:
    """The law of a program, with what was measured for it.

    Args:
      known: what was measured before; the law reproduces it as well.
    Raises:
      UsageError: it does not build at the first sizes, or at no other value of a variable.
    """
    search = _Search(start, measure, most, dict(known))
    search.compile([search.first, *(search.along(i, search.values(i)[1]) for i in range(len(search.names)))])
    found = search.measured[search.first]
    if isinstance(found, Refusal):
        shown = ", ".join(f"{name}={size}" for name, size in start.sizes.items())
        raise found.of(
            f"{about.source} is refused at the first sizes ({shown}): {found.reason}; "
            "set others by --set, or another mesh by --mesh"
        )
    _change_each(about, search)
    while True:
        grid = search.grid()
        sites = _laws(transfers(grid, search.points), search)
        work = _laws(products(grid, search.points), search)
        given = _laws(arguments(grid, search.points), search)
        made = _laws(outputs(grid, search.points), search)
        flops, more = _flops(work, search)
        memory, lacking = _memory(given, made, search)
        wanted = sites.missing | work.missing | given.missing | made.missing | more | lacking
        if not wanted or len(search.measured) >= most:
            break
        search.compile(sorted(wanted)[: most - len(search.measured)])
    return _law(about, search, sites, work, given, flops, memory), search.measured


def _change_each(about: About, search: _Search) -> None:
    """Has every variable compiled at two values.

    Raises:
      UsageError: there is but one.
    """
    while True:
        wanted = []
        for i, name in enumerate(search.names):
            values = search.values(i)
            if len(values) < 2:
                refusals = [f for f in search.measured.values() if isinstance(f, Refusal)]
                raise refusals[-1].of(
                    f"{name} cannot be varied: {about.source} is refused at every other value ({refusals[-1].reason}); "
                    "leave it out of --vary, or set another first value by --set"
                )
            wanted.append(search.along(i, values[1]))
        if all(point in search.measured for point in wanted):
            return
        search.compile(wanted)


@dataclass(frozen=True)
class _Laws(Generic[I, T]):
    """What was found of one subject."""

    subject: Subject[I, T]
    laws: Mapping[Bundle, T]
    refused: Mapping[Bundle, str]
    missing: frozenset[Point] = frozenset()


def _laws(subject: Subject[I, T], search: _Search) -> _Laws[I, T]:
    """Every bundle's, with as many of its names as give one from what was measured; more is compiled for what has none
    under few names either."""
    laws: dict[Bundle, T] = {}
    refused: dict[Bundle, str] = {}
    asked: dict[Hashable, frozenset[Point]] = {}
    failed: dict[Bundle, str] = {}
    waiting = grown((), subject, search.measured)
    while waiting:
        failed = {}
        for bundle in waiting:
            try:
                laws[bundle] = subject.law(items_at(bundle, subject, search.measured), ())
            except Missing as these:
                asked = dict.fromkeys(bundle.full_names, these.points) | asked
                failed[bundle] = MANY
            except Unknowable as why:
                refused[bundle] = str(why)
            except NoLaw as why:
                failed[bundle] = str(why)
        waiting = merged(list(failed), subject, search.measured) or ()
    lost = {name for bundle in failed for name in bundle.full_names}
    found, lost = _by_relatives(subject, laws, lost, search)
    failed = {bundle: why for bundle, why in failed.items() if bundle.full_names & lost}
    wanted = {point for bundle in failed for name in bundle.full_names for point in asked.get(name, ())}
    return _Laws(subject, found, refused | failed, frozenset(wanted if len(search.measured) < search.most else ()))


def _by_relatives(
    subject: Subject[I, T], laws: Mapping[Bundle, T], lost: set[Hashable], search: _Search
) -> tuple[dict[Bundle, T], set[Hashable]]:
    """What a compiler computes at once at some sizes, and names after one part of it, has a law with the other parts:
    sums of the monomials that other items have."""
    found, left = dict(laws), set(lost)
    by_role = zip(*map(subject.polynomials, laws.values()), strict=True)
    shapes = [
        list(dict.fromkeys(tuple(sorted(each.exponents.items())) for of in role for each in of)) for role in by_role
    ]
    for bundle in relatives(lost, subject, search.measured) if shapes else ():
        if bundle.full_names & left:
            for one in found:
                if one.full_names & bundle.full_names:
                    bundle = replace(bundle, full_names=bundle.full_names | one.full_names)
            try:
                law = subject.law(items_at(bundle, subject, search.measured), shapes)
            except (Missing, NoLaw):
                continue
            found = {one: of for one, of in found.items() if not one.full_names & bundle.full_names} | {bundle: law}
            left -= bundle.full_names
    return found, left


def _law(
    about: About,
    search: _Search,
    sites: _Laws[Site, TransferLaw],
    work: _Laws[Product, Exact],
    given: _Laws[Argument, Exact],
    flops: Exact | Refused,
    memory: Mapping[str, Exact | Refused],
) -> Law:
    terms = [
        _term(bundle, law, sites.subject, search)
        for bundle, whole in sites.laws.items()
        for law in apart(whole, search.grid(), search.points(), items_at(bundle, sites.subject, search.measured))
    ]
    held = {name: each for name, each in memory.items() if isinstance(each, Exact)}
    every = {name: [point[i] for point in search.points()] for i, name in enumerate(search.names)}
    return Law(
        **vars(about),
        variables=tuple(
            Variable(name, name in search.start.mesh.names, min(values), max(values), gcd(*values))
            for name, values in every.items()
        ),
        mesh=search.start.mesh.shape | {n: v for n, v in search.start.sizes.items() if n in search.start.mesh.names},
        fixed=search.start.fixed,
        conditions=tuple(_conditions(search, search.grid())),
        terms=tuple(sorted(terms, key=lambda term: -_wire_at(term, search.sizes(search.first), search))),
        products=_products(work, search) if isinstance(flops, Exact) and not work.refused else (),
        flops=flops.sum if isinstance(flops, Exact) else None,
        flops_where=_where(flops.grains) if isinstance(flops, Exact) else (),
        arguments={str(bundle.name): law.sum for bundle, law in given.laws.items()},
        memory={name: each.sum for name, each in held.items() if name not in BOUNDS},
        memory_where={name: where for name, each in held.items() if (where := _where(each.grains))},
        memory_at_least={BOUNDS[name]: each.sum for name, each in held.items() if name in BOUNDS},
        refused=(*_refused(sites, search), *([flops] if isinstance(flops, Refused) else []), *_unheld(memory)),
        compiled=tuple(
            Compiled(search.sizes(point), m.seconds)
            for point, m in search.measured.items()
            if isinstance(m, Measurement)
        ),
        notes=tuple(
            dict.fromkeys(
                (
                    *(note for point in search.points() for note in search.at(point).notes),
                    *_undivided(search),
                    *_unused(search),
                )
            )
        ),
    )


def _term(bundle: Bundle, law: TransferLaw, subject: Subject[Site, TransferLaw], search: _Search) -> Term:
    found = list(items_at(bundle, subject, search.measured)(search.first))
    one = found[0]

    def common(values: Iterable[str | None]) -> str:
        some = {each or "" for each in values}
        return some.pop() if len(some) == 1 else ""

    phases, origin = {each.phase for each in found}, common(each.origin for each in found)
    return Term(
        one.kind,
        one.axes,
        one.phase if len(phases) == 1 else None,
        common(each.scope for each in found),
        common(each.function for each in found),
        origin or None,
        "+".join(sorted({each.dtype for each in found})),
        one.conditional,
        one.network_kind,
        all(each.is_widened for each in found),
        all(each.is_masked_gather for each in found),
        law.payload,
        law.executions,
        law.payload_of_step,
        law.group,
        _where(law.grains),
        bundle.level,
        len(found),
        shift(search.points(), items_at(bundle, subject, search.measured)),
    )


def wire_of(site: Site) -> Fraction:
    """Bytes of a step; of what is not known how often, once."""
    executions = 1 if site.executions is None else site.executions
    return executions * wire_bytes(site.kind, site.payload_bytes, site.group_size or 1, site.network_kind)


def _wire_at(term: Term, sizes: Mapping[str, int], search: _Search) -> Fraction:
    return wire_bytes(
        term.kind, int(value(term.payload_of_step, sizes)), int(value(term.group, sizes)), term.network_kind
    )


def _refused(sites: _Laws[Site, TransferLaw], search: _Search) -> Iterable[Refused]:
    everywhere = [m for m in search.measured.values() if isinstance(m, Measurement)]
    for bundle, reason in sites.refused.items():
        those = [[site for site in m.sites if sites.subject.names(site)[0] in bundle.full_names] for m in everywhere]
        shares = [
            float(sum(map(wire_of, some)) / whole)
            for some, m in zip(those, everywhere, strict=True)
            if (whole := sum(map(wire_of, m.sites)))
        ]
        one = next(some for some in those if some)[0]
        yield Refused(one.kind, one.axes, site_text(one), reason, max(shares, default=0.0))


def site_text(site: Site) -> str:
    """`all_gather over fsdp, layers/mlp/up`."""
    where = site.scope or site.function or site.origin or ""
    return f"{site.kind} over {'+'.join(site.axes)}" + (f", {where}" if where else "")


def _size(
    every: Mapping[Point, Splits], split: tuple[str, tuple[str, ...]], count: int, place: int, point: Point
) -> Fraction:
    """Of a dim that the program asks to be split, at a point.

    Raises:
      Missing, NoLaw: it was not compiled there, or asks for more or fewer.
    """
    if point not in every:
        raise Missing([point])
    sizes = every[point].get(split, ())
    if len(sizes) != count:
        raise NoLaw("asked for more often")
    return Fraction(sizes[place])


def _where(grains: Sequence[Grain]) -> tuple[Condition, ...]:
    """What grains ask of sizes."""
    found = {}
    for (dim, parts), grain in grains:
        fine = product(parts, (monomial(grain, {}),))
        text = _divides(dim, fine)
        found[text] = Condition(dim, fine, text, "what rounds it up lets it grow in steps")
    return tuple(found.values())


def _divides(dim: Polynomial, parts: Polynomial) -> str:
    left, right = (
        text if text.replace(".", "").isidentifier() or text.isdecimal() else f"({text})"
        for text in map(formula.text, (dim, parts))
    )
    return f"{left} % {right} == 0"


def _flops(work: _Laws[Product, Exact], search: _Search) -> tuple[Exact | Refused, frozenset[Point]]:
    """Of all products: the sum of their laws, or one of what the whole text comes to; with what to compile for it."""
    grid, points = search.grid(), search.points()

    def quantity(point: Point) -> Fraction:
        found = search.measured.get(point)
        if found is None:
            raise Missing([point])
        if isinstance(found, Refusal) or found.flops is None:
            raise NoLaw("the text does not tell how much it multiplies")
        return Fraction(found.flops)

    if not work.refused:
        total = Exact(collected(each for law in work.laws.values() for each in law.sum), common(work.laws.values()))
        held = [point for point in points if is_of_grains(grid, point, total.grains)]
        if all(search.at(point).flops in (None, value(total.sum, search.sizes(point))) for point in held):
            return total, frozenset()
    try:
        return reproduced(grid, points, quantity), frozenset()
    except Missing as these:
        return Refused(None, (), "FLOPs", next(iter(work.refused.values()), MANY), 0.0), these.points
    except NoLaw as why:
        return Refused(None, (), "FLOPs", str(why), 0.0), frozenset()


def _products(work: _Laws[Product, Exact], search: _Search) -> tuple[Products, ...]:
    """By phase and scope."""
    found: dict[tuple[Phase | None, str], list[Polynomial]] = {}
    for bundle, law in work.laws.items():
        item = items_at(bundle, work.subject, search.measured)(search.first)[0]
        found.setdefault((item.phase, item.scope if bundle.level < 2 else ""), []).append(law.sum)
    return tuple(
        Products(phase, scope, collected(each for law in laws for each in law))
        for (phase, scope), laws in found.items()
    )


def _memory(
    given: _Laws[Argument, Exact], made: _Laws[Argument, Exact], search: _Search
) -> tuple[dict[str, Exact | Refused], frozenset[Point]]:
    """What XLA reports: of arguments and outputs the sums of all arrays, or where a program has more arrays at other
    sizes, what one sum gives; of all else, the largest of many sums, likewise; and what stays for a whole step, a bound
    of its peak. With what to compile for arguments."""
    grid, points = search.grid(), search.points()

    def quantity(of: Callable[[Memory], int | None], point: Point) -> Fraction:
        at = search.measured.get(point)
        if at is None:
            raise Missing([point])
        held = None if isinstance(at, Refusal) or at.memory is None else of(at.memory)
        if held is None:
            raise NoLaw("this compiler does not report it")
        return Fraction(held)

    found: dict[str, Exact | Refused] = {}
    lacking = frozenset[Point]()
    for name, of in REPORTED.items():
        reported = partial(quantity, of)
        arrays = {"arguments": given, "outputs": made}.get(name)
        try:
            if arrays and not arrays.refused:
                whole = collected(m for law in arrays.laws.values() for m in law.sum)
                # A result that is a tuple has a table of its arrays.
                table = reported(grid.first) - value(whole, search.sizes(grid.first))
                law = collected((*whole, monomial(table, {})))
            else:
                law = solved(reported, grid)
            found[name] = graded(law, grid, points, reported)
        except Missing as these:
            lacking |= these.points if name == "arguments" else frozenset()
            found[name] = Refused(None, (), f"memory: {name}", MANY if arrays else LARGEST, 0.0)
        except NoLaw as why:
            padded = name in ("arguments", "outputs") and any(m.padding for m in _memories(search))
            tiles = "; the compiler fills arrays up to whole tiles" if padded else ""
            found[name] = Refused(None, (), f"memory: {name}", f"{why}{tiles}", 0.0)
    taken, made_of = found["arguments"], found["outputs"]
    if isinstance(taken, Exact) and not taken.grains and isinstance(found["peak"], Refused):
        fresh = partial(quantity, lambda memory: memory.outputs - memory.aliased)
        fixed = (monomial(fresh(grid.first), {}),) if fresh(grid.first) else ()
        for more in (made_of.sum if isinstance(made_of, Exact) else (), fixed, ()):
            bound = collected((*taken.sum, *more))
            if all(value(more, search.sizes(point)) <= fresh(point) for point in points):
                found["stays"] = Exact(bound)
                break
    return found, lacking


def _memories(search: _Search) -> Iterable[Memory]:
    return (memory for point in search.points() if (memory := search.at(point).memory) is not None)


def _unheld(memory: Mapping[str, Exact | Refused]) -> Iterable[Refused]:
    return (each for name, each in memory.items() if isinstance(each, Refused) and name not in BOUNDS)


def _conditions(search: _Search, grid: Grid) -> Iterable[Condition]:
    """Dims that the program splits, as sums of monomials of its sizes."""
    seen = set[str]()
    every = {point: {(one.place, one.axes): one.sizes for one in search.at(point).splits} for point in search.points()}
    for split in search.at(search.first).splits:
        if not set(split.axes) <= set(search.start.mesh.names):
            continue
        for place in range(len(split.sizes)):
            size = partial(_size, every, (split.place, split.axes), len(split.sizes), place)
            try:
                dim = solved(size, grid)
            except (Missing, NoLaw):
                continue
            varied = [name for name in split.axes if name in search.names]
            parts = (
                monomial(prod(search.start.mesh[n] for n in split.axes if n not in varied), dict.fromkeys(varied, 1)),
            )
            if _always_divides(dim, parts):
                continue
            text = _divides(dim, parts) if split.axes else f"{formula.text(dim)} is whole"
            if text not in seen and (variables(dim) | set(varied)):
                seen.add(text)
                yield Condition(dim, parts, text, split.place)


def _undivided(search: _Search) -> Iterable[str]:
    """Dims of which no condition says where they have to divide: those that the program splits over axes of a mesh of
    its own, and arguments' that it splits otherwise at other sizes."""
    for place, axes in dict.fromkeys((one.place, one.axes) for one in search.at(search.first).splits):
        if not set(axes) <= set(search.start.mesh.names):
            yield f"{place} is split over {'+'.join(axes)} of a mesh of the program's own: {UNTOLD}"
    every = [{(one.place, one.axes) for one in search.at(point).splits} for point in search.points()]
    for place, axes in sorted(every[0].union(*every) - every[0].intersection(*every)):
        if axes and all((place, ()) in some for some in every):
            yield f"{place} is split over {'+'.join(axes)} at some sizes alone: {UNTOLD}"


def _unused(search: _Search) -> Iterable[str]:
    """Variables that change nothing: a builder may not use all that it takes."""
    first = replace(search.at(search.first), seconds=0.0)
    for i, name in enumerate(search.names):
        along = [point for point in search.points() if search.along(i, point[i]) == point]
        if all(replace(search.at(point), seconds=0.0) == first for point in along):
            yield f"{name} changes nothing that was measured: does the program use it?"


def _always_divides(dim: Polynomial, parts: Polynomial) -> bool:
    (part,) = parts
    quotient = product(dim, (monomial(1 / part.coefficient, {name: -e for name, e in part.exponents.items()}),))
    return all(m.denominator == 1 and all(e > 0 for e in m.exponents.values()) for m in quotient)


def with_compiled(law: Law, sizes: Mapping[str, int]) -> Law:
    """With these sizes among those that its variables were compiled at."""
    return replace(
        law,
        variables=tuple(
            replace(v, most=max(v.most, sizes[v.name]), unit=gcd(v.unit, sizes[v.name])) for v in law.variables
        ),
    )
