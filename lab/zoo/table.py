"""Rows of the zoo's tables, found by name."""

import tomllib
from collections.abc import Collection, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from lab.meshes.errors import no_such


@cache
def read(file: str) -> Mapping[str, Any]:
    """A table of this folder."""
    return tomllib.loads((files("lab.zoo") / file).read_text())


def known(kind: str, name: str, names: Collection[str]) -> str:
    """The name.

    Raises:
      UsageError: it is none of `names`; names the closest.
    """
    if name in names:
        return name
    raise no_such(kind, name, names)
