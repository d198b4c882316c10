"""What chips and links can do: the table `hardware.toml`, read and checked."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from meshes.errors import Unusable


@dataclass(frozen=True)
class Chip:
    """One accelerator."""

    name: str
    platform: str
    devices_per_chip: int
    plugin_name: str
    plugin_options: dict[str, str]


def chip_names(platform: str) -> tuple[str, ...]:
    """The known chips of a platform, in the table's order."""
    return tuple(name for name, known in _table().items() if known.platform == platform)


def chip(name: str) -> Chip:
    """One chip of the table.

    Raises:
      Unusable: the table lacks it.
    """
    if name not in _table():
        raise Unusable(f"unknown chip {name!r}; known are {', '.join(_table())}")
    return _table()[name]


@cache
def _table() -> dict[str, Chip]:
    rows = tomllib.loads((files("meshes") / "hardware.toml").read_text())
    return {name: Chip(name, **({"devices_per_chip": 1, "plugin_name": name, "plugin_options": {}} | row)) for name, row in rows.items()}
