"""Items of several measurements that belong together: matched by all of their names, and where that gives no law by
fewer of them, as a compiler that merges operations keeps the name of any one. Imports no JAX."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from lab.laws.interpolation import Exponents, Missing, NoLaw, Point
from lab.laws.measurement import Measurement, Refusal
from lab.laws.polynomial import Polynomial

I = TypeVar("I")  # noqa: E741  # An item.
T = TypeVar("T")
Measured = Mapping[Point, Measurement | Refusal]
ItemsAt = Callable[[Point], Sequence[I]]


@dataclass(frozen=True)
class Subject(Generic[I, T]):
    """What laws are made of.

    Attributes:
      items: of one measurement.
      names: of an item, from all of its names to few of them.
      law: of the items that one bundle has at each point; where exponents are given, one list for each of its
        polynomials, of such monomials alone; raises `Missing` and `NoLaw`.
      polynomials: of a law.
    """

    items: Callable[[Measurement], Sequence[I]]
    names: Callable[[I], tuple[Hashable, ...]]
    law: Callable[[ItemsAt[I], Sequence[Sequence[Exponents]]], T]
    polynomials: Callable[[T], tuple[Polynomial, ...]]


@dataclass(frozen=True)
class Bundle:
    """Items whose full names are these; the names of a level are what all have alike."""

    level: int
    name: Hashable
    full_names: frozenset[Hashable]


def grown(bundles: Sequence[Bundle], subject: Subject[I, T], measured: Measured) -> tuple[Bundle, ...]:
    """With a bundle of its own for what none has yet."""
    known = {name for bundle in bundles for name in bundle.full_names}
    new: dict[Hashable, None] = {}
    for measurement in measured.values():
        if isinstance(measurement, Measurement):
            new |= dict.fromkeys(subject.names(item)[0] for item in subject.items(measurement))
    return (*bundles, *(Bundle(0, name, frozenset({name})) for name in new if name not in known))


def merged(failed: Sequence[Bundle], subject: Subject[I, T], measured: Measured) -> tuple[Bundle, ...] | None:
    """Those without a law joined by fewer of their names; None where they have no fewer."""
    names = all_names(subject, measured)
    deepest = max((len(each) - 1 for each in names.values()), default=0)
    if all(bundle.level >= deepest for bundle in failed):
        return None
    joined: dict[tuple[int, Hashable], set[Hashable]] = {}
    for bundle in failed:
        level = min(bundle.level + 1, deepest)
        for full in bundle.full_names:
            joined.setdefault((level, names[full][level]), set()).add(full)
    return tuple(Bundle(level, name, frozenset(full)) for (level, name), full in joined.items())


def relatives(failed: Iterable[Hashable], subject: Subject[I, T], measured: Measured) -> Iterator[Bundle]:
    """For each name without a law all that shares fewer of its names, law or not: first what shares most."""
    names = all_names(subject, measured)
    lost = list(failed)
    for level in range(1, max((len(each) for each in names.values()), default=1)):
        for name in dict.fromkeys(names[full][level] for full in lost):
            yield Bundle(level, name, frozenset(full for full, each in names.items() if each[level] == name))


def all_names(subject: Subject[I, T], measured: Measured) -> dict[Hashable, tuple[Hashable, ...]]:
    """Of every item, by its full name."""
    every = [m for m in measured.values() if isinstance(m, Measurement)]
    return {subject.names(item)[0]: subject.names(item) for m in every for item in subject.items(m)}


def items_at(bundle: Bundle, subject: Subject[I, T], measured: Measured) -> ItemsAt[I]:
    """What the bundle has at a point.

    Raises (the function):
      Missing: nothing was measured there.
      NoLaw: nothing can be.
    """

    def at(point: Point) -> Sequence[I]:
        found = measured.get(point)
        if found is None:
            raise Missing([point])
        if isinstance(found, Refusal):
            raise NoLaw(f"the program is needed at sizes that it refuses ({found.reason})")
        return [item for item in subject.items(found) if subject.names(item)[0] in bundle.full_names]

    return at
