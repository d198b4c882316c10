"""Items of several measurements that belong together: matched by all of their names, and where that gives no law by
fewer of them, as a compiler that merges operations keeps the name of any one. Imports no JAX."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from lab.laws.interpolation import Missing, NoLaw, Point
from lab.laws.measurement import Measurement, Refusal

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
      law: of the items that one bundle has at each point; raises `Missing` and `NoLaw`.
    """

    items: Callable[[Measurement], Sequence[I]]
    names: Callable[[I], tuple[Hashable, ...]]
    law: Callable[[ItemsAt[I]], T]


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
    levels = [m for m in measured.values() if isinstance(m, Measurement)]
    names = {subject.names(item)[0]: subject.names(item) for m in levels for item in subject.items(m)}
    deepest = max((len(each) - 1 for each in names.values()), default=0)
    if all(bundle.level >= deepest for bundle in failed):
        return None
    joined: dict[tuple[int, Hashable], set[Hashable]] = {}
    for bundle in failed:
        level = min(bundle.level + 1, deepest)
        for full in bundle.full_names:
            joined.setdefault((level, names[full][level]), set()).add(full)
    return tuple(Bundle(level, name, frozenset(full)) for (level, name), full in joined.items())


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
