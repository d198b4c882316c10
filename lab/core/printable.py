"""Names and strings of a program's text as they may stand on a terminal."""

from __future__ import annotations

import re

# Whatever moves a cursor, rings, hides, or turns the direction of writing.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The same text, control characters but for tabs and line ends spelled out: `\\x1b`."""
    return text if text.isprintable() else _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
