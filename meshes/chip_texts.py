"""Texts that describe a GPU to XLA (`GpuTargetConfigProto`), one file a chip in `chips/`.

The first line of a file tells its origin. A line that ends in `# since jaxlib 0.11` holds a field that an older XLA
refuses.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from importlib.resources import files

_TEXTS = files("lab.meshes") / "chips"


def chip_text(name: str) -> str:
    """The text of a chip, without the fields that the installed XLA does not know."""
    return known_fields(_read(name), version("jaxlib"))


def origin(name: str) -> str:
    """Where the text of a chip comes from."""
    return _read(name).partition("\n")[0].removeprefix("# origin: ")


def known_fields(text: str, jaxlib: str) -> str:
    """Drops the lines that say they are newer than this version of jaxlib."""
    return "\n".join(line for line in text.splitlines() if _since(line) <= _release(jaxlib))


def _read(name: str) -> str:
    return (_TEXTS / f"{name}.pbtxt").read_text()


def _since(line: str) -> tuple[int, ...]:
    newer = re.search(r"# since jaxlib ([0-9.]+)$", line)
    return _release(newer[1]) if newer else ()


def _release(number: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", number))
