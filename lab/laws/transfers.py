"""Laws of transfers, products and arguments: which belong together, and what of them is solved. Imports no JAX."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import product as cartesian
from math import gcd, lcm, prod

from lab.core.ledger import Kind
from lab.core.units import exact
from lab.laws.bundles import ItemsAt, Subject
from lab.laws.interpolation import Dim, Exponents, Grid, NoLaw, Point, Unknowable, combined, each_of, solved
from lab.laws.measurement import Argument, Product, Site
from lab.laws.polynomial import Monomial, Polynomial, monomial, product, value, variables

FINEST_GRAIN = 256 * 9 * 5 * 7
"""Dims are padded to divisors of it: compilers to powers of two, programs to a count of experts, heads or chunks."""
MOST_CHOICES = 5000
"""Of monomials for several payloads."""
_OF_A_LIST = re.compile(r"(?<=\w)\[\d+\]|(?<='\])\[\d+\]|(?<=\])\[\d+\](?=\['|\.)")
"""`[3]` of `[0]['layers'][3]`, of `[0].layers[3]` and of `[0][3]['up']`, not of the pair `[0][3]`."""
Grain = tuple[Dim, int]
"""What a dim on a device is a multiple of, in parts of the whole dim."""


@dataclass(frozen=True)
class Exact:
    """A sum of monomials and where it holds.

    Attributes:
      grains: what dims are multiples of at all sizes at which the sum is right, where it is not right at others: what
        rounds a dim up lets it grow in steps.
    """

    sum: Polynomial
    grains: tuple[Grain, ...] = ()


@dataclass(frozen=True)
class TransferLaw:
    """See `lab.laws.law.Term`."""

    payload: Polynomial | None
    executions: Polynomial
    payload_of_step: Polynomial
    group: Polynomial
    grains: tuple[Grain, ...]


def transfers(grid: Grid, points: Callable[[], Sequence[Point]]) -> Subject[Site, TransferLaw]:
    """Args:
    points: that are measured, all of which a law has to reproduce.
    """
    return Subject(
        lambda m: m.sites,
        _names_of_site,
        partial(_transfer_law, grid, points),
        lambda law: (law.executions, law.payload_of_step),
    )


def products(grid: Grid, points: Callable[[], Sequence[Point]]) -> Subject[Product, Exact]:
    return Subject(
        lambda m: m.products,
        lambda each: (each.op_name, (each.phase, each.scope), each.phase, None),
        partial(_sum_law, grid, points, lambda each: each.flops, "the text does not tell how much it multiplies"),
        lambda law: (law.sum,),
    )


def arguments(grid: Grid, points: Callable[[], Sequence[Point]]) -> Subject[Argument, Exact]:
    """Those of one list under one name together: a program may have as many layers as it is asked for."""
    return Subject(
        lambda m: m.arguments,
        lambda each: (_OF_A_LIST.sub("[*]", each.name),),
        partial(_sum_law, grid, points, lambda each: each.bytes, ""),
        lambda law: (law.sum,),
    )


def outputs(grid: Grid, points: Callable[[], Sequence[Point]]) -> Subject[Argument, Exact]:
    return replace(arguments(grid, points), items=lambda m: m.outputs)


def _names_of_site(site: Site) -> tuple[tuple[object, ...], ...]:
    least = (site.kind, site.axes, site.network_kind)
    where = (*least, site.phase, site.dtype, site.conditional, site.is_widened, site.is_masked_gather)
    scoped = (*where, site.scope)
    named = (*scoped, site.function, site.origin, site.op_name)
    return ((*named, site.rank), named, scoped, where, least)


def _transfer_law(
    grid: Grid, points: Callable[[], Sequence[Point]], at: ItemsAt[Site], shapes: Sequence[Sequence[Exponents]] = ()
) -> TransferLaw:
    def quantity(of: Callable[[Site], int]) -> Callable[[Point], Fraction]:
        return lambda point: Fraction(sum(map(of, at(point))))

    for point in points():
        _check_known(at(point))
    _check_there(grid, points(), at)
    of_step = quantity(lambda site: (site.executions or 0) * site.payload_bytes)
    is_one = not shapes and all(len({site.payload_bytes for site in at(point)}) == 1 for point in points())
    of_bytes = (lambda point: Fraction(at(point)[0].payload_bytes if at(point) else 0)) if is_one else of_step
    of_executions = quantity(lambda site: site.executions or 0)
    try:
        if shapes:
            executions, sent = (
                _combined(grid, points(), of_executions, shapes[0]),
                _combined(grid, points(), of_step, shapes[1]),
            )
        else:
            sent, executions = each_of([partial(reproduced, grid, points(), q) for q in (of_bytes, of_executions)])
    except NoLaw as why:
        padded = any(site.is_padded for point in points() for site in at(point))
        raise NoLaw(f"{why}; the compiler pads what it moves" if padded else str(why)) from None
    step = product(sent.sum, executions.sum) if is_one else sent.sum
    group = _group(grid, points(), at)
    return TransferLaw(sent.sum if is_one else None, executions.sum, step, group, common([sent, executions]))


def apart(law: TransferLaw, grid: Grid, points: Sequence[Point], at: ItemsAt[Site]) -> tuple[TransferLaw, ...]:
    """A law of transfers that move different payloads, as one for each payload: where exactly one choice of its
    monomials gives the payloads of every point."""
    if law.payload is not None:
        return (law,)
    held = {point: _by_payload(at(point)) for point in points if is_of_grains(grid, point, law.grains)}
    first = max(held, key=lambda point: len(held[point]))
    options = [_alone(law, grid, held, first, payload) for payload in held[first]]
    if prod(map(len, options)) > MOST_CHOICES:
        return (law,)

    def gives(choice: Sequence[tuple[Polynomial, Polynomial]], point: Point) -> bool:
        found = Counter[int]()
        for payload, executions in choice:
            sizes = _sizes(grid, point)
            found[int(value(payload, sizes))] += int(value(executions, sizes))
        return found == held[point]

    right = [choice for choice in cartesian(*options) if all(gives(choice, point) for point in held)]
    if len(right) != 1:
        return (law,)
    return tuple(
        replace(law, payload=payload, executions=executions, payload_of_step=product(payload, executions))
        for payload, executions in right[0]
    )


def _by_payload(sites: Sequence[Site]) -> Counter[int]:
    found = Counter[int]()
    for site in sites:
        found[site.payload_bytes] += site.executions or 0
    return found


def _alone(
    law: TransferLaw, grid: Grid, held: Mapping[Point, Counter[int]], first: Point, payload: int
) -> list[tuple[Polynomial, Polynomial]]:
    """Payload and executions that one payload of a point may be: of the law's monomials, and there at all others."""
    found = []
    for of_step in law.payload_of_step:
        for often in law.executions:
            shape = product((replace(of_step, numerator=1, denominator=1),), (_inverted(often),))
            one, times = _scaled(shape, payload, grid, first), _scaled((often,), held[first][payload], grid, first)
            if (one, times) not in found and all(
                some[value(one, _sizes(grid, point))] >= value(times, _sizes(grid, point))  # type: ignore[index]
                for point, some in held.items()
            ):
                found.append((one, times))
    return found


