"""Compiled texts in files, plain or gzipped, in pipes too; none is read without a limit."""

from __future__ import annotations

import ast
import codecs
import gzip
import os
import zlib
from pathlib import Path
from typing import BinaryIO, cast

from lab.core.units import bytes_text
from lab.meshes.errors import UsageError

LIMIT = "LAB_MAX_TEXT_MB"
_DEFAULT_MB = 512
"""A million instructions are some 100 MB, and reading a text takes memory for up to ten of its size."""
_BINARY_IN = 1 << 16
"""A text has no zero among its first bytes."""
_GZIP = b"\x1f\x8b"
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_EXPECTED = "expected the text of a compiled program, as compiled.as_text() returns it"


def read_text_file(path: Path) -> str:
    """The text in a file; one that Windows wrote, too, with its byte-order mark.

    Raises:
      UsageError: no such file, no text, or more than the limit.
    """
    if path.suffix == ".py":
        functions = functions_of(path)
        has = f" (it has {', '.join(functions)})" if functions else ""
        raise UsageError(
            f"{path} is a Python program; to follow it as it is, give --target alone, such as --target gpu:h100:1x8, "
            f"without --mesh; or name a function that builds the step for a mesh: {path}:build{has}"
        )
    if path.suffix == ".json":
        raise UsageError(f"{path}: expected a compiled text; what lab inspect --json saved is read by lab diff")
    limit = _limit()
    try:
        with path.open("rb") as file:
            is_zipped = path.suffix == ".gz" or file.peek(len(_GZIP)).startswith(_GZIP)  # A pipe has no name.
            raw = _read(cast(BinaryIO, gzip.GzipFile(fileobj=file)) if is_zipped else file, path, limit)
        text = raw.decode("utf-16" if raw.startswith(_WIDE) else "utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: binary file, {_EXPECTED}") from None
    except FileNotFoundError:
        raise UsageError(
            f"{path}: no such file; expected a compiled text, the folder of an XLA dump, or file.py:build"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: cannot be read ({error}); expected a compiled text, plain or gzipped") from None
    if not text.strip():
        raise UsageError(f"{path}: empty file, {_EXPECTED}")
    return text


def _read(file: BinaryIO, path: Path, limit: int) -> bytes:
    begin = file.read(min(_BINARY_IN, limit + 1))
    if b"\0" in begin and not begin.startswith(_WIDE):
        raise UsageError(f"{path}: binary file, {_EXPECTED}")
    raw = begin + file.read(limit + 1 - len(begin))
    if len(raw) > limit:
        raise UsageError(
            f"{path}: more than {bytes_text(limit)} of text; for larger ones set {LIMIT} (now {limit // 10**6})"
        )
    return raw


def _limit() -> int:
    """Bytes."""
    given = os.environ.get(LIMIT, str(_DEFAULT_MB))
    if not (given.isdecimal() and 0 < len(given) < 10 and int(given)):
        raise UsageError(f"{LIMIT}={given}: expected a number of MB, such as {_DEFAULT_MB}")
    return int(given) * 10**6


def functions_of(path: Path) -> list[str]:
    """Names of the functions that a program defines; it is not run."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []
    return [each.name for each in body if isinstance(each, ast.FunctionDef)]
