"""Where a program is compiled, and perhaps run: `cpu:8`, `gpu:h100:2x8`, `tpu:v5p:2x2x4*2` or `attached`. Imports no
JAX."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

import numpy as np

from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError, no_such
from lab.meshes.hardware import Chip, Pod, chip, chip_names
from lab.meshes.platforms import GPU_LINKS, TPU_LINKS, LinkName, Platform

MOST_CPUS = 4096
FORMS = (
    "cpu:DEVICES (cpu:8), gpu:CHIP:HOSTSxGPUS (gpu:h100:2x8), tpu:CHIP:TOPOLOGY[*SLICES] (tpu:v5p:2x2x4*2) or attached"
)


@dataclass(frozen=True)
class Target:
    """A place to compile for.

    Attributes:
      chip: its name in the table of hardware; None on CPUs and where the devices are whatever is attached.
      shape: devices of a CPU target; hosts and GPUs a host; chips along each direction of one TPU slice.
      slices: TPU slices, joined by the data-centre network.
    """

    platform: Platform
    chip: str | None = None
    shape: tuple[int, ...] = ()
    slices: int = 1

    @property
    def hardware(self) -> Chip:
        """What the table of hardware says of its chip.

        Raises:
          UsageError: it has none, as CPUs, or none that is known.
        """
        if self.chip is None:
            raise UsageError(f"target {self}: has no chip in the table of hardware; name one, as in gpu:h100:1x8")
        return chip(self.chip)

    @property
    def devices(self) -> int | None:
        """How many devices JAX lists: a chip is one, on TPU 7x two. None where they are whatever is attached."""
        if self.platform == Platform.ATTACHED:
            return None
        a_chip = self.hardware.devices_per_chip if self.chip else 1
        return prod(self.shape) * self.slices * a_chip

    @property
    def memory_bytes(self) -> int | None:
        """Of one device; None on CPUs and where they are whatever is attached."""
        known = self.hardware if self.chip else None
        return int(known.memory_bytes.value) // known.devices_per_chip if known else None

    @property
    def hosts(self) -> int:
        """Of a GPU target."""
        return self.shape[0]

    @property
    def per_host(self) -> int:
        """GPUs of one host."""
        return self.shape[1]

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape)) + (f"*{self.slices}" if self.slices > 1 else "")
        return ":".join(filter(None, (self.platform, self.chip, size)))


def parse_target(text: str) -> Target:
    """Reads a target as written on the command line.

    Raises:
      UsageError: another form, or a chip that the table of hardware lacks.
    """
    platform, _, rest = text.strip().partition(":")
    if (platform, rest) == ("attached", ""):
        return Target(Platform.ATTACHED)
    name, _, size = rest.rpartition(":")
    sizes = re.fullmatch(_SIZES.get(platform, "(?!)"), size)
    if not sizes or (platform == "cpu") != (name == "") or rest.startswith(":"):
        raise UsageError(f"target {text!r}: {_meant(text.strip())}expected {FORMS}")
    if name and name not in chip_names(platform):
        raise UsageError(f"target {text!r}: {no_such(f'{platform} chip', name, chip_names(platform))}")
    target = Target(Platform(platform), name or None, tuple(map(int, sizes[1].split("x"))), int(sizes[2] or 1))
    _check_extent(text, target)
    return target


def _meant(text: str) -> str:
    """`did you mean gpu:h100:2x8? ` for a target without its platform."""
    name = text.lower().partition(":")[0]
    for platform, size in ((Platform.GPU, "HOSTSxGPUS"), (Platform.TPU, "TOPOLOGY")):
        if name in chip_names(platform):
            try:
                return f"did you mean {parse_target(f'{platform}:{text.lower()}')}? "
            except UsageError:
                return f"did you mean {platform}:{name}:{size}? "
    return ""


def _check_extent(text: str, target: Target) -> None:
    """Compilers of larger TPU slices end the process, or make what no pod can be wired to; many fake CPU devices take
    minutes to start."""
    if target.platform == Platform.CPU and prod(target.shape) > MOST_CPUS:
        raise UsageError(
            f"target {text!r}: expected {MOST_CPUS:,} fake CPU devices at most; for more devices, name GPUs or TPUs"
        )
    pod = target.hardware.pod if target.chip else None
    if pod:
        _check_slice(text, target, pod)


def _check_slice(text: str, target: Target, pod: Pod) -> None:
    whole, blocks = "x".join(map(str, pod.block)), pod.blocks_of(target.shape)
    if blocks is None and pod.blocks > 1:
        raise UsageError(
            f"target {text!r}: found a slice that is not made of full {whole} cubes; expected one inside a cube, or "
            f"sides that are multiples of {' and '.join(dict.fromkeys(map(str, pod.block)))}"
        )
    if blocks is None or blocks > pod.blocks:
        most = f"{pod.blocks} cubes of {whole}" if pod.blocks > 1 else whole
        raise UsageError(
            f"target {text!r}: a slice must fit into one pod, of {most} chips; join smaller slices, as in "
            f"tpu:{target.chip}:{whole}*2"
        )


_N = "[1-9][0-9]{0,8}"
_SIZES = {"cpu": f"({_N})()", "gpu": f"({_N}x{_N})()", "tpu": rf"({_N}(?:x{_N}){{1,2}})(?:\*({_N}))?"}


def link_names(target: Target) -> tuple[LinkName, LinkName]:
    """The link inside a domain and the one between domains."""
    return TPU_LINKS if target.platform == Platform.TPU else GPU_LINKS


def domains(target: Target, axes: Axes) -> np.ndarray:
    """For each position of the mesh, the domain of fast links that its device belongs to.

    Returns:
      [devices]: the host of a GPU, the slice of a TPU; zeros on CPUs and where the devices are whatever is attached.
    """
    check_size(target, axes)
    if target.platform == Platform.GPU:
        return np.arange(axes.size) // target.per_host
    if target.slices == 1:
        return np.zeros(axes.size, int)
    across = axes.names.index(slice_axis(target.slices, axes))
    coordinate: np.ndarray = np.indices(axes.sizes)[across].ravel()
    return coordinate * target.slices // axes.sizes[across]


def slice_axis(slices: int, axes: Axes) -> str:
    """The first axis that the slices divide: each slice holds a run of its coordinates."""
    for name, size in axes.shape.items():
        if size % slices == 0:
            return name
    raise UsageError(
        f"no axis of mesh {axes} is a multiple of the {slices} slices; choose one axis that spans the slices"
    )


def check_size(target: Target, axes: Axes) -> None:
    if target.devices is not None and axes.size != target.devices:
        raise UsageError(
            f"mesh {axes} has {axes.size} devices and target {target} has {target.devices}; make them equal"
        )
