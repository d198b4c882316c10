"""A budget of communication: what a program may send, line by line; whatever no line allows is over it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lab.core.ledger import Kind, Ledger, Totals, Transfer, axes_label
from lab.meshes.errors import UsageError

SHOWN = 5


@dataclass(frozen=True)
class Allowance:
    """One line of a budget; see `allow`."""

    kind: Kind | None = None
    axes: tuple[str, ...] | None = None
    executions: int | None = None
    payload_bytes: float | None = None
    wire_bytes: float | None = None

    def covers(self, transfer: Transfer) -> bool:
        return self.kind in (None, transfer.kind) and (
            self.axes is None or (transfer.axes is not None and set(self.axes) == set(transfer.axes))
        )

    def __str__(self) -> str:
        return f"{self.kind or 'any kind'} over {'any axes' if self.axes is None else '+'.join(self.axes)}"


def allow(
    kind: str | None = None,
    axes: str | Sequence[str] | None = None,
    *,
    executions: int | None = None,
    payload_bytes: float | None = None,
    wire_bytes: float | None = None,
) -> Allowance:
    """A line of a budget: transfers of this kind over exactly these axes, and at most so much of them a step.

    Args:
      kind: "all_reduce", "all_gather", ...; by default every kind.
      axes: "fsdp", or "data+fsdp" for transfers that span both; by default any.
      executions, payload_bytes, wire_bytes: the most in one step of one device, all transfers of this line together; by
        default no limit.
    Raises:
      UsageError: no such kind.
    """
    if kind is not None and kind not in list(Kind):
        raise UsageError(f"kind {kind!r}: expected one of {', '.join(Kind)}")
    names = tuple(axes.split("+")) if isinstance(axes, str) else axes and tuple(axes)
    return Allowance(kind and Kind(kind), names, executions, payload_bytes, wire_bytes)


def broken(ledger: Ledger, budget: Iterable[Allowance]) -> list[str]:
    """What a program sends beyond its budget, a sentence for each line; empty where it keeps to it.

    A transfer counts to the first line that covers it. One whose executions the text cannot tell breaks every limit of
    its line.
    """
    budget = tuple(budget)
    moving = [t for t in ledger.transfers if t.group_size != 1]
    lines = [next((line for line in budget if line.covers(t)), None) for t in moving]
    found = [f"could not be read whole: {'; '.join(ledger.notes)}"] if not ledger.is_complete else []
    for line in budget:
        own = [t for t, its in zip(moving, lines, strict=True) if its is line]
        found += [f"{line}: {excess}\n{_listed(own)}" for excess in _excesses(line, Totals.of(own))]
    outside = [t for t, line in zip(moving, lines, strict=True) if line is None]
    return found + ([f"not in the budget:\n{_listed(outside)}"] if outside else [])


def _excesses(line: Allowance, total: Totals) -> Iterator[str]:
    for what in ("executions", "payload_bytes", "wire_bytes"):
        most, found = getattr(line, what), getattr(total, what)
        if most is None or (found <= most and not total.lower_bound):
            continue
        known = (
            f"at least {float(found):,g} (the text does not tell how often)"
            if total.lower_bound
            else f"{float(found):,.12g}"
        )
        yield f"{known} {what.replace('_', ' ')} a step, where {float(most):,.12g} are allowed"


def _listed(transfers: Sequence[Transfer]) -> str:
    """The largest of them, a line each."""
    rows = sorted(transfers, key=lambda t: Totals.of([t]).wire_bytes, reverse=True)
    more = [f"    and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
    return "\n".join([*map(_line, rows[:SHOWN]), *more])


def _line(t: Transfer) -> str:
    times = "?" if t.executions is None else f"{t.executions:,}"
    where = " ".join(filter(None, (t.phase, t.scope, t.origin)))
    return f"    {t.kind} over {axes_label(t)}, {times} x {t.payload_bytes:,} B {t.dtype}  {where}".rstrip()
