"""What fails: devices that are lost together, and the machine that remains."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, prod

from lab.core.units import count
from lab.meshes.errors import UsageError, no_such
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target, parse_target

HOSTS_A_RACK = 4
"""Of a GPU target, with eight GPUs each."""
TPUS_A_HOST = 4


class Scale(StrEnum):
    """What fails at once: one device, its host, a rack of four hosts, a slice of TPUs."""

    DEVICE = "device"
    HOST = "host"
    RACK = "rack"
    SLICE = "slice"


@dataclass(frozen=True)
class Loss:
    """Devices that fail together.

    Attributes:
      devices: how many; None where `scale` says it.
    """

    scale: Scale | None
    devices: int | None = None

    @classmethod
    def parse(cls, text: str) -> Loss:
        """`host`, `rack`, `slice`, `device`, or a number of devices.

        Raises:
          UsageError: anything else.
        """
        if re.fullmatch("[1-9][0-9]{0,8}", text.strip()):
            return cls(None, int(text))
        if text not in list(Scale):
            raise no_such("loss", text, [*Scale, "a number of devices"])
        return cls(Scale(text))

    def __str__(self) -> str:
        return str(self.scale) if self.scale else count(self.devices or 0, "device")

    def lost(self, target: Target) -> int:
        """Devices of a target that are gone.

        Raises:
          UsageError: the target has no such part, or no more than it.
        """
        of = self.devices if self.scale is None else devices_of(self.scale, target)
        if of is None:
            raise UsageError(f"--lose {self}: target {target} has none; lose another, or a number of devices")
        if of >= (known := target.devices or 0):
            raise UsageError(f"--lose {self}: that is {of:,} of the {known:,} devices of {target}; nothing remains")
        return of


def devices_of(scale: Scale, target: Target) -> int | None:
    """How many there are in one; None where the target has no such part."""
    slices = target.slices > 1
    if scale is Scale.DEVICE:
        return 1
    if target.platform == Platform.GPU:
        return {Scale.HOST: target.per_host, Scale.RACK: HOSTS_A_RACK * target.per_host}.get(scale)
    if target.platform == Platform.TPU:
        of_slice = (target.devices or 0) // target.slices
        of_host = min(TPUS_A_HOST * target.hardware.devices_per_chip, of_slice)
        return {Scale.HOST: of_host, Scale.SLICE: of_slice if slices else None}.get(scale)
    return None


def remaining(target: Target, lost: int) -> Target:
    """The largest machine of the same kind without so many devices: whole hosts of GPUs, whole slices of TPUs, of one
    slice a smaller box.

    Raises:
      UsageError: none remains.
    """
    found = next(_smaller(target, (target.devices or 0) - lost), None)
    if found is None:
        raise UsageError(f"without {count(lost, 'device')} nothing of {target} remains that a mesh could be on")
    return found


def holding(target: Target, devices: int) -> Target | None:
    """The part of a machine with just so many devices; None where it has none."""
    return next((one for one in _smaller(target, devices) if one.devices == devices), None)


def _smaller(target: Target, most: int) -> Iterator[Target]:
    """Machines of at most so many devices, the largest first."""
    if target.platform == Platform.CPU:
        yield replace(target, shape=(most,))
    elif target.platform == Platform.GPU:
        hosts, per_host = most // target.per_host, target.per_host
        if hosts:
            yield replace(target, shape=(hosts, per_host))
        elif most:
            yield replace(target, shape=(1, most))
    elif target.slices > 1:
        of_slice = (target.devices or 0) // target.slices
        if slices := most // of_slice:
            yield replace(target, slices=slices)
        else:
            yield from _smaller(replace(target, slices=1), most)
    else:
        yield from sorted(_boxes(target, most), key=lambda one: (-(one.devices or 0), one.shape))


def _boxes(target: Target, most: int) -> Iterator[Target]:
    """Smaller slices: with one of the sides halved, as often as it takes."""
    seen, queue = {target.shape}, [target.shape]
    while queue:
        shape = queue.pop()
        if prod(shape) * target.hardware.devices_per_chip <= most and _is_slice(
            smaller := replace(target, shape=shape)
        ):
            yield smaller
        for side, size in enumerate(shape):
            halved = (*shape[:side], ceil(size / 2), *shape[side + 1 :])
            if size % 2 == 0 and halved not in seen:
                seen.add(halved)
                queue.append(halved)


def _is_slice(target: Target) -> bool:
    try:
        return parse_target(str(target)) == target
    except UsageError:
        return False
