"""The compile-only plugins of JAX: whether they are installed, and how to install them. No JAX here."""

from importlib.util import find_spec

_PACKAGES = {"gpu": ("jax_cuda13_plugin", "jax_cuda12_plugin"), "tpu": ("libtpu",)}


def installed(platform: str) -> bool:
    """Whether this Python can compile for `platform` without owning one of its devices; CPUs need no plugin."""
    return platform not in _PACKAGES or any(find_spec(package) for package in _PACKAGES[platform])


def install_command(platform: str) -> str:
    return f"pip install 'sharding-lab[{platform}]'"
