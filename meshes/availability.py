"""What this machine can compile for. Nothing is compiled and JAX is not imported: an answer takes milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version

from lab.meshes import plugins
from lab.meshes.chip_texts import origin
from lab.meshes.hardware import Chip, Pod, chip, chip_names
from lab.meshes.platforms import Platform

APPROXIMATE = "approximate: "
"""How the origin of a chip's text begins that was not dumped on such a chip."""


@dataclass(frozen=True)
class Available:
    """One line of `lab targets`.

    Attributes:
      target: an example, as `parse_target` reads it.
      name: the chip, for people.
      can_compile: whether the plugin is installed.
      how: what stands for the hardware when there is none.
      approximate: the text of the chip was not dumped on hardware; memory may be some per cent off.
      install: the command that makes it available, None where it is.
    """

    target: str
    platform: Platform
    chip: str | None
    name: str
    can_compile: bool
    how: str
    approximate: bool = False
    install: str | None = None


def availability() -> tuple[Available, ...]:
    """Every platform and chip that the lab knows."""
    return (
        Available("cpu:8", Platform.CPU, None, "fake CPU devices", True, "compiled by this process"),
        *_chips(Platform.GPU),
        *_chips(Platform.TPU),
        Available("attached", Platform.ATTACHED, None, "the devices of this process", True, "compiled by this process"),
    )


def _chips(platform: Platform) -> Iterator[Available]:
    ready = plugins.installed(platform)
    for key in chip_names(platform):
        pod = chip(key).pod
        approximate = pod is None and origin(key).startswith(APPROXIMATE)
        how = f"{_libtpu()}; {_slices(pod)}" if pod else _described(key)
        yield Available(
            target=_example(chip(key)),
            platform=platform,
            chip=key,
            name=chip(key).name,
            can_compile=ready,
            how=how,
            approximate=approximate,
            install=None if ready else plugins.install_command(platform),
        )


def _described(key: str) -> str:
    """Where XLA's description of a GPU comes from."""
    source = origin(key)
    return f"XLA's description of the chip{' is ' if source.startswith(APPROXIMATE) else ', '}{source}"


def _example(known: Chip) -> str:
    size = "x".join("224"[-len(known.pod.block) :]) if known.pod else "2x8"
    return f"{known.platform}:{known.key}:{size}"


def _slices(pod: Pod) -> str:
    block = "x".join(map(str, pod.block))
    return (
        f"slices inside a {block} cube or of full cubes, {pod.blocks} cubes per pod"
        if pod.blocks > 1
        else f"slices up to {block}"
    )


def _libtpu() -> str:
    return f"libtpu {version('libtpu')}" if plugins.installed(Platform.TPU) else "libtpu"
