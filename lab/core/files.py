"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from secrets import token_hex
from stat import S_IMODE


def write_whole(path: Path, content: str | bytes) -> None:
    """Replaces a file's content; until all of it is written there stands what stood there, for every reader, however
    many processes write at a time.

    A link stays, and the file that it points to is replaced; an existing file keeps its mode. What is no file, such as
    a pipe, is written into.

    Raises:
      OSError: the file, or its folder, cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    if (path.exists() and not path.is_file()) or Path("/dev") in path.absolute().parents:
        # Standard output and error by their own descriptors, so that what they are given stands in its order.
        own = next((number for number in (1, 2) if os.path.samestat(os.fstat(number), path.stat())), None)
        with open(path if own is None else os.dup(own), "wb") as file:
            file.write(data)
        return
    target = Path(os.path.realpath(path))
    part = target.with_name(f".lab-{token_hex(8)}.part")
    # Refused where something has the name, a link included.
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "wb") as file:
            if target.exists():
                part.chmod(S_IMODE(target.stat().st_mode))
            file.write(data)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
