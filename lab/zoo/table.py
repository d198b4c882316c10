"""Rows of the zoo's tables, found by name."""

import difflib
import tomllib
from collections.abc import Collection, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from lab.meshes.errors import UsageError


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
    close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    raise UsageError(
        f"no {kind} {name!r}; " + (f"close are {', '.join(close)}" if close else f"known are {', '.join(names)}")
    )
