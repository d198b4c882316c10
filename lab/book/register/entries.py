"""An entry of the register, and how it is read from its table."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib import import_module
from typing import Any

from lab.book.register.chapters import CHAPTERS

VERDICTS = ("right", "wrong", "depends")
KINDS = ("compiled", "numerics", "measured", "published", "calculated", "open")
_WITHOUT_FILES = ("published", "calculated", "open")


@dataclass(frozen=True)
class Worked:
    """A worked number: the arguments, the right value, and what the book prints where it differs.

    `times` scales the function's result before it is compared; `says` tells what the number is.
    """

    arguments: Mapping[str, Any]
    gives: Any
    rel: float = 1e-3
    prints: Any = None
    times: float = 1
    says: str = ""


@dataclass(frozen=True)
class Formula:
    """An entry. `function` is `module:name`, or "" for a statement; `symbols` maps the book's letters to its arguments.

    `severity` is how many times a wrong printed value is off; `fails` is true where what is printed does not work at
    all: it deadlocks, diverges, or gives other results. `evidence` names files of the project that decide the entry,
    each with `::test` or `::claim` where it holds many; or it is ("published",), the source that `reason` names,
    ("calculated",), or ("open",). `sweeps` is false for a schedule or a search, which take numbers only. `catalogue` is
    what the catalogue says where it is wrong too.
    """

    id: str
    chapter: str
    title: str
    prints: str
    verdict: str
    kind: str
    evidence: tuple[str, ...]
    right: str = ""
    reason: str = ""
    disputed: tuple[str, ...] = ()
    function: str = ""
    symbols: Mapping[str, str] = field(default_factory=dict)
    unit: str = ""
    worked: tuple[Worked, ...] = ()
    severity: float | None = None
    fails: bool = False
    catalogue: str = ""
    sweeps: bool = True

    @cached_property
    def call(self) -> Callable[..., Any]:
        """Raises ValueError where there is no such function."""
        module, _, name = self.function.partition(":")
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"{self.id}: no function {self.function!r}: {error}") from error

    @cached_property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of the function and their defaults; `inspect.Parameter.empty` where one must be given."""
        return (
            {name: parameter.default for name, parameter in inspect.signature(self.call).parameters.items()}
            if self.function
            else {}
        )


@dataclass(frozen=True)
class LeftOut:
    """An entry of the catalogue that the register does not hold, and why."""

    id: str
    reason: str


def read_entry(entry: Mapping[str, Any]) -> Formula:
    """One entry of a table; raises ValueError as `load` does."""
    told = entry.get("id", "an entry without id")
    worked = tuple(_worked(number, told) for number in entry.get("worked", ()))
    lists = {key: tuple(entry.get(key, ())) for key in ("evidence", "disputed")}
    formula = record(Formula, {**entry, **lists, "worked": worked, "symbols": entry.get("symbols", {})}, told)
    if problem := _problem(formula):
        raise ValueError(f"{told}: {problem}")
    return formula


def _worked(number: Mapping[str, Any], entry: str) -> Worked:
    renamed = {{"set": "arguments", "is": "says"}.get(key, key): value for key, value in number.items()}
    return record(Worked, renamed, f"{entry}, worked")


def record(kind: type, entry: Mapping[str, Any], told: str) -> Any:
    """A dataclass from a table; `told` names it in the ValueError for an unknown key or a missing one."""
    known = {field.name for field in fields(kind)}
    if unknown := set(entry) - known:
        raise ValueError(f"{told}: unknown {', '.join(sorted(unknown))}; expected {', '.join(sorted(known))}")
    try:
        return kind(**entry)
    except TypeError as error:
        raise ValueError(f"{told}: {error}") from error


def _problem(formula: Formula) -> str | None:
    """What is wrong with an entry, in a few words."""
    strangers = {name for number in formula.worked for name in number.arguments} | set(formula.symbols.values())
    strangers -= set(formula.arguments)
    if formula.verdict not in VERDICTS or formula.kind not in KINDS:
        return f"verdict {formula.verdict!r} and kind {formula.kind!r}; expected one of {VERDICTS} and one of {KINDS}"
    if formula.chapter not in CHAPTERS:
        return f"chapter {formula.chapter!r}; expected one of {', '.join(CHAPTERS)}"
    without_files = not formula.evidence or {formula.kind, *formula.evidence} & set(_WITHOUT_FILES)
    if without_files and formula.evidence != (formula.kind,):
        return (
            f"kind {formula.kind!r} with evidence {formula.evidence}; expected files of the project, or one of "
            f"{_WITHOUT_FILES} as both"
        )
    if formula.kind in ("published", "open") and not formula.reason:
        return f"{formula.kind}, but without the reason"
    if formula.verdict == "wrong" and not (formula.reason and formula.right):
        return "wrong, but without reason or without what is right"
    if formula.severity is not None and (formula.verdict == "right" or formula.severity < 1):
        return (
            f"severity {formula.severity} with verdict {formula.verdict!r}; expected 1 or more, and a printed "
            "value that is off"
        )
    if formula.fails and formula.verdict != "wrong":
        return f"fails with verdict {formula.verdict!r}; expected wrong"
    if strangers:
        return (
            f"{', '.join(sorted(strangers))} is no argument of {formula.function or 'a statement'}; expected "
            f"{', '.join(formula.arguments)}"
        )
    return None
