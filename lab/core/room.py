"""Whether a program's peak has room on a device: on GPUs JAX takes three quarters of the card by default."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from lab.core.units import bytes_text, share_text
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target

# https://docs.jax.dev/en/latest/gpu_memory_allocation.html
FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
DEFAULT_SHARE_OF_GPU = 0.75


def taken(platform: str, of_gpu: float = DEFAULT_SHARE_OF_GPU) -> float:
    """The share of a device's memory that JAX takes: all of a TPU's."""
    return of_gpu if platform == Platform.GPU else 1


@dataclass(frozen=True)
class Room:
    """The memory of one device.

    Attributes:
      chip: its name, for people.
      device_bytes: all that it has.
      default_share: of these what JAX takes unless told otherwise.
    """

    chip: str
    device_bytes: int
    default_share: float

    @classmethod
    def of(cls, target: Target | None) -> Room | None:
        """None where the target names no chip."""
        if target is None or target.memory_bytes is None:
            return None
        return cls(target.hardware.name, target.memory_bytes, taken(target.platform))

    @property
    def usable_bytes(self) -> int:
        return int(self.default_share * self.device_bytes)

    def fits(self, peak: float) -> bool:
        return peak <= self.usable_bytes

    def fraction(self, peak: int) -> float | None:
        """Of the chip's memory, which JAX would have to take; None where a peak is too much for all of it."""
        found = ceil(100 * peak / self.device_bytes) / 100
        return found if found < 1 else None

    def json_object(self, peak: int) -> RoomJson:
        return RoomJson(self.chip, self.device_bytes, self.usable_bytes, self.fits(peak), self.fraction(peak))

    def sentence(self, peak: int) -> str:
        """`it fits: the peak of 40.4 GB is 63.4 % of 63.77 GB: by default JAX preallocates 75 % of the chip's memory
        (NVIDIA H100 SXM 80 GB, 85.02 GB)`."""
        device = f"{bytes_text(self.device_bytes)} of {self.chip}"
        whole = f"the peak of {bytes_text(peak)} is {share_text(peak / self.device_bytes)} of the {device}"
        if self.default_share == 1:
            return f"{'it fits' if self.fits(peak) else 'it does not fit'}: {whole}"
        share = share_text(peak / self.usable_bytes)
        taken = (
            f"{bytes_text(self.usable_bytes)}: by default JAX preallocates {share_text(self.default_share)} of the "
            f"chip's memory ({self.chip}, {bytes_text(self.device_bytes)})"
        )
        if self.fits(peak):
            return f"it fits: the peak of {bytes_text(peak)} is {share} of {taken}"
        fraction = self.fraction(peak)
        if fraction is None:
            return f"it does not fit: {whole}"
        left = bytes_text(self.device_bytes - peak)
        return (
            f"it does not fit: the peak of {bytes_text(peak)} is {share} of {taken}; it would with "
            f"{FRACTION}={fraction:.2f}, which leaves at most {left} to CUDA and NCCL"
        )


@dataclass(frozen=True)
class RoomJson:
    """Whether a peak has room: `fraction` of the chip's memory is what JAX would have to take for it, null where all of
    it is too little."""

    chip: str
    device_bytes: int
    usable_bytes: int
    fits: bool
    fraction: float | None
