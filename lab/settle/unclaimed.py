"""Measured transfers that no term has claimed yet, and what claiming some of them leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from lab.core.known import known
from lab.core.ledger import Kind, Phase, Transfer

Unclaimed = tuple[Transfer, ...]
FILLED = (Kind.SEND_RECV, Kind.ALL_REDUCE)
"""What a TPU's compiler fills up to whole tiles to send it to other slices."""


def claim(wanted: Transfer, unclaimed: Unclaimed, is_any_shift: bool = False) -> Unclaimed:
    """As many executions as are wanted of transfers like it, those first whose scope, filling and phase the text
    states; () where there are fewer.

    Alike are kind, axes, group size and number of groups (those of a permute where they are stated), shift, dtype,
    payload, and of messages and sums between slices what they were filled up from, whether it always runs and whether
    it gathers, what it repeats, whether it was widened where that is wanted, and phase and scope where the text states
    them.

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
    for transfer in sorted(alike, key=lambda t: _order(wanted, t)):
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
    return (
        _likeness(wanted) == _likeness(found)
        and wanted.groups in (None, found.groups)
        and (found.is_widened or not wanted.is_widened)
        and (found.kind not in FILLED or found.padded_from_bytes in (None, wanted.padded_from_bytes))
        and _is_of_phase(wanted, found)
        and ("" in (wanted.scope, found.scope) or is_of_scope(wanted, found.scope))
    )


def _is_of_phase(wanted: Transfer, found: Transfer) -> bool:
    """What has lost its name has the phase of what makes it; it may be moved in the update."""
    is_later = wanted.phase == Phase.UPDATE and found.op_name is None
    return None in (wanted.phase, found.phase) or wanted.phase == found.phase or is_later


def is_of_scope(wanted: Transfer, scope: str) -> bool:
    """It is the wanted one's, one around it or inside it, or that of an operation of the same block for which the value
    is moved."""
    beside = {name for name in wanted.provenance.named_after if _lies_in(_parent(wanted.scope), _parent(name))}
    return scope in beside or _lies_in(scope, wanted.scope) or _lies_in(wanted.scope, scope)


def _order(wanted: Transfer, found: Transfer) -> tuple[int, bool, bool, bool]:
    """First what the text gives the wanted one's scope, then its filling, then its phase."""
    is_filled_otherwise = found.padded_from_bytes != wanted.padded_from_bytes
    return _fit(wanted, found), is_filled_otherwise, found.phase != wanted.phase, found.op_name is None


def _fit(wanted: Transfer, found: Transfer) -> int:
    """How exactly the text states the scope, best first: the same, one inside it or of an operation of its block, one
    around it, none."""
    if found.scope == wanted.scope:
        return 0
    if not found.scope:
        return 3
    return 2 if _lies_in(wanted.scope, found.scope) else 1


def _lies_in(scope: str, outer: str) -> bool:
    return not outer or f"{scope}/".startswith(f"{outer}/")


def _parent(scope: str) -> str:
    return scope.rpartition("/")[0]


def _likeness(transfer: Transfer) -> tuple[object, ...]:
    axes = None if transfer.axes is None else frozenset(transfer.axes)
    # Of a permute the group is whatever chain its pairs make; its axes, its shift and its message say it all.
    is_by_pairs = transfer.kind in (Kind.COLLECTIVE_PERMUTE, Kind.SEND_RECV) and transfer.network_kind is None
    group_size = None if is_by_pairs else transfer.group_size
    return (
        transfer.kind,
        transfer.network_kind,
        axes,
        transfer.sub_axes if axes is None else None,
        group_size,
        transfer.shift,
        transfer.dtype,
        transfer.payload_bytes,
        transfer.conditional,
        transfer.is_masked_gather,
        transfer.repeats,
    )
