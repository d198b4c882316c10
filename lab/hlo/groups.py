"""Which devices talk to each other: the four spellings of groups, and the mesh axes that give them."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache

import numpy as np

from lab.core.lazy import lazy
from lab.core.ledger import SubAxis
from lab.meshes.axes import Axes

_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[([^\]]*)\](?:,\s*device_ids=\(([^{]*?)\))?\s*\{([^}]*)\}")
_MESH_AXIS = re.compile(r"'([^']*)'\s*=\s*(\d+)")
_PICKED_AXIS = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")
_MESH_AXES = re.compile(rf"{_MESH_AXIS.pattern}(?:,\s*{_MESH_AXIS.pattern})*")
_PICKED_AXES = re.compile(rf"{_PICKED_AXIS.pattern}(?:,\s*{_PICKED_AXIS.pattern})*")
_PERMUTED_IDS = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?")
_IDS = re.compile(r"\d+(?:,\s*\d+)*")
_LIST = re.compile(r"\{([\d,\s]*)\}")
_NONE = re.compile(r"(?:\{\s*\})?")
_MEMBERS = r"\s*\{\s*(?:\d+\s*(?:,\s*\d+\s*)*)?\}\s*"
_LISTS = re.compile(rf"\{{{_MEMBERS}(?:,{_MEMBERS})*\}}")
MOST_DEVICES = 1 << 22
"""More than any machine has: larger numbers are damage, and lists of so many devices would fill the memory."""


class UnreadGroups(ValueError):
    """A spelling of groups that this module does not know."""


@dataclass(frozen=True)
class Groups:
    """Groups of devices, each a tuple of positions in `mesh.devices.flat`.

    Attributes:
      are_assumed: their numbers are of devices against XLA's rules, by which the module has none such.
      are_whole: every device is in one, as XLA asks; of pairs, none sends or receives twice.
    """

    members: tuple[tuple[int, ...], ...]
    are_assumed: bool = field(default=False, compare=False)
    are_whole: bool = field(default=True, compare=False)

    @property
    def count(self) -> int:
        return len(self.members)

    @lazy
    def size(self) -> int:
        return max(map(len, self.members), default=1)

    @lazy
    def canonical(self) -> np.ndarray | None:
        """The same for any order of the groups and of their members; None where they are of several sizes, or of
        nobody."""
        if len(set(map(len, self.members))) != 1 or not self.members[0]:
            return None
        return _canonical(np.fromiter(itertools.chain.from_iterable(self.members), int).reshape(self.count, -1))


@lru_cache(maxsize=512)
def read_groups(text: str, devices: int | None) -> Groups:
    """Expands the value of `replica_groups=` or `source_target_pairs=`; an empty one means all `devices`.

    Raises:
      UnreadGroups: the spelling is not one of `{{0,1},{2,3}}`, `[2,4]<=[4,2]T(1,0)`, `mesh['x'=4,'y'=2] {'x'}`.
    """
    text = text.strip()
    if _NONE.fullmatch(text):
        if devices is None:
            raise UnreadGroups("all devices, whose number the text does not say")
        if devices > MOST_DEVICES:
            raise UnreadGroups(f"all of {devices:,} devices")
        return Groups((tuple(range(devices)),))
    try:
        return _expanded(text)
    except UnreadGroups:
        raise
    except (ValueError, ArithmeticError, LookupError) as damage:  # Sizes that do not fit, names that are not there.
        raise UnreadGroups(text[:80]) from damage


def _expanded(text: str) -> Groups:
    if mesh := _MESH.fullmatch(text):
        return _rows(_mesh_groups(*mesh.groups()))
    if iota := _IOTA.fullmatch(text):
        shape, source, order = (_numbers(part) for part in iota.groups())
        if len(shape) == 2:
            return _rows(_iota(source, order).reshape(shape))
    if _LISTS.fullmatch(text):
        return Groups(tuple(tuple(_numbers(group)) for group in _LIST.findall(text)))
    raise UnreadGroups(text[:80])


class GroupMode(Enum):
    """What the numbers of a group are, by XLA's rules (`xla/service/collective_ops_utils.h`)."""

    REPLICAS = auto()
    """Replicas, each with the same partition: an operation without a channel."""
    PARTITIONS = auto()
    """Partitions, each of the same replica: an operation with a channel."""
    REPLICAS_WITH_ALL_PARTITIONS = auto()
    """Replicas, each with every partition: a reduction or gather with a channel."""
    DEVICES = auto()
    """Devices, `replica * partitions + partition`: with a channel and use_global_device_ids."""


