"""The compile-only plugins of JAX: whether they are installed, and how to install them. No JAX here."""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

from lab.meshes.platforms import Platform

_PACKAGES = {Platform.GPU: ("jax_cuda13_plugin", "jax_cuda12_plugin"), Platform.TPU: ("libtpu",)}


def installed(platform: Platform) -> bool:
    """Whether this Python can compile for `platform` without owning one of its devices; CPUs need no plugin."""
    has_plugin = platform not in _PACKAGES or any(find_spec(package) for package in _PACKAGES[platform])
    return has_plugin and (platform != Platform.GPU or ptxas() is not None)


def ptxas() -> Path | None:
    """NVIDIA's assembler, without which XLA compiles for no GPU: of the gpu extra, or of a CUDA that is there."""
    wheels = find_spec("nvidia")
    folders = [
        path
        for folder in (wheels and wheels.submodule_search_locations) or ()
        for path in sorted(Path(folder).glob("*/bin"))
    ]
    folders += [Path(root) / "bin" for root in (os.environ.get("CUDA_ROOT"), "/usr/local/cuda", "/opt/cuda") if root]
    on_path = shutil.which("ptxas")
    return next(
        (folder / "ptxas" for folder in folders if (folder / "ptxas").exists()), Path(on_path) if on_path else None
    )


def install_command(platform: Platform) -> str:
    return f"pip install 'sharding-lab[{platform}]'"
