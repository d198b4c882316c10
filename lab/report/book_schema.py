"""What `lab book --json` prints: `sharding-lab/book/1`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict

import msgspec
from msgspec import UNSET, UnsetType

SCHEMA: Final = "sharding-lab/book/1"


@dataclass(frozen=True)
class ArgumentJson:
    """An argument of a formula's function, and the book's letters for it."""

    name: str
    unit: str
    symbols: tuple[str, ...]


class WorkedJson(msgspec.Struct, frozen=True, rename={"is_": "is"}):
    """A worked number: arguments, the right value, what the book prints where it differs, and what the number is. A
    struct, since no field of a dataclass is called `is`."""

    set: Mapping[str, Any]
    gives: Any
    prints: Any
    is_: str | None


@dataclass(frozen=True)
class FormulaJson:
    id: str
    chapter: str
    title: str
    prints: str
    right: str
    verdict: str
    reason: str
    disputed: tuple[str, ...]
    function: str
    unit: str
    severity: float | None
    fails: bool
    evidence: tuple[str, ...]
    kind: str
    catalogue: str
    arguments: tuple[ArgumentJson, ...]
    worked: tuple[WorkedJson, ...]


@dataclass(frozen=True)
class ChapterJson:
    """How many formulas a chapter has, of each verdict."""

    chapter: str
    about: str
    formulas: int
    right: int
    wrong: int
    depends: int


CoverageJson = TypedDict(
    "CoverageJson", {"decided by": str, "entries": int, "right": int, "wrong": int, "depends": int}
)


@dataclass(frozen=True)
class OpenJson:
    id: str
    title: str
    reason: str


@dataclass(frozen=True)
class LeftOutJson:
    id: str
    reason: str


@dataclass(frozen=True)
class AnswerJson:
    """A formula's value for these arguments."""

    set: Mapping[str, Any]
    value: Any


@dataclass(frozen=True)
class BookJson:
    """What `lab book --json` prints: chapters; or formulas; or a formula, with its value or a sweep where something is
    set; or errata; or the coverage."""

    schema: Literal["sharding-lab/book/1"]
    chapters: tuple[ChapterJson, ...] | UnsetType = UNSET
    formulas: tuple[FormulaJson, ...] | UnsetType = UNSET
    set: Mapping[str, Any] | UnsetType = UNSET
    value: Any = UNSET
    sweep: tuple[AnswerJson, ...] | UnsetType = UNSET
    unit: str | UnsetType = UNSET
    formula: FormulaJson | UnsetType = UNSET
    errata: tuple[FormulaJson, ...] | UnsetType = UNSET
    coverage: tuple[CoverageJson, ...] | UnsetType = UNSET
    functions: int | UnsetType = UNSET
    worked: int | UnsetType = UNSET
    open: tuple[OpenJson, ...] | UnsetType = UNSET
    left_out: tuple[LeftOutJson, ...] | UnsetType = UNSET
