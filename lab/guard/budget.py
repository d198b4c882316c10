"""A budget of communication: what a program may send, line by line; whatever no line allows is over it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real

from lab.core.ledger import Kind, Ledger, Totals, Transfer
from lab.meshes.errors import UsageError, no_such

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
        return self.kind in (None, transfer.kind) and (self.axes is None or set(self.axes) == _spanned(transfer))

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

    A budget is a bound from above: a line that no transfer matches breaks nothing, since compilers of another version
    or target may need fewer transfers. A failure names such lines, because one of them is often the line that was
    meant for what is over the budget. A line over an axis that the program's mesh lacks can match nothing and is an
    error.

    Args:
      kind: "all_reduce", "all_gather", ...; by default every kind.
      axes: "fsdp", or "data+fsdp" for transfers that span both, or part of an axis as tables name it, "fsdp[4 of 8]";
        by default any.
      executions, payload_bytes, wire_bytes: the most in one step of one device, all transfers of this line together; by
        default no limit.
    Raises:
      UsageError: no such kind, no names of axes, or a limit that is no number of 0 or more.
    """
    __tracebackhide__ = True
    if kind is not None and kind not in list(Kind):
        raise no_such("kind of transfer", kind, Kind, where=" in lab.allow(...)")
    names = axes.split("+") if isinstance(axes, str) else axes
    if names is not None and not (isinstance(names, Sequence) and all(isinstance(name, str) for name in names)):
        raise UsageError(f"lab.allow(...) over axes {axes!r}: expected names, such as 'data+fsdp' or ['data', 'fsdp']")
    limits = {"executions": executions, "payload_bytes": payload_bytes, "wire_bytes": wire_bytes}
    for what, most in limits.items():
        if most is not None and not (isinstance(most, Real) and most >= 0):
            raise UsageError(f"lab.allow(...) with {what}={most!r}: expected a number of 0 or more")
    return Allowance(
        None if kind is None else Kind(kind),
        None if names is None else tuple(names),
        executions,
        payload_bytes,
        wire_bytes,
    )


def failure(ledger: Ledger, budget: Iterable[Allowance]) -> str | None:
    """What a program sends beyond its budget, and which lines of it no transfer matches; None where it keeps to it.

    Raises:
      UsageError: a line is over an axis that the program's mesh lacks, or is no line of `allow`.
    """
    lines = tuple(budget) if isinstance(budget, Iterable) else (None,)
    if not all(isinstance(line, Allowance) for line in lines):
        raise UsageError(f"budget={budget!r}: expected a list of lines such as lab.allow('all_gather', 'fsdp')")
    allowed = [line for line in lines if line]
    for line in allowed:
        _check_axes(line, ledger)
    if not (found := broken(ledger, allowed)):
        return None
    unmatched = [str(line) for line, own in _by_line(ledger, allowed) if line and not own]
    no_use = [f"allowances that match no transfer: {', '.join(unmatched)}"] if unmatched else []
    return "\n".join(["communication exceeds the budget:", *found, *no_use])


def broken(ledger: Ledger, budget: Iterable[Allowance]) -> list[str]:
    """What a program sends beyond its budget, a sentence for each line; empty where it keeps to it.

    A transfer counts to the first line that covers it. One whose executions the text cannot tell breaks every limit of
    its line.
    """
    found = (
        [f"the compiled program could not be read completely: {'; '.join(ledger.notes)}"]
        if not ledger.is_complete
        else []
    )
    for line, own in _by_line(ledger, tuple(budget)):
        if line:
            found += [f"{line}: {excess}\n{_listed(own)}" for excess in _excesses(line, Totals.of(own))]
        elif own:
            found.append(f"not in the budget:\n{_listed(own)}")
    return found


def _by_line(ledger: Ledger, budget: Sequence[Allowance]) -> list[tuple[Allowance | None, list[Transfer]]]:
    """The transfers that count to each line, and last those that count to none."""
    moving = [t for t in ledger.transfers if t.group_size != 1]
    first = [next((at for at, line in enumerate(budget) if line.covers(t)), len(budget)) for t in moving]
    return [
        (line, [t for t, its in zip(moving, first, strict=True) if its == at])
        for at, line in enumerate([*budget, None])
    ]


def _spanned(transfer: Transfer) -> set[str]:
    """Its axes, or parts of axes, as tables name them."""
    return set(transfer.span.split("+"))


def _check_axes(line: Allowance, ledger: Ledger) -> None:
    if line.axes and ledger.mesh is None:
        raise UsageError(
            f"budget line {line}: axes of transfers are unknown without the program's mesh; pass it as mesh=..."
        )
    parts = set().union(*map(_spanned, ledger.transfers)) - {"?"}
    known = [*(ledger.mesh or ()), *sorted(parts - {*(ledger.mesh or ())})]
    for name in line.axes or ():
        if name not in known:
            raise UsageError(f"budget line {line}: {no_such('axis', name, known, ' in the mesh')}")


def _excesses(line: Allowance, total: Totals) -> Iterator[str]:
    for what in ("executions", "payload_bytes", "wire_bytes"):
        most, found = getattr(line, what), getattr(total, what)
        if most is None or (found <= most and not total.lower_bound):
            continue
        known = (
            f"at least {float(found):,g} (the text does not say how often it runs)"
            if total.lower_bound
            else f"{float(found):,.12g}"
        )
        yield f"{known} {what.replace('_', ' ')} per step, {float(most):,.12g} allowed"


def _listed(transfers: Sequence[Transfer]) -> str:
    """The largest of them, a line each, and where the others are listed."""
    rows = sorted(transfers, key=lambda t: Totals.of([t]).wire_bytes, reverse=True)
    more = [f"    and {len(rows) - SHOWN} more; print(lab.inspect(...)) lists all"] if len(rows) > SHOWN else []
    return "\n".join([*map(_line, rows[:SHOWN]), *more])


def _line(t: Transfer) -> str:
    times = "?" if t.executions is None else f"{t.executions:,}"
    where = " ".join(filter(None, (t.phase, t.scope_or_function, t.origin)))
    return f"    {t.kind} over {t.span}, {times} x {t.payload_bytes:,} B {t.dtype}  {where}".rstrip()
