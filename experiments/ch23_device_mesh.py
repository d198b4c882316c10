"""Chapter 23: which rank stands where in a mesh, which ranks move when a mesh is reshaped, and in which order do a
step's axes cost the least on a cluster? The step is a composed one, as theory predicts it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product
from math import prod
from typing import Any

import numpy as np

from lab.book.device_mesh import (
    coordinates_of,
    domains_spanned,
    free_degree,
    group_count,
    group_size,
    groups,
    process_groups,
    rank_of,
    strides,
)
from lab.core.known import known
from lab.core.ledger import Ledger, Totals, Transfer
from lab.core.units import count, listed, seconds_text
from lab.harness.claim import Claim, decided
from lab.harness.question import Question, Row
from lab.meshes.axes import AXIS_ORDER, TENSOR, Axes
from lab.programs.composed.configuration import Configuration
from lab.programs.composed.step import predict
from lab.programs.models.shape import DecoderShape
from lab.zoo import cluster

MOST_RANKS = 16


@dataclass(frozen=True)
class Assumed:
    """A step of `model` with these degrees on domains of `cluster`, devices in the order of ranks. `reshaped`: another
    mesh of the same devices; "" for the same axes in reverse."""

    model: str = "llama3-8b"
    cluster: str = "dgx-h100"
    data: int = 1
    fsdp: int = 4
    pipe: int = 4
    context: int = 2
    tensor: int = 4
    expert: int = 1
    micro_batches: int = 8
    schedule: str = "eager_1f1b"
    reshaped: str = ""

    @property
    def configuration(self) -> Configuration:
        degrees = {name: getattr(self, name) for name in AXIS_ORDER}
        return Configuration(**degrees, micro_batches=self.micro_batches, schedule=self.schedule)

    @property
    def other(self) -> Axes:
        axes = self.configuration.axes
        return Axes.parse(self.reshaped) if self.reshaped else Axes(axes.names[::-1], axes.sizes[::-1])

    @property
    def orders(self) -> tuple[Axes, ...]:
        """Every order of the axes, the first varying slowest."""
        shape = self.configuration.axes.shape
        return tuple(Axes.of({name: shape[name] for name in order}) for order in permutations(shape))


@dataclass(frozen=True)
class Cost:
    """What a step's transfers take on one order of the axes, one after the other, each at the rate of the slowest link
    that it crosses.

    Attributes:
      across: axes of which some group lies in several domains.
      inside_s, across_s: over the links inside a domain, and between domains.
    """

    axes: Axes
    across: tuple[str, ...]
    inside_s: float
    across_s: float

    @property
    def seconds(self) -> float:
        return self.inside_s + self.across_s

    def __str__(self) -> str:
        inside = [name for name in self.axes.names if name not in self.across]
        kept = f"{listed(inside)} inside a domain" if inside else "no axis inside a domain"
        return f"{', '.join(self.axes.names)} ({kept})"


def answer(assumed: Assumed) -> tuple[Row, ...]:
    axes, chips = assumed.configuration.axes, cluster(assumed.cluster).domain_chips
    found = costs(assumed)
    best, worst = found[0], found[-1]
    return (
        *(
            Row(f"{name}: ranks between neighbours", stride)
            for name, stride in zip(axes.names, strides(axes.sizes), strict=True)
        ),
        *(
            Row(f"{name}: domains that a group lies in", int(domains_spanned(size, stride, chips)))
            for name, size, stride in zip(axes.names, axes.sizes, strides(axes.sizes), strict=True)
        ),
        *_moved(axes, assumed.other),
        Row("best order, the first axis outermost", str(best)),
        Row("worst order", str(worst)),
        Row("wire time, one transfer after the other: the worst takes", worst.seconds / best.seconds, "times the best"),
        *(Row(str(cost), cost.seconds, "s") for cost in found),
    )


def _moved(before: Axes, after: Axes) -> tuple[Row, ...]:
    held = held_already(before, after)
    what = f"{before} to {after}"
    return (
        Row(f"{what}: ranks that hold all of their new block", int((held == 1).sum()), "ranks"),
        Row(f"{what}: these are", _some(np.flatnonzero(held == 1).tolist())),
        Row(f"{what}: ranks that hold none of it", int((held == 0).sum()), "ranks"),
        Row(f"{what}: of a new block a rank holds on average", 100 * float(held.mean()), "%"),
    )


def _some(ranks: Sequence[int]) -> str:
    """As many as a line takes."""
    shown = ", ".join(map(str, ranks[:MOST_RANKS]))
    return f"{shown} and {len(ranks) - MOST_RANKS:,} more" if len(ranks) > MOST_RANKS else shown or "none"


def held_already(before: Axes, after: Axes) -> np.ndarray:
    """Of an array with one dim for each axis, split over it, and the ranks as they are.

    Returns:
      [ranks]: which part of its new block each rank holds before the mesh is reshaped.
    Raises:
      ValueError: the meshes have other numbers of ranks.
    """
    if before.size != after.size:
        raise ValueError(f"reshaped={after}: {after.size} ranks, expected the {before.size} of {before}")
    old, new = _places(before), _places(after)
    nothing = np.zeros(before.size, int)
    shares = np.ones(before.size)
    for name in {*before.names, *after.names}:
        # In units of 1 / (d e), the block of a rank is [i e, (i + 1) e) and becomes [j d, (j + 1) d).
        d, e = before.shape.get(name, 1), after.shape.get(name, 1)
        i, j = old.get(name, nothing), new.get(name, nothing)
        both = np.minimum((i + 1) * e, (j + 1) * d) - np.maximum(i * e, j * d)
        shares *= np.maximum(both, 0) / d
    return shares


def _places(axes: Axes) -> Mapping[str, np.ndarray]:
    """[ranks] coordinates, by axis, as the book gives them."""
    places = np.array([coordinates_of(rank, axes.sizes) for rank in range(axes.size)])
    return dict(zip(axes.names, places.T, strict=True))


def costs(assumed: Assumed) -> list[Cost]:
    """Of every order, the least first. What a step sends does not depend on the order, only where."""
    ledger = predict(assumed.configuration, DecoderShape.preset(assumed.model))
    return sorted((cost(ledger, axes, assumed.cluster) for axes in assumed.orders), key=lambda each: each.seconds)


def cost(ledger: Ledger, axes: Axes, cluster_name: str) -> Cost:
    machine = cluster(cluster_name)
    domains = np.arange(axes.size) // machine.domain_chips
    alike: dict[tuple[tuple[str, ...], int | None], list[Transfer]] = {}
    for t in ledger.transfers:
        alike.setdefault((known(t.axes), t.shift), []).append(t)
    seconds = {False: 0.0, True: 0.0}
    for (names, shift), transfers in alike.items():
        is_across, sent = _crosses(domains[axes.groups(names)], shift), float(Totals.of(transfers).wire_bytes)
        seconds[is_across] += sent / (machine.chip.slow if is_across else machine.chip.fast).value
    across = tuple(name for name in axes.names if _crosses(domains[axes.groups((name,))], None))
    return Cost(axes, across, seconds[False], seconds[True])


def _crosses(domains_GM: np.ndarray, shift: int | None) -> bool:
    """Some group lies in several domains; of a permute, some pair does."""
    others_GM = domains_GM[:, :1] if shift is None else np.roll(domains_GM, -shift, axis=1)
    return bool((domains_GM != others_GM).any())


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    axes = assumed.configuration.axes
    return (
        _map(axes),
        *_groups(axes),
        _algebra(axes, assumed.other),
        _placement(assumed),
        _order(costs(Assumed())),
        *_degrees(axes),
    )


def _map(axes: Axes) -> Claim:
    places = list(zip(*(place.tolist() for place in np.unravel_index(np.arange(axes.size), axes.sizes)), strict=True))
    there = all(coordinates_of(rank, axes.sizes) == place for rank, place in enumerate(places))
    back = all(rank_of(place, axes.sizes) == rank for rank, place in enumerate(places))
    last = f"rank {axes.size - 1} is at {list(places[-1])}"
    return decided("ch23.mesh_map", there and back, f"{axes}: all {axes.size} ranks there and back as NumPy's; {last}")


def _groups(axes: Axes) -> tuple[Claim, ...]:
    sizes, ranks = axes.sizes, list(range(axes.size))
    single = [meeting(sizes, (k,)) for k in range(len(sizes))]
    splits = all(
        (group_count(sizes, (k,)), group_size(sizes, (k,))) == (len(found), len(found[0]))
        and sorted(rank for group in found for rank in group) == ranks
        for k, found in enumerate(single)
    )
    several = [some for n in range(2, len(sizes) + 1) for some in combinations(range(len(sizes)), n)]
    in_order = all(groups(sizes, some).tolist() == meeting(sizes, some) for some in several)
    counts = ", ".join(
        f"{len(found)} of {len(found[0])} over {name}" for name, found in zip(axes.names, single, strict=True)
    )
    total = sum(map(len, single))
    composite = f"{axes}: over {len(several)} sets of axes ranks meet that agree in all other coordinates, in order"
    return (
        decided("ch23.group_bijection", splits, f"{axes}: {counts}; those of one axis have every rank once"),
        decided("ch23.group_count", process_groups(sizes) == total, f"{axes}: {count(total, 'group')}"),
        decided("ch23.composite_groups", in_order, composite),
    )


def meeting(sizes: Sequence[int], axes: Sequence[int]) -> list[list[int]]:
    """Ranks that agree in all coordinates but those along these axes: without strides."""
    found: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(product(*map(range, sizes))):
        found.setdefault(tuple(i for k, i in enumerate(place) if k not in axes), []).append(rank)
    return list(found.values())


def _algebra(axes: Axes, reshaped: Axes) -> Claim:
    """Groups by name in every transposition, and with one axis fixed at its last index."""
    ranks, every = np.arange(axes.size).reshape(axes.sizes), range(len(axes.sizes))
    turned = [(ranks.transpose(order), order) for order in permutations(every)]
    fixed = [(np.moveaxis(ranks, k, 0)[-1], tuple(i for i in every if i != k)) for k in every]
    alike = all(
        _sets(groups(mesh.shape, (new,))) == _on(mesh, meeting(axes.sizes, (old,)))
        for mesh, kept in (*turned, *fixed)
        for new, old in enumerate(kept)
    )
    same = [name for name in axes.names if name in reshaped.names and _by_name(axes, name) == _by_name(reshaped, name)]
    evidence = (
        f"{axes}: groups by name are the same in every transposition, and of those with an axis fixed; reshaped to "
        f"{reshaped}, {listed(same) if same else 'no axis'} has the same groups"
    )
    return decided("ch23.mesh_algebra", alike, evidence)


def _on(mesh: np.ndarray, groups_GM: list[list[int]]) -> set[frozenset[int]]:
    """Positions in a mesh of ranks, of the groups that it has."""
    position = {int(rank): at for at, rank in enumerate(mesh.flat)}
    return {frozenset(map(position.__getitem__, group)) for group in groups_GM if set(group) <= position.keys()}


def _by_name(axes: Axes, name: str) -> set[frozenset[int]]:
    return _sets(meeting(axes.sizes, (axes.names.index(name),)))


def _sets(groups_GM: Iterable[Iterable[int]]) -> set[frozenset[int]]:
    return {frozenset(map(int, group)) for group in groups_GM}


def _placement(assumed: Assumed) -> Claim:
    """Domains of the groups of every axis, in every order of the axes."""
    chips, holds, spans = cluster(assumed.cluster).domain_chips, True, 0
    for axes in assumed.orders:
        for k, (size, stride) in enumerate(zip(axes.sizes, strides(axes.sizes), strict=True)):
            ranks_GM = np.array(meeting(axes.sizes, (k,)))
            firsts_G: Any = ranks_GM[:, 0]  # A formula of numbers takes arrays as well.
            reached_G = [len(set(group)) for group in (ranks_GM // chips).tolist()]
            holds &= np.array_equal(domains_spanned(size, stride, chips, firsts_G), reached_G)
            spans += len(reached_G)
    return decided(
        "ch23.topology_placement",
        holds,
        f"{spans:,} groups of {len(assumed.orders)} orders lie in as many domains of {chips} as their strides say",
        statement="floor((first + (n - 1) stride) / G) - floor(first / G) + 1 domains, n at most",
    )


def _order(found: Sequence[Cost]) -> Claim:
    """Of a dense model: experts send more, and are then better innermost."""
    inner = next(each for each in found if each.axes.names[-1] == TENSOR)
    outer = next(each for each in found if each.axes.names[-1] != TENSOR)
    evidence = (
        f"of {len(found)} orders {inner} takes {seconds_text(inner.seconds)} of wire time, the best without tensor "
        f"innermost, {outer}, {seconds_text(outer.seconds)}, the worst, {found[-1]}, {seconds_text(found[-1].seconds)}"
    )
    return decided(
        "ch23.topology_placement",
        inner.seconds <= outer.seconds,
        evidence,
        statement="tensor parallelism innermost",
        structural=True,
    )


def _degrees(axes: Axes) -> tuple[Claim, ...]:
    N, (name, d) = axes.size, (axes.names[0], axes.sizes[0])
    inferred = [free_degree(N, prod(axes.sizes) // size) for size in axes.sizes]
    rest = free_degree(N, d)
    return (
        decided(
            "ch23.auto_mesh",
            inferred == list(axes.sizes),
            f"{axes}: each degree is {N} over the product of the others",
            statement="the one degree that is not given is N over the product of the others",
        ),
        decided(
            "ch23.auto_mesh",
            rest == 1,
            f"with {name}={d} alone and all others 1, {N:,} devices are {d} times {rest}",
            statement="the first degree given, all others are 1",
            disputed="6-8:D-5",
        ),
    )


EXPERIMENT = Question(
    name="ch23_device_mesh",
    chapter=23,
    question="Which rank stands where in a mesh, and in which order do a step's axes cost the least?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
)
