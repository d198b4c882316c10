"""Payloads to time: `1KiB..1GiB`, in steps of four."""

from __future__ import annotations

import re

from lab.meshes.errors import UsageError

STEP = 4
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_sizes(text: str) -> tuple[int, ...]:
    """`1KiB..16KiB` to (1024, 4096, 16384); a single size to itself.

    Raises:
      UsageError: another form, or a last size below the first.
    """
    first, dots, last = text.partition("..")
    least, most = _bytes(first, text), _bytes(last if dots else first, text)
    if not 0 < least <= most:
        raise UsageError(
            f"--sizes {text}: found {least:,} B to {most:,} B, expected a first size above zero and a last one of "
            "at least that"
        )
    sizes = [least]
    while sizes[-1] * STEP <= most:
        sizes.append(sizes[-1] * STEP)
    return tuple(sizes)


def size_text(size: int) -> str:
    """`16 KiB`; in bytes where it is no whole number of a larger unit."""
    unit = next(name for name in ("GiB", "MiB", "KiB", "B") if size % _UNITS[name] == 0)
    return f"{size // _UNITS[unit]:,} {unit}"


def _bytes(size: str, text: str) -> int:
    found = re.fullmatch(rf"\s*(\d{{1,15}})\s*({'|'.join(_UNITS)})?\s*", size)
    if not found:
        raise UsageError(
            f"--sizes {text}: expected a size or FROM..TO, such as 1KiB..1GiB; units are {', '.join(_UNITS)}"
        )
    return int(found[1]) * _UNITS[found[2] or "B"]
