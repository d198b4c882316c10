"""Changes to a step, in the order of what they cost: each that a prediction does not exclude is compiled, until one
fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import heappop, heappush
from itertools import count

from lab.core.known import known
from lab.harness.fit.cost import Cost
from lab.harness.fit.levers import Change, Lever

Changes = tuple[Change, ...]
"""One a lever at most, in the levers' order."""
SLACK = 0.85
"""Of a prediction, after what the compiled tries are of theirs: what it comes to may be so much less."""


@dataclass(frozen=True)
class Compiled:
    """One step as XLA compiled it, on one device.

    Attributes:
      peak: bytes; None where XLA refuses the program.
      flops, wire_bytes: a step; in a pipeline of the busiest stage by the schedule, wire bytes as predicted.
      flops_rematerialized: those of these FLOPs that XLA added where the step had no room.
      verdict: on its ledger.
      failure: what XLA says where it refuses.
    """

    peak: int | None
    flops: int | None = None
    wire_bytes: Fraction | None = None
    verdict: str = ""
    failure: str | None = None
    flops_rematerialized: int = 0


@dataclass(frozen=True)
class Try:
    """Changes to a step, and what became of them.

    Attributes:
      extra: what they cost by theory beyond the step as asked.
      predicted: bytes at the peak by theory; None where it says nothing.
      compiled: None where the prediction was enough to pass them over.
    """

    changes: Changes
    extra: Cost
    predicted: int | None
    compiled: Compiled | None = None

    @property
    def peak(self) -> int | None:
        """As compiled."""
        return self.compiled.peak if self.compiled else None

    def fits(self, pool: int) -> bool:
        """A prediction alone does not decide it."""
        return self.peak is not None and self.peak <= pool


def search(
    asked: Try,
    levers: Mapping[Lever, Sequence[Change]],
    price: Callable[[Changes], Cost | None],
    predict: Callable[[Changes], int | None],
    compiled: Callable[[Changes], Compiled],
    pool: int,
) -> tuple[Try, ...]:
    """The step as asked, which does not fit, then every combination of changes, one a lever at most, in the order of
    the seconds that theory says they add. The last one fits, or none does.

    A combination is taken to cost no less than its parts. One that is predicted to hold too much, by what earlier
    tries held of their predictions, or no less than without one of its changes, is not compiled. If none fits, the one
    of the least predicted peak has been compiled.

    Args:
      price: of changes; None where they do not go together.
      predict: the peak by theory.
      pool: bytes of one device.
    """
    start = known(price(()))
    tries, seen, numbers = [asked], set[Changes](), count()
    predicted: dict[Changes, int | None] = {(): asked.predicted}
    queue: list[tuple[float, int, Changes, Cost]] = []

    def extend(changes: Changes) -> None:
        used = {change.lever for change in changes}
        for one in (one for lever, some in levers.items() if lever not in used for one in some):
            further = tuple(sorted((*changes, one), key=lambda each: list(Lever).index(each.lever)))
            if further not in seen:
                seen.add(further)
                if (priced := price(further)) is not None:
                    extra = priced - start
                    heappush(queue, (extra.seconds, next(numbers), further, extra))

    extend(())
    while queue:
        *_, changes, extra = heappop(queue)
        peak = predicted[changes] = predict(changes)
        is_excluded = peak is not None and (_is_idle(changes, peak, predicted) or _is_too_much(peak, tries, pool))
        tries.append(Try(changes, extra, peak, None if is_excluded else compiled(changes)))
        if tries[-1].fits(pool):
            return tuple(tries)
        extend(changes)
    return _with_least_compiled(tries, compiled)


def _is_idle(changes: Changes, peak: int, predicted: Mapping[Changes, int | None]) -> bool:
    """One of the changes lowers nothing."""
    without = [predicted.get(tuple(one for one in changes if one != left_out)) for left_out in changes]
    return any(other is not None and other <= peak for other in without)


def _is_too_much(peak: int, tries: Sequence[Try], pool: int) -> bool:
    shares = [one.peak / one.predicted for one in tries if one.peak and one.predicted]
    return SLACK * min([1.0, *shares]) * peak > pool


def _with_least_compiled(tries: Sequence[Try], compiled: Callable[[Changes], Compiled]) -> tuple[Try, ...]:
    """The try of the least predicted peak is compiled, and the last."""
    least = min((one for one in tries if one.predicted is not None), key=lambda one: one.predicted or 0, default=None)
    if least is None or least.compiled:
        return tuple(tries)
    rest = [one for one in tries if one is not least]
    return (*rest, replace(least, compiled=compiled(least.changes)))