def _inverted(of: Monomial) -> Monomial:
    return Monomial(1, 1, {name: -e for name, e in of.exponents.items()})


def _scaled(shape: Polynomial, to: int, grid: Grid, point: Point) -> Polynomial:
    """With the coefficient that gives this value at a point."""
    return product(shape, (monomial(to / value(shape, _sizes(grid, point)), {}),))


def _check_there(grid: Grid, points: Sequence[Point], at: ItemsAt) -> None:  # type: ignore[type-arg]
    """Before more is compiled for it: a name that is missing at some sizes is a compiler's choice of names, or of what
    it does."""
    present = [point for point in points if at(point)]
    absent = [point for point in points if point not in present]
    if absent:
        raise NoLaw(f"absent at {_shown(grid, absent[0])}, present at {_shown(grid, present[0])}")


def _check_known(sites: Sequence[Site]) -> None:
    if any(site.kind is Kind.RAGGED_ALL_TO_ALL for site in sites):
        raise Unknowable("what it moves depends on the data; its buffers are the most")
    if any(site.executions is None for site in sites):
        raise Unknowable("how often it runs depends on the data")
    if any(site.group_size is None for site in sites):
        raise Unknowable("the text does not tell its groups")


def _group(grid: Grid, points: Sequence[Point], at: ItemsAt[Site]) -> Polynomial:
    """Devices of one group: where axes are known, the product of their degrees."""
    first = at(grid.first)[0]
    if first.is_axes:
        degrees = (monomial(1, {name: 1 for name in first.axes if name in grid.names}),)
        rest = Fraction(first.group_size or 1) / value(degrees, dict(zip(grid.names, grid.first, strict=True)))
        law: Polynomial = product(degrees, (monomial(rest, {}),))
        if all(
            site.group_size == value(law, dict(zip(grid.names, point, strict=True)))
            for point in points
            for site in at(point)
        ):
            return law
    sizes = [{site.group_size for site in at(point)} for point in points]
    if not all(len(each) == 1 for each in sizes):
        raise NoLaw("its groups have several sizes")
    return reproduced(grid, points, lambda point: Fraction(at(point)[0].group_size or 0)).sum


