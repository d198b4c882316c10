"""Checks for faults that raise nothing: a bit that flips, a step that computes otherwise, a process that is slow.

Each costs little: a pass over the state and eight bytes a device for copies that must be equal, a comparison for losses
and norms, one step now and then for a replay, four bytes a process for stragglers.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from lab.resilience.checkpoints import Snapshot, named
from lab.resilience.digest import digests, shard_digests


class OddCopy(NamedTuple):
    """A device's copy of a part of an array that is not what most devices with that part have.

    Attributes:
      device: its id.
      of: how many devices have the part; of two it cannot be said which is wrong, and both are named.
    """

    array: str
    device: int
    of: int


def odd_copies(arrays: Mapping[str, jax.Array]) -> tuple[OddCopy, ...]:
    """Compares what must be equal: the shards of one part of an array on several devices, along `data` for instance.

    Every process of the arrays must ask.
    """
    found = shard_digests(arrays)
    here = np.array([found[name] for name in sorted(arrays)]).astype(np.uint32)
    everywhere = here[None] if jax.process_count() == 1 else multihost_utils.process_allgather(here)
    return tuple(
        odd
        for number, name in enumerate(sorted(arrays))
        for odd in _odd(name, arrays[name], [process[number] for process in everywhere])
    )


def _odd(name: str, x: jax.Array, digests_PD2: Sequence[np.ndarray]) -> Iterator[OddCopy]:
    devices: list[Any] = sorted(x.sharding.device_set, key=lambda device: device.id)
    by_process: dict[int, Iterator[Any]] = {}
    for number, process in enumerate(sorted({device.process_index for device in devices})):
        by_process[process] = iter(digests_PD2[number])
    where: Mapping[Any, Any] = x.sharding.devices_indices_map(x.shape)
    copies = defaultdict[str, dict[int, tuple[int, ...]]](dict)
    for device in devices:
        copies[str(where[device])][device.id] = tuple(next(by_process[device.process_index]))
    for part in copies.values():
        (usual, times), *_ = Counter(part.values()).most_common(1)
        odd = part if times == 1 and len(part) > 1 else {key: own for key, own in part.items() if own != usual}
        yield from (OddCopy(name, device, len(part)) for device in odd)


def is_spike(value: float, before: Sequence[float], factor: float) -> bool:
    """Whether a loss or a norm is no number, or more than `factor` times the median of those before it."""
    return not math.isfinite(value) or (len(before) > 0 and value > factor * median(before))


def replay(
    steps: Callable[[Snapshot], Iterator[tuple[Snapshot, float]]], snapshot: Snapshot, times: int = 2
) -> tuple[str, ...]:
    """Names of the arrays, and "loss", that are not the same to the bit each time that a step is made from a snapshot.

    The snapshot's own arrays stay. On CPUs, and on GPUs with `--xla_gpu_deterministic_ops`, a step is the same each
    time.
    """
    seen = []
    for _ in range(times):
        after, loss = next(steps(snapshot._replace(state=jax.tree.map(jnp.copy, snapshot.state))))
        seen.append(digests(named(after.state)) | {"loss": loss.hex()})
    return tuple(name for name in seen[0] if len({each[name] for each in seen}) > 1)


def seconds_of_all(seconds: float) -> np.ndarray:
    """What each process took, [processes]: of its own work, before it waits for others. Every process must ask."""
    return np.ravel(multihost_utils.process_allgather(np.float32(seconds)))


def stragglers(seconds_P: Sequence[float], factor: float = 1.5) -> tuple[int, ...]:
    """Processes that took more than `factor` times what the median of the others took."""
    others = [
        np.median(np.delete(seconds_P, number)) if len(seconds_P) > 1 else np.inf for number in range(len(seconds_P))
    ]
    return tuple(number for number, seconds in enumerate(seconds_P) if seconds > factor * others[number])
