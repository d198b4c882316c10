"""Files of programs that JAX saved, told by their content. Imports no JAX."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from enum import StrEnum
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.meshes.errors import UsageError, one_line

if TYPE_CHECKING:
    from jax.stages import Compiled

_STABLEHLO = b"ML\xefR\rStableHLO"
_PICKLE, _EXECUTABLE = b"\x80", b"UnloadedMeshExecutable"


class Saved(StrEnum):
    """What gave the file."""

    EXPORT = "jax.export"
    EXECUTABLE = "jax.experimental.serialize_executable"


def saved_as(source: str) -> Saved | None:
    """None of a text, and of what is no file."""
    path = Path(source)
    if not path.is_file() or not path.stat().st_size:
        return None
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        if content.find(_STABLEHLO) > 0:  # A module that stands alone begins with it.
            return Saved.EXPORT
        return Saved.EXECUTABLE if content[:1] == _PICKLE and content.find(_EXECUTABLE) > 0 else None


def read_bytes(source: str) -> bytes:
    """Raises:
    UsageError: it cannot be read.
    """
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise UsageError(f"{source}: cannot be read ({error.strerror})") from None


def executable(source: str, devices: Sequence[Any]) -> Compiled:
    """What `pickle.dump(serialize(compiled), file)` saved, on the devices that it was compiled for. As any pickle, it
    may run code.

    Raises:
      UsageError: it holds something else, or XLA does not load it there.
    """
    from jax.experimental.serialize_executable import deserialize_and_load

    try:
        found: Any = pickle.loads(read_bytes(source))
    except UsageError:
        raise
    except Exception as error:
        found = f"{type(error).__name__}: {one_line(error)}"
    if not (isinstance(found, tuple | list) and len(found) == 3 and isinstance(found[0], bytes)):
        said = found if isinstance(found, str) else f"found {type(found).__name__}"
        raise UsageError(f"{source}: {said}; expected what pickle.dump(serialize(compiled), file) writes")
    try:
        content, given, returned = found
        loaded: Compiled = deserialize_and_load(content, given, returned, devices[0].client, devices)
        return loaded
    except Exception as error:
        raise UsageError(
            f"{source}: XLA does not load it for {len(devices)} devices ({type(error).__name__}: {one_line(error)}); "
            "expected the release of JAX, the kind of device and their number that it was compiled for"
        ) from error
