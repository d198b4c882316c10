"""Files of JSON and TOML that a person names. Whatever such a file holds, an error is one line."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any

from lab.meshes.errors import UsageError, one_line


def read_json(path: Path, expected: str) -> Any:
    """What a file of JSON holds.

    Args:
      expected: what the file should be and how it is made; ends the line of an error.
    Raises:
      UsageError: no such file, or no JSON.
    """
    return _read(path, "JSON", _finite_json, expected)


def read_toml(path: Path, expected: str) -> dict[str, Any]:
    """What a file of TOML holds; see `read_json`."""
    found: dict[str, Any] = _read(path, "TOML", tomllib.loads, expected)
    return found


def _finite_json(text: str) -> Any:
    return json.loads(text, parse_float=_finite, parse_constant=_finite)


def _finite(number: str) -> float:
    if not isfinite(found := float(number)):
        raise ValueError(f"found the number {number}, expected a finite one")
    return found


def _read(path: Path, language: str, parse: Callable[[str], Any], expected: str) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; {expected}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); {expected}") from None
    except RecursionError:
        raise UsageError(f"{path}: not {language} (nested too deeply); {expected}") from None
    except ValueError as error:
        raise UsageError(f"{path}: not {language} ({one_line(error)}); {expected}") from None
