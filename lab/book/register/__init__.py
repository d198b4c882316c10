"""The register: every formula of the book with what it prints, what is right, and what decides it.

One table a part (`part1.toml` to `part8.toml`, `second.toml` for the second source), one entry a formula; `Formula`
says what an entry holds.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from lab.book.register.chapters import CHAPTERS
from lab.book.register.entries import (
    KINDS,
    VERDICTS,
    Formula,
    LeftOut,
    Worked,
    read_entry,
    record,
)
from lab.book.register.evaluation import argument_names, evaluate, named

__all__ = [
    "CHAPTERS",
    "KINDS",
    "VERDICTS",
    "Formula",
    "LeftOut",
    "Part",
    "Worked",
    "argument_names",
    "evaluate",
    "load",
    "load_part",
    "named",
    "part_names",
    "read_entry",
]


@dataclass(frozen=True)
class Part:
    """One table."""

    name: str
    formulas: tuple[Formula, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def ids(self) -> list[str]:
        return [*(formula.id for formula in self.formulas), *(entry.id for entry in self.left_out)]


def part_names() -> list[str]:
    """Every table that there is, in the book's order, the second source last."""
    return sorted(path.name.removesuffix(".toml") for path in files(__name__).iterdir() if path.name.endswith(".toml"))


def load() -> tuple[Part, ...]:
    """All tables.

    Raises:
      ValueError: an unknown key, a missing one, a verdict or kind that there is not, an id twice, a function that does
        not exist, a symbol or a worked argument that its function does not take.
    """
    parts = tuple(load_part(name) for name in part_names())
    ids = Counter(id for part in parts for id in part.ids)
    if doubled := [id for id, times in ids.items() if times > 1]:
        raise ValueError(f"{', '.join(doubled)}: in the register twice")
    return parts


@cache
def load_part(name: str) -> Part:
    """One table, validated."""
    try:
        return read_part(name, (files(__name__) / f"{name}.toml").read_text())
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{name}.toml: {error}") from error


def read_part(name: str, text: str) -> Part:
    """One table of that name."""
    table = tomllib.loads(text)
    formulas = tuple(read_entry(entry) for entry in table.pop("formula", ()))
    left_out = tuple(record(LeftOut, entry, entry.get("id", "?")) for entry in table.pop("left_out", ()))
    if table:
        raise ValueError(f"unknown {', '.join(table)}; expected [[formula]] and [[left_out]]")
    return Part(name, formulas, left_out)
