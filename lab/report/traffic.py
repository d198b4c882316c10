"""Which device sends to which: the bytes of a ledger on the mesh it was compiled for, by device and by host, where they
are many by runs of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

import numpy as np

from lab.core.known import known
from lab.core.ledger import Kind, Ledger, SubAxis, Totals, Transfer
from lab.core.units import bytes_text
from lab.meshes.axes import Axes

MOST = 32
SPREAD = (Kind.ALL_TO_ALL, Kind.RAGGED_ALL_TO_ALL)
BY_PAIRS = (Kind.COLLECTIVE_PERMUTE, Kind.SEND_RECV)


Route = tuple[tuple[int, int], ...] | int | None
"""Inside a group: from place to place, from each to the one so many places further, or from each to all others."""


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
    """Bytes of a step of all devices.

    Attributes:
      bytes: [blocks, blocks], from a row to a column; inside a block on the diagonal.
      unplaced_wire_bytes: of one device, whose receivers the ledger does not tell.
    """

    blocks: Blocks
    bytes: np.ndarray
    unplaced_wire_bytes: Fraction


def levels(axes: Axes, domains: np.ndarray | None, domain: str) -> tuple[Blocks, ...]:
    """One block a domain where they are several, one a device where these are at most `MOST` or there is but one
    domain; as many of either to a block as `MOST` blocks take.

    Args:
      domains: [devices], as of `lab.meshes.targets.domains`; None where they are not known.
      domain: what one is called.
    """
    by_domain = [_runs(domains, domain)] if domains is not None and domains.max() > 0 else []
    by_device = [_runs(np.arange(axes.size), "device")] if axes.size <= MOST or not by_domain else []
    return (*by_domain, *by_device)


def _runs(of: np.ndarray, unit: str) -> Blocks:
    count = int(of.max()) + 1
    size = -(-count // MOST)
    return Blocks(unit if size == 1 else f"{size:,} {unit}s", of // size, -(-count // size))


def traffic(ledger: Ledger, axes: Axes, shown: Blocks) -> Traffic:
    """Adds up the transfers of a step.

    A permute sends by its pairs or along its shift, an all_to_all and a gather of messages as much to each member of
    its group, and all else around a ring in the mesh's order. Every device that sends does its wire bytes: all, or the
    sources of the pairs.
    """
    sent: dict[tuple[tuple[str | SubAxis, ...], Route], list[Transfer]] = {}
    unplaced = []
    for t in ledger.transfers:
        if _is_placed(t, axes):
            sent.setdefault((t.axes or known(t.sub_axes), _route(t)), []).append(t)
        else:
            unplaced.append(t)
    matrix = np.zeros((shown.count, shown.count))
    for (over, route), transfers in sent.items():
        matrix += float(Totals.of(transfers).wire_bytes) * _pairs(_groups(over, axes), route, shown)
    return Traffic(shown, matrix, Totals.of(unplaced).wire_bytes)


def crossing_share(ledger: Ledger, axes: Axes, domains: np.ndarray) -> float | None:
    """Of the bytes that all devices send in a step, the share that goes to another domain; None where it is not known
    to whom some go, or none are sent.

    Args:
      domains: [devices], as of `lab.meshes.targets.domains`.
    """
    found = traffic(ledger, axes, Blocks("domain", domains, int(domains.max()) + 1))
    if found.unplaced_wire_bytes or not found.bytes.any():
        return None
    return float(1 - found.bytes.trace() / found.bytes.sum())


def not_placed(ledger: Ledger, found: Traffic) -> list[str]:
    """What a matrix lacks, a sentence each."""
    said = []
    if found.unplaced_wire_bytes:
        said.append(
            f"Not shown are {bytes_text(found.unplaced_wire_bytes)} of each device, whose receivers are not known."
        )
    if ledger.totals().lower_bound:
        said.append("Not shown are transfers of which it is not known how often they run, or over which groups.")
    return said


def _is_placed(t: Transfer, axes: Axes) -> bool:
    over = [part.axis for part in t.sub_axes or ()] if t.axes is None else t.axes
    if not over or not set(over) <= set(axes.names):
        return False
    if t.pairs:
        return max(map(max, t.pairs)) < prod(axes[name] for name in over)
    return t.kind not in BY_PAIRS or t.network_kind is not None or t.shift is not None


def _route(t: Transfer) -> Route:
    if t.kind in SPREAD or t.network_kind in (*SPREAD, Kind.ALL_GATHER):
        return None
    return t.pairs or t.shift or 1


def _groups(over: Sequence[str | SubAxis], axes: Axes) -> np.ndarray:
    """[groups, members] positions, members in the mesh's order."""
    parts = [part for part in over if isinstance(part, SubAxis)]
    return _groups_of_parts(parts, axes) if parts else axes.groups(map(str, over))


def _groups_of_parts(parts: Iterable[SubAxis], axes: Axes) -> np.ndarray:
    """Each axis in its pieces: a part's members, and what is left outside and inside of it. Of several parts of one
    axis the widest stands first."""
    pieces: list[int] = []
    chosen: list[int] = []
    for name, size in axes.shape.items():
        below = size
        for part in (part for part in parts if part.axis == name):
            chosen.append(len(pieces) + 1)
            pieces += [below // (part.stride * part.size), part.size]
            below = part.stride
        pieces.append(below)
    rest = [i for i in range(len(pieces)) if i not in chosen]
    members = prod(pieces[i] for i in chosen)
    return np.arange(axes.size).reshape(pieces).transpose(rest + chosen).reshape(-1, members)


def _pairs(groups: np.ndarray, route: Route, shown: Blocks) -> np.ndarray:
    """[blocks, blocks]: how many devices of one send to one of the other, each as one where it sends to all of its
    group."""
    pairs = np.zeros((shown.count, shown.count))
    if isinstance(route, int):
        np.add.at(pairs, (shown.of[groups], shown.of[np.roll(groups, -route, axis=1)]), 1)
        return pairs
    if route:
        sources, targets = np.array(route).T
        np.add.at(pairs, (shown.of[groups[:, sources]], shown.of[groups[:, targets]]), 1)
        return pairs
    members = np.zeros((len(groups), shown.count))
    np.add.at(members, (np.arange(len(groups))[:, None], shown.of[groups]), 1)
    sends: np.ndarray = (members.T @ members - np.diag(members.sum(0))) / max(1, groups.shape[1] - 1)
    return sends
