"""What an algorithm costs, as data: rounds of messages. Stated by each algorithm beside its code, without XLA and
without compiled text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, groupby, zip_longest
from math import prod

import numpy as np

from lab.core.ledger import Kind, Ledger, Transfer, wire_bytes
from lab.meshes.axes import Axes

Pairs = Sequence[tuple[int, int]]
"""(source, target) ranks of one permute."""


@dataclass(frozen=True)
class AlphaBeta:
    """A link: seconds a message takes however short, and the rate of one direction of one device."""

    alpha_s: float
    bytes_per_s: float

    def seconds(self, message_bytes: Fraction) -> float:
        return self.alpha_s + float(message_bytes) / self.bytes_per_s


Links = AlphaBeta | Mapping[str, AlphaBeta]
"""One link for every axis, or one for each by name."""


@dataclass(frozen=True)
class Message:
    """One collective of the compiled program, as the busiest device sends it.

    Attributes:
      axes: mesh axes that it crosses, in the mesh's order.
      group_size: devices along these axes.
      elements: payload, in the ledger's conventions: of a permute the message.
      share: share of the devices that send.
      shift: of a permute, the one distance along these axes together, modulo their size; None where there are several.
      chains: of a permute, chains and rings that its pairs link, over the number of devices.
    """

    axes: tuple[str, ...]
    group_size: int
    elements: int
    share: Fraction = Fraction(1)
    kind: Kind = Kind.COLLECTIVE_PERMUTE
    shift: int | None = None
    chains: Fraction | None = None

    @property
    def wire_elements(self) -> Fraction:
        return wire_bytes(self.kind, self.elements, self.group_size)

    def seconds(self, links: Links, bytes_per_element: int) -> float:
        """Over the slowest of the links that it crosses."""
        crossed = [links] if isinstance(links, AlphaBeta) else [links[name] for name in self.axes]
        return max(link.seconds(self.wire_elements * bytes_per_element) for link in crossed)


@dataclass(frozen=True)
class Round:
    """Messages that run at once, in opposite directions or along different axes, and how many times in a row."""

    messages: tuple[Message, ...]
    times: int


@dataclass(frozen=True)
class Cost:
    """Rounds, one after the other; `a + b` does `a`, then `b`.

    Attributes:
      rounds: what runs in turn.
      bytes_per_element: of whatever the messages count: a number, or a row of an array that is split by rows.
    """

    rounds: tuple[Round, ...] = ()
    bytes_per_element: int = 1

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.rounds + other.rounds, self.bytes_per_element)

    def __mul__(self, times: int) -> Cost:
        return replace(self, rounds=self.rounds * times)

    @property
    def steps(self) -> int:
        return sum(round.times for round in self.rounds)

    @property
    def messages(self) -> int:
        """Collectives that the compiled program executes."""
        return sum(round.times * len(round.messages) for round in self.rounds)

    @property
    def bytes_sent(self) -> Fraction:
        """By a device that takes part in every round; the root of a `reduce` receives them instead."""
        return self._bytes((times, message.wire_elements) for message, times in self._executed())

    @property
    def mean_bytes_sent(self) -> Fraction:
        """By all devices together, over their number."""
        return self._bytes((times, message.share * message.wire_elements) for message, times in self._executed())

    def time_s(self, links: Links) -> float:
        """In the alpha-beta model: every round takes as long as its slowest message; arithmetic is free."""
        return sum(
            round.times * max(m.seconds(links, self.bytes_per_element) for m in round.messages) for round in self.rounds
        )

    def ledger(self, mesh: Axes, dtype: str) -> Ledger:
        """The transfers that the compiled program must show on this mesh."""
        transfers = tuple(
            Transfer(
                kind=message.kind,
                axes=message.axes,
                group_size=message.group_size,
                executions=times,
                dtype=dtype,
                payload_bytes=message.elements * self.bytes_per_element,
                groups=int(mesh.size * (message.chains or Fraction(1, message.group_size))),
                shift=message.shift,
            )
            for message, times in self._executed()
        )
        return Ledger(transfers, devices=mesh.size, mesh=mesh.shape)

    def _bytes(self, elements: Iterable[tuple[int, Fraction]]) -> Fraction:
        return self.bytes_per_element * sum((times * sent for times, sent in elements), Fraction(0))

    def _executed(self) -> Iterable[tuple[Message, int]]:
        return ((message, round.times) for round in self.rounds for message in round.messages)


def permute(axes: Axes, pairs: Pairs, elements: int) -> Message:
    """A permute between positions of `axes`: which of them it crosses, and how many devices send."""
    source, target = (np.unravel_index(side, axes.sizes) for side in np.array(pairs, int).reshape(len(pairs), 2).T)
    crossed = tuple(name for name, a, b in zip(axes.names, source, target, strict=True) if np.any(a != b))
    return Message(
        crossed,
        prod(axes[name] for name in crossed),
        elements,
        share=Fraction(len(pairs), axes.size),
        shift=common_shift(axes, crossed, pairs),
        chains=Fraction(len(_chains(pairs)), axes.size),
    )


def _chains(pairs: Pairs) -> list[set[int]]:
    """Ranks that pairs link, in a chain or a ring."""
    chains: list[set[int]] = []
    for pair in pairs:
        met = [chain for chain in chains if chain & set(pair)]
        chains = [chain for chain in chains if chain not in met] + [set(pair).union(*met)]
    return chains


def common_shift(axes: Axes, over: Iterable[str], pairs: Pairs) -> int | None:
    """By how much all of these pairs of positions move along some axes together, modulo their size; None where they
    differ."""
    if not (kept := [axes.names.index(name) for name in over]):
        return None
    sizes = [axes.sizes[i] for i in kept]
    sides = (np.unravel_index(side, axes.sizes) for side in np.array(pairs, int).reshape(len(pairs), 2).T)
    source, target = (np.ravel_multi_index([side[i] for i in kept], sizes) for side in sides)
    found = {int(shift) for shift in (target - source) % prod(sizes) if shift}
    return found.pop() if len(found) == 1 else None


def collective(kind: Kind, axes: Axes, elements: int) -> Message:
    """One of the compiler's own collectives over all of `axes`."""
    wide = tuple(name for name in axes.names if axes[name] > 1)
    return Message(wide, axes.size, elements, kind=kind)


def rounds(*messages: Message, times: int = 1) -> Cost:
    """One round of these messages, repeated; what is empty, or has nobody to go to, is not sent."""
    sent = tuple(message for message in messages if message.elements and message.group_size > 1)
    return Cost((Round(sent, times),)) if sent and times else Cost()


def at_once(*costs: Cost) -> Cost:
    """The first rounds together, then the second: for parts that travel along different axes."""
    turns = zip_longest(*([r.messages for r in cost.rounds for _ in range(r.times)] for cost in costs), fillvalue=())
    together = (tuple(chain.from_iterable(turn)) for turn in turns)
    return Cost(tuple(Round(messages, len(list(run))) for messages, run in groupby(together)))
