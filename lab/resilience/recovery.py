"""Where the shards of a new layout come from after a loss: what a device has itself, what surviving devices have, and
the store for the rest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import jax
import numpy as np
from jax.sharding import Sharding

Box = tuple[tuple[int, int], ...]
"""Of each dim of an array the first index and the one behind the last."""
Index = tuple[slice, ...]


@dataclass(frozen=True)
class Sources:
    """Parts of one device's new shard, disjoint and together the shard.

    Attributes:
      kept: what it has itself.
      from_peers: what others have that survive, each with whose; each part once.
      from_store: what no survivor has.
    """

    kept: tuple[Box, ...]
    from_peers: tuple[tuple[jax.Device, Box], ...]
    from_store: tuple[Box, ...]


def sources(
    shape: Sequence[int], before: Sharding, after: Sharding, lost: Collection[jax.Device] = ()
) -> dict[jax.Device, Sources]:
    """For each device of `after`; it takes what it lacks once, and nothing that it has.

    So a device receives the least that it can, which `lab.redistribution.least_bytes` counts where no device is lost.
    """
    held = {device: box for device, box in boxes(shape, before).items() if device not in lost}
    return {device: _sources(device, box, held) for device, box in boxes(shape, after).items()}


def _sources(device: jax.Device, needed: Box, held: dict[jax.Device, Box]) -> Sources:
    kept, missing = _taken([needed], held.get(device))
    from_peers = list[tuple[jax.Device, Box]]()
    for peer, box in held.items():
        found, missing = _taken(missing, box)
        from_peers += [(peer, part) for part in found]
    return Sources(tuple(kept), tuple(from_peers), tuple(missing))


def recovered(
    x: jax.Array, after: Sharding, read: Callable[[Index], np.ndarray], lost: Collection[jax.Device] = ()
) -> tuple[jax.Array, dict[jax.Device, int]]:
    """`x` under another sharding, perhaps on fewer devices, without the shards of the lost ones; and the bytes that
    each device received from its peers.

    Args:
      read: a part of the array from a checkpoint of this very state.
    """
    shards = {shard.device: np.asarray(shard.data) for shard in x.addressable_shards}
    starts = boxes(x.shape, x.sharding)
    blocks, received = [], dict[jax.Device, int]()
    for device, found in sources(x.shape, x.sharding, after, lost).items():
        whole = boxes(x.shape, after)[device]
        block = np.empty([last - first for first, last in whole], x.dtype)
        of_peers = [(part, shards[peer][_within(part, starts[peer])]) for peer, part in found.from_peers]
        own = [(part, shards[device][_within(part, starts[device])]) for part in found.kept]
        for part, piece in (*own, *of_peers, *((part, read(_within(part))) for part in found.from_store)):
            block[_within(part, whole)] = piece
        received[device] = sum(piece.nbytes for _, piece in of_peers)
        blocks.append(jax.device_put(block, device))
    return jax.make_array_from_single_device_arrays(x.shape, after, blocks), received


def boxes(shape: Sequence[int], sharding: Sharding) -> dict[jax.Device, Box]:
    """Which part of an array each device has."""
    where = sharding.devices_indices_map(tuple(shape))
    return {
        device: tuple(each.indices(size)[:2] for each, size in zip(index, shape, strict=True))
        for device, index in where.items()
    }


def elements(box: Box) -> int:
    return prod(last - first for first, last in box)


def _within(box: Box, block: Box | None = None) -> Index:
    """A part's index in a block that has it, or in the whole array."""
    starts = [first for first, _ in block] if block else [0] * len(box)
    return tuple(slice(first - start, last - start) for (first, last), start in zip(box, starts, strict=True))


def _taken(wanted: Sequence[Box], held: Box | None) -> tuple[list[Box], list[Box]]:
    """What of some boxes another has, and the rest of them, both cut into boxes."""
    if held is None:
        return [], list(wanted)
    found, rest = list[Box](), list[Box]()
    for box in wanted:
        both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, held, strict=True))
        if any(first >= last for first, last in both):
            rest.append(box)
        else:
            found.append(both)
            rest += _around(box, both)
    return found, rest


def _around(box: Box, part: Box) -> Iterator[Box]:
    """The box without a part of it: what lies before and behind it, dim by dim."""
    for dim, ((first, last), (a, b)) in enumerate(zip(box, part, strict=True)):
        for start, end in ((first, a), (b, last)):
            if start < end:
                yield (*part[:dim], (start, end), *box[dim + 1 :])