@lru_cache(maxsize=512)
def read_groups_of(text: str, mode: GroupMode, devices: int | None, replicas: int | None, is_pairs: bool) -> Groups:
    """Groups, or pairs of source and target, as devices.

    Args:
      devices, replicas: of the module; None where it does not say, and all numbers are then devices.
    Raises:
      UnreadGroups: another spelling.
    """
    many = devices
    if devices is not None and replicas is not None and mode is not GroupMode.DEVICES:
        many = devices // replicas if mode is GroupMode.PARTITIONS else replicas
    # No pairs at all are none, and not those of all devices.
    empty = is_pairs and _NONE.fullmatch(text.strip())
    rows = () if empty else read_groups(text, None if is_pairs else many).members
    largest = max(itertools.chain.from_iterable(rows), default=-1)
    are_assumed = many is not None and devices is not None and largest >= many and many < devices
    if not are_assumed and devices is not None and replicas is not None and many is not None:
        rows = _on_devices(rows, mode, devices // replicas, replicas)
    if is_pairs:
        are_whole = all(len(set(side)) == len(side) for side in zip(*rows, strict=False))
    else:
        numbers = list(itertools.chain.from_iterable(rows))
        are_whole = devices is None or len(numbers) == len(set(numbers)) == devices
    return Groups(rows, are_assumed, are_whole and (devices is None or largest < devices))


def _on_devices(
    rows: tuple[tuple[int, ...], ...], mode: GroupMode, partitions: int, replicas: int
) -> tuple[tuple[int, ...], ...]:
    if mode is GroupMode.PARTITIONS and replicas > 1:
        return tuple(tuple(r * partitions + one for one in row) for r in range(replicas) for row in rows)
    if mode is GroupMode.REPLICAS and partitions > 1:
        return tuple(tuple(one * partitions + p for one in row) for p in range(partitions) for row in rows)
    if mode is GroupMode.REPLICAS_WITH_ALL_PARTITIONS:
        return tuple(tuple(one * partitions + p for one in row for p in range(partitions)) for row in rows)
    return rows


@lru_cache(maxsize=512)
def axes_of_groups(groups: Groups, axes: Axes) -> tuple[str, ...] | None:
    """The smallest set of axes whose groups are exactly these; None where there is none."""
    wide = [name for name in axes.names if axes[name] > 1]
    for count in range(len(wide) + 1):
        for names in itertools.combinations(wide, count):
            if math.prod(axes[name] for name in names) != groups.size:
                continue
            if groups.canonical is not None and np.array_equal(_canonical(axes.groups(names)), groups.canonical):
                return names
    return None


@lru_cache(maxsize=512)
def sub_axes_of_groups(groups: Groups, axes: Axes) -> tuple[SubAxis, ...] | None:
    """The parts of axes whose groups are exactly these, in the mesh's order; None where there are none."""
    first = sorted(groups.members[0]) if groups.members else []
    if len(first) < 2 or first[-1] >= axes.size:
        return None
    pieces: list[int] = []
    chosen: list[int] = []
    found: list[SubAxis] = []
    for name, size, places in zip(axes.names, axes.sizes, np.unravel_index(first, axes.sizes), strict=True):
        offsets = sorted(set((places - places.min()).tolist()))
        below = size
        for stride, members in _strides(offsets):
            if below % (stride * members):
                return None
            chosen.append(len(pieces) + 1)
            pieces += [below // (stride * members), members]
            found.append(SubAxis(name, size, stride, members))
            below = stride
        pieces.append(below)
    rest = [i for i in range(len(pieces)) if i not in chosen]
    given = np.arange(axes.size).reshape(pieces).transpose(rest + chosen)
    same = (
        math.prod(pieces[i] for i in chosen) == groups.size
        and groups.canonical is not None
        and np.array_equal(_canonical(given.reshape(-1, groups.size)), groups.canonical)
    )
    return tuple(found) if same else None


def _strides(offsets: list[int]) -> list[tuple[int, int]]:
    """(stride, members) of the regular steps that nested in each other give these offsets, the widest first:
    [0, 1, 4, 5] is two steps of 4 and in each two of 1."""
    steps: list[tuple[int, int]] = []
    while len(offsets) > 1:
        stride = offsets[1]
        members = next((n for n, at in enumerate(offsets) if at != n * stride), len(offsets))
        steps.insert(0, (stride, members))
        offsets = offsets[::members]
    return steps


@dataclass(frozen=True)
class Permutation:
    """What a list of (source, target) pairs does to a mesh.

    Attributes:
      axes: those along which any pair moves, None without a mesh.
      shift: the common distance along them, modulo their size; None where pairs differ.
      pairs: of places along them, where every group of these axes has the same and some device sends nothing or by
        another distance.
    """

    groups: Groups
    axes: tuple[str, ...] | None
    shift: int | None
    pairs: tuple[tuple[int, int], ...] | None = None


@lru_cache(maxsize=512)
def read_permutation(pairs: tuple[tuple[int, ...], ...], axes: Axes | None) -> Permutation:
    if any(len(pair) != 2 for pair in pairs):
        raise UnreadGroups(f"pairs of more or fewer than two devices: {str(pairs)[:60]}")
    groups = _connected(pairs)
    moving = np.array([pair for pair in pairs if pair[0] != pair[1]], dtype=int).reshape(-1, 2)
    if axes is None or (moving.size and moving.max() >= axes.size):
        return Permutation(groups, None, None)
    source, target = (np.unravel_index(side, axes.sizes) for side in moving.T)
    changed = [i for i in range(len(axes.sizes)) if np.any(source[i] != target[i])]
    sizes = [axes.sizes[i] for i in changed]
    if not changed:
        return Permutation(groups, (), None)
    flat_source, flat_target = (np.ravel_multi_index([side[i] for i in changed], sizes) for side in (source, target))
    shifts = set(((flat_target - flat_source) % math.prod(sizes)).tolist())
    shift = shifts.pop() if len(shifts) == 1 else None
    names = tuple(axes.names[i] for i in changed)
    if shift is not None and len(moving) == axes.size:
        return Permutation(groups, names, shift)
    others = [i for i in range(len(axes.sizes)) if i not in changed]
    group = np.ravel_multi_index([source[i] for i in others], [axes.sizes[i] for i in others]) if others else 0
    along = np.stack(np.broadcast_arrays(group, flat_source, flat_target), axis=1)
    return Permutation(groups, names, shift, _alike(along, axes.size // math.prod(sizes)))


def _alike(along: np.ndarray, count: int) -> tuple[tuple[int, int], ...] | None:
    """Source and target, where each of so many groups has the same.

    Args:
      along: [pairs, 3], the group, the source's place in it, and the target's.
    """
    rows = along[np.lexsort(along.T[::-1])]
    if len(rows) % count:
        return None
    rows_GN3 = rows.reshape(count, -1, 3)
    same = (rows_GN3[..., 1:] == rows_GN3[:1, :, 1:]).all() and (rows_GN3[..., 0] == np.arange(count)[:, None]).all()
    return tuple((int(i), int(j)) for i, j in rows_GN3[0, :, 1:]) if same else None


def _mesh_groups(mesh: str, device_ids: str | None, picked: str) -> np.ndarray:
    if not (_MESH_AXES.fullmatch(mesh) and _PICKED_AXES.fullmatch(picked)):
        raise UnreadGroups(f"mesh[{mesh[:60]}] {{{picked[:60]}}}")
    names = [name for name, _ in _MESH_AXIS.findall(mesh)]
    sizes = _numbers(" ".join(size for _, size in _MESH_AXIS.findall(mesh)))
    _check_count(sizes)
    ids = np.arange(math.prod(sizes)) if device_ids is None else _device_ids(device_ids)
    pieces, chosen = _split_sub_axes(names, sizes, _PICKED_AXIS.findall(picked))
    rest = [i for i in range(len(pieces)) if i not in chosen]
    group_size = math.prod(pieces[i] for i in chosen)
    return ids.reshape(pieces).transpose(rest + chosen).reshape(-1, group_size)


def _split_sub_axes(
    names: list[str], sizes: list[int], picked: list[tuple[str, str, str]]
) -> tuple[list[int], list[int]]:
    """Sizes of the mesh with every cut axis in its pieces, and which pieces are picked, in the order of the picks."""
    pieces: list[int] = []
    place: dict[tuple[str, int], int] = {}
    for name, size in zip(names, sizes, strict=True):
        cuts = {1, size}
        for other, before, extent in picked:
            if other == name and before:
                cuts |= {int(before), int(before) * int(extent)}
        edges = sorted(cuts)
        for low, high in itertools.pairwise(edges):
            place[name, low] = len(pieces)
            pieces.append(high // low)
        if size == 1:
            place[name, 1] = len(pieces)
            pieces.append(1)
    chosen = []
    for name, before, extent in picked:
        low = int(before) if before else 1
        high = low * int(extent) if before else sizes[names.index(name)]
        pieces_of_pick = [i for (other, at), i in place.items() if other == name and (low <= at < high or at == low)]
        if math.prod(pieces[i] for i in pieces_of_pick) * low != high:
            raise UnreadGroups(f"an axis {name!r} of {high} that the groups' mesh does not have")
        chosen += pieces_of_pick
    return pieces, chosen


def _device_ids(text: str) -> np.ndarray:
    if permuted := _PERMUTED_IDS.fullmatch(text):
        return _iota(_numbers(permuted[1]), _numbers(permuted[2])).reshape(-1)
    if not _IDS.fullmatch(text):
        raise UnreadGroups(f"devices {text[:60]}")
    return np.array(_numbers(text))


def _iota(dims: list[int], order: list[int]) -> np.ndarray:
    _check_count(dims)
    ids = np.arange(math.prod(dims)).reshape(dims)
    return ids.transpose(order) if order else ids


def _check_count(dims: list[int]) -> None:
    """Raises: UnreadGroups: of more devices than there are."""
    if math.prod(dims) > MOST_DEVICES:
        raise UnreadGroups(f"groups of {math.prod(dims):,} devices")


def _numbers(text: str | None) -> list[int]:
    """Raises: UnreadGroups: a number that no device has."""
    found = re.findall(r"\d+", text or "")
    if any(len(number) > 9 for number in found):
        raise UnreadGroups(f"{(text or '')[:80]} has a number that no device has")
    return [int(number) for number in found]


def _rows(array: np.ndarray) -> Groups:
    return Groups(tuple(map(tuple, array.tolist())))


def _canonical(members: np.ndarray) -> np.ndarray:
    rows = np.sort(members, axis=1)
    return rows[np.argsort(rows[:, 0])]


def _connected(pairs: tuple[tuple[int, ...], ...]) -> Groups:
    """Chains and rings of devices that the pairs link."""
    leader: dict[int, int] = {}

    def find(device: int) -> int:
        leader.setdefault(device, device)
        while leader[device] != device:
            leader[device] = leader[leader[device]]
            device = leader[device]
        return device

    for source, target in pairs:
        leader[max(find(source), find(target))] = min(find(source), find(target))
    chains: dict[int, list[int]] = {}
    for device in sorted(leader):
        chains.setdefault(find(device), []).append(device)
    return Groups(tuple(map(tuple, chains.values())))