def shift(points: Sequence[Point], at: ItemsAt[Site]) -> int | None:
    """Of permutes, the one distance at all points, negative where it is backwards; None where there is none."""
    sites = [site for point in points for site in at(point)]
    forward = {site.shift for site in sites}
    backward = {site.shift and site.shift - (site.group_size or 0) for site in sites}
    return next((each.copy().pop() for each in (forward, backward) if len(each) == 1), None)


def _sum_law(
    grid: Grid,
    points: Callable[[], Sequence[Point]],
    of: Callable[[Product], int | None] | Callable[[Argument], int | None],
    unknown: str,
    at: ItemsAt,  # type: ignore[type-arg]  # Of what `of` takes.
    shapes: Sequence[Sequence[Exponents]] = (),
) -> Exact:
    def quantity(point: Point) -> Fraction:
        found = [of(item) for item in at(point)]
        if None in found:
            raise Unknowable(unknown)
        return Fraction(sum(each or 0 for each in found))

    _check_there(grid, points(), at)
    return _combined(grid, points(), quantity, shapes[0]) if shapes else reproduced(grid, points(), quantity)


def _combined(
    grid: Grid, points: Sequence[Point], quantity: Callable[[Point], Fraction], shapes: Sequence[Exponents]
) -> Exact:
    return Exact(combined(quantity, grid, points, shapes))


def reproduced(grid: Grid, points: Sequence[Point], quantity: Callable[[Point], Fraction]) -> Exact:
    """Solved, and right at every point that was measured, or at all whose dims are multiples of what they are where it
    is right.

    Raises:
      NoLaw: it is neither.
      Missing: as `solved`, and of what tells which dim it is.
    """
    found = graded(solved(quantity, grid), grid, points, quantity)
    each_of([partial(_probe, quantity, grid, dim) for dim, _ in found.grains])
    return found


def graded(found: Polynomial, grid: Grid, points: Sequence[Point], quantity: Callable[[Point], Fraction]) -> Exact:
    """With the grains that tell where a sum is right from where it is not.

    Raises:
      NoLaw: none do.
    """
    wrong = [point for point in points if value(found, _sizes(grid, point)) != quantity(point)]
    if not wrong:
        return Exact(found)
    right = [point for point in points if point not in wrong]
    grains = tuple((dim, grain) for dim in grid.dims if (grain := _grain(grid, right, dim)) > 1) if right else ()
    if any(is_of_grains(grid, point, grains) for point in wrong):
        compiled, law = map(exact, (quantity(wrong[0]), value(found, _sizes(grid, wrong[0]))))
        raise NoLaw(f"{compiled} at {_shown(grid, wrong[0])}, where the formula of the sizes before gives {law}")
    return Exact(found, grains)


def common(laws: Iterable[Exact]) -> tuple[Grain, ...]:
    """Grains at which all hold."""
    found: dict[str, Grain] = {}
    for law in laws:
        for dim, grain in law.grains:
            found[repr(dim)] = (dim, lcm(found.get(repr(dim), (dim, 1))[1], grain))
    return tuple(found.values())


def _grain(grid: Grid, points: Sequence[Point], dim: Dim) -> int:
    """1 where a dim does not divide into its parts somewhere."""
    sizes = [_parts(grid, point, dim) for point in points]
    return gcd(FINEST_GRAIN, *map(int, sizes)) if all(size.denominator == 1 for size in sizes) else 1


def is_of_grains(grid: Grid, point: Point, grains: Sequence[Grain]) -> bool:
    return all(_parts(grid, point, dim) % grain == 0 for dim, grain in grains)


def _probe(quantity: Callable[[Point], Fraction], grid: Grid, dim: Dim) -> None:
    """Has one size of a dim measured that is as odd as the program takes, with all else as at first: a sum that is
    right there does not depend on its grain.

    Raises:
      Missing: it is not yet.
    """
    for i in [grid.names.index(name) for name in sorted(variables(dim[0]))]:
        first = grid.first[i]
        for unit in [unit for unit in range(1, first) if first % unit == 0]:
            odd = first // unit + 1 + (first // unit) % 2
            point = (*grid.first[:i], unit * odd, *grid.first[i + 1 :])
            if all(_parts(grid, point, each).denominator == 1 for each in grid.dims):
                try:
                    quantity(point)
                except NoLaw:  # The program refuses it.
                    continue
                break


def _parts(grid: Grid, point: Point, dim: Dim) -> Fraction:
    sizes = _sizes(grid, point)
    return value(dim[0], sizes) / value(dim[1], sizes)


def _sizes(grid: Grid, point: Point) -> dict[str, int]:
    return dict(zip(grid.names, point, strict=True))


def _shown(grid: Grid, point: Point) -> str:
    """What is not as in the first point."""
    changed = zip(grid.names, point, grid.first, strict=True)
    return ", ".join(f"{name}={v}" for name, v, first in changed if v != first) or "the first size"
