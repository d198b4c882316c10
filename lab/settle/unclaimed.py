"""Measured transfers that no term has claimed yet, and what claiming some of them leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from lab.core.known import known
from lab.core.ledger import Kind, Transfer

Unclaimed = tuple[Transfer, ...]


def claim(wanted: Transfer, unclaimed: Unclaimed, is_any_shift: bool = False) -> Unclaimed:
    """As many executions as are wanted of transfers like it, those of its scope and phase, and with a name, first; ()
    where there are fewer.

    Alike are kind, axes, group size and number of groups (those of a permute where they are stated), shift, dtype,
    payload, whether it always runs and whether it gathers.

    Args:
      is_any_shift: it does not matter in which direction a permute moves, and how far.
    """
    taken = claim_up_to(wanted, unclaimed, is_any_shift)
    return taken if sum(known(t.executions) for t in taken) == wanted.executions else ()


def claim_up_to(wanted: Transfer, unclaimed: Unclaimed, is_any_shift: bool = False) -> Unclaimed:
    """The same, or as many as there are."""
    alike = [
        t for t in unclaimed if t.executions and _is_like(replace(wanted, shift=t.shift) if is_any_shift else wanted, t)
    ]
    missing = wanted.executions or 0
    taken: list[Transfer] = []
    for transfer in sorted(alike, key=lambda t: (t.scope != wanted.scope, t.phase != wanted.phase, t.op_name is None)):
        share = min(missing, known(transfer.executions))
        taken += [replace(transfer, executions=share)] if share else []
        missing -= share
    return tuple(taken)


def claim_all(wanted: Iterable[Transfer], unclaimed: Unclaimed, is_any_shift: bool = False) -> Unclaimed:
    """Each of them; () where one is not there."""
    taken: Unclaimed = ()
    for transfer in wanted:
        found = claim(transfer, subtract(unclaimed, taken), is_any_shift)
        if not found:
            return ()
        taken += found
    return taken


def subtract(unclaimed: Unclaimed, taken: Unclaimed) -> Unclaimed:
    """What is left when the executions of `taken` are gone."""
    claimed: Counter[Transfer] = Counter()
    for transfer in taken:
        claimed[replace(transfer, executions=None)] += transfer.executions or 0
    rest = []
    for transfer in unclaimed:
        name = replace(transfer, executions=None)
        if name not in claimed:
            rest.append(transfer)
            continue
        remaining = max(0, (transfer.executions or 0) - claimed[name])
        claimed[name] -= (transfer.executions or 0) - remaining
        rest += [replace(transfer, executions=remaining)] if remaining else []
    return tuple(rest)


def _is_like(wanted: Transfer, found: Transfer) -> bool:
    return _likeness(wanted) == _likeness(found) and wanted.groups in (None, found.groups)


def _likeness(transfer: Transfer) -> tuple[object, ...]:
    axes = None if transfer.axes is None else frozenset(transfer.axes)
    # Of a permute the group is whatever chain its pairs make; its axes, its shift and its message say it all.
    group_size = None if transfer.kind is Kind.COLLECTIVE_PERMUTE else transfer.group_size
    return (
        transfer.kind,
        axes,
        group_size,
        transfer.shift,
        transfer.dtype,
        transfer.payload_bytes,
        transfer.conditional,
        transfer.is_masked_gather,
    )
