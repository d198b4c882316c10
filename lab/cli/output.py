"""What commands print, and write into files."""

from __future__ import annotations

import sys
from pathlib import Path

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


def write(path: Path, text: str) -> None:
    """All of it, or nothing: until then there stands what stood there. (click's atomic files take the place of it after
    an error, too.)"""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")  # Such as /dev/stdout.
        return
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
