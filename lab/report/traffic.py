"""Which device sends to which: the bytes of a ledger on the mesh it was compiled for, by device, or by host where
devices are many."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lab.core.known import known
from lab.core.ledger import Kind, Ledger, Totals, Transfer
from lab.meshes.axes import Axes

MOST = 32
SPREAD = (Kind.ALL_TO_ALL, Kind.RAGGED_ALL_TO_ALL)


@dataclass(frozen=True)
class Blocks:
    """Runs of devices that are shown as one.

    Attributes:
      unit: what one is: "device", "host", "4 hosts", "512 devices".
      of: [devices], the block of each position.
      count: how many there are.
    """

    unit: str
    of: np.ndarray
    count: int


@dataclass(frozen=True)
class Traffic:
    """Bytes of a step.

    Attributes:
      bytes: [blocks, blocks], from a row to a column; inside a block on the diagonal.
      unplaced_wire_bytes: of one device, whose receivers the ledger does not tell.
    """

    blocks: Blocks
    bytes: np.ndarray
    unplaced_wire_bytes: Fraction


def blocks(axes: Axes, domains: np.ndarray | None, domain: str) -> Blocks:
    """One a device where they are at most `MOST`, else one a domain or a run of as many domains, or of devices, as it
    takes."""
    if axes.size > MOST and domains is not None and domains.max() > 0:
        return _runs(domains, domain)
    return _runs(np.arange(axes.size), "device")


def _runs(of: np.ndarray, unit: str) -> Blocks:
    count = int(of.max()) + 1
    size = -(-count // MOST)
    return Blocks(unit if size == 1 else f"{size:,} {unit}s", of // size, -(-count // size))


def traffic(ledger: Ledger, axes: Axes, shown: Blocks) -> Traffic:
    """Adds up the transfers of a step.

    A permute sends along its shift, an all_to_all as much to each member of its group, and all else around a ring in
    the mesh's order.
    """
    sent: dict[tuple[tuple[str, ...], int | None], list[Transfer]] = {}
    unplaced = []
    for t in ledger.transfers:
        if _is_placed(t, axes):
            sent.setdefault((known(t.axes), _shift(t)), []).append(t)
        else:
            unplaced.append(t)
    matrix = np.zeros((shown.count, shown.count))
    for (names, shift), transfers in sent.items():
        matrix += float(Totals.of(transfers).wire_bytes) * _pairs(axes.groups(names), shift, shown)
    return Traffic(shown, matrix, Totals.of(unplaced).wire_bytes)


def _is_placed(t: Transfer, axes: Axes) -> bool:
    return (
        t.axes is not None
        and all(name in axes.names for name in t.axes)
        and (t.kind is not Kind.COLLECTIVE_PERMUTE or t.shift is not None)
    )


def _shift(t: Transfer) -> int | None:
    """Along the group; None to all of it."""
    return None if t.kind in SPREAD else t.shift or 1


def _pairs(groups: np.ndarray, shift: int | None, shown: Blocks) -> np.ndarray:
    """[blocks, blocks]: how many devices of one send to one of the other, each as one where it sends to all of its
    group."""
    pairs = np.zeros((shown.count, shown.count))
    if shift is not None:
        np.add.at(pairs, (shown.of[groups], shown.of[np.roll(groups, -shift, axis=1)]), 1)
        return pairs
    members = np.zeros((len(groups), shown.count))
    np.add.at(members, (np.arange(len(groups))[:, None], shown.of[groups]), 1)
    sends: np.ndarray = (members.T @ members - np.diag(members.sum(0))) / max(1, groups.shape[1] - 1)
    return sends
