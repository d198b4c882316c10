"""Laws of transfers, products and arguments: which items belong together, and what of them is solved. Imports no JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from lab.core.ledger import Kind
from lab.laws.bundles import ItemsAt, Subject
from lab.laws.interpolation import Grid, NoLaw, Point, each_of, solved
from lab.laws.measurement import Argument, Product, Site
from lab.laws.polynomial import Polynomial, monomial, product, value


@dataclass(frozen=True)
class TransferLaw:
    """See `lab.laws.law.Term`."""

    payload: Polynomial | None
    executions: Polynomial
    payload_of_step: Polynomial
    group: Polynomial


def transfers(grid: Grid, points: Callable[[], Sequence[Point]]) -> Subject[Site, TransferLaw]:
    """Args:
    points: that are measured, all of which a law has to reproduce.
    """
    return Subject(lambda m: m.sites, _names_of_site, partial(_transfer_law, grid, points))


def products(grid: Grid, points: Callable[[], Sequence[Point]]) -> Subject[Product, Polynomial]:
    return Subject(
        lambda m: m.products,
        lambda each: (each.op_name, (each.phase, each.scope), each.phase, None),
        partial(_sum_law, grid, points, lambda each: each.flops, "the text does not tell how much it multiplies"),
    )


def arguments(grid: Grid, points: Callable[[], Sequence[Point]]) -> Subject[Argument, Polynomial]:
    return Subject(
        lambda m: m.arguments,
        lambda each: (each.name,),
        partial(_sum_law, grid, points, lambda each: each.bytes, ""),
    )


def _names_of_site(site: Site) -> tuple[tuple[object, ...], ...]:
    least = (site.kind, site.axes, site.network_kind)
    where = (*least, site.phase, site.dtype, site.conditional)
    scoped = (*where, site.scope)
    return ((*scoped, site.function, site.origin, site.op_name), scoped, where, least)


def _transfer_law(grid: Grid, points: Callable[[], Sequence[Point]], at: ItemsAt[Site]) -> TransferLaw:
    def quantity(of: Callable[[Site], int]) -> Callable[[Point], Fraction]:
        return lambda point: Fraction(sum(map(of, at(point))))

    first = at(grid.first)
    if not first:
        where = next(point for point in points() if at(point))
        raise NoLaw(f"absent at the first size, present at {_shown(grid, where)}")
    for point in points():
        _check_known(at(point))
    is_one = all(len({site.payload_bytes for site in at(point)}) == 1 for point in points())
    of_bytes = (
        (lambda point: Fraction(at(point)[0].payload_bytes if at(point) else 0))
        if is_one
        else quantity(lambda site: (site.executions or 0) * site.payload_bytes)
    )
    of_executions = quantity(lambda site: site.executions or 0)
    try:
        sent, executions = each_of([lambda q=q: _reproduced(grid, points(), q) for q in (of_bytes, of_executions)])
    except NoLaw as why:
        padded = any(site.is_padded for point in points() for site in at(point))
        raise NoLaw(f"{why}; the compiler pads what it moves" if padded else str(why)) from None
    step = product(sent, executions) if is_one else sent
    return TransferLaw(sent if is_one else None, executions, step, _group(grid, points(), at))


def _check_known(sites: Sequence[Site]) -> None:
    if any(site.kind is Kind.RAGGED_ALL_TO_ALL for site in sites):
        raise NoLaw("what it moves depends on the data; its buffers are the most")
    if any(site.executions is None for site in sites):
        raise NoLaw("how often it runs depends on the data")
    if any(site.group_size is None for site in sites):
        raise NoLaw("the text does not tell its groups")


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
    return _reproduced(grid, points, lambda point: Fraction(at(point)[0].group_size or 0))


def _sum_law(
    grid: Grid,
    points: Callable[[], Sequence[Point]],
    of: Callable[[Product], int | None] | Callable[[Argument], int | None],
    unknown: str,
    at: ItemsAt,  # type: ignore[type-arg]  # Of what `of` takes.
) -> Polynomial:
    def quantity(point: Point) -> Fraction:
        found = [of(item) for item in at(point)]
        if None in found:
            raise NoLaw(unknown)
        return Fraction(sum(each or 0 for each in found))

    return _reproduced(grid, points(), quantity)


def _reproduced(grid: Grid, points: Sequence[Point], quantity: Callable[[Point], Fraction]) -> Polynomial:
    """Solved, and right at every point that was measured.

    Raises:
      NoLaw: it is not.
    """
    found = solved(quantity, grid)
    for point in points:
        law, compiled = value(found, dict(zip(grid.names, point, strict=True))), quantity(point)
        if law != compiled:
            raise NoLaw(f"at {_shown(grid, point)} it is {compiled}, where the sizes before give {law}")
    return found


def _shown(grid: Grid, point: Point) -> str:
    """What is not as in the first point."""
    changed = zip(grid.names, point, grid.first, strict=True)
    return ", ".join(f"{name}={v}" for name, v, first in changed if v != first) or "the first size"
