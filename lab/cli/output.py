"""What commands print."""

from __future__ import annotations

import sys

from lab.core.codec import to_text
from lab.report.fitted import safe, sentences, terminal_width

CLOSED_PIPE = 141


def print_json(value: object) -> None:
    _print(to_text(value))


def print_text(text: str) -> None:
    """Prints tables and sentences, fitted to the terminal; what a program's names may hold moves no cursor."""
    _print(sentences(safe(text), terminal_width()))


def _print(text: str) -> None:
    """All at once; a reader that went away, such as `head`, is no error."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        sys.exit(CLOSED_PIPE)
