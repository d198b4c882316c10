"""Kinds of findings and compiler behaviours, a page each, for people: what it is, what it costs, what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final, Literal

from msgspec import UNSET, UnsetType

from lab.diagnosis import KINDS
from lab.diagnosis.table import Kind
from lab.meshes.errors import UsageError, no_such
from lab.meshes.platforms import Platform
from lab.report.behaviours import COUNTS, MEANING, by_number, notes_by_number
from lab.report.tables import rows_text
from lab.settle import Behaviour, Certainty, CompilerNote

SCHEMA: Final = "sharding-lab/explanation/1"
COMPILERS = {Platform.CPU: "CPU", Platform.GPU: "GPU", Platform.TPU: "TPU"}


@dataclass(frozen=True)
class FindingKindJson:
    name: str
    what: str


@dataclass(frozen=True)
class BehaviourJson:
    """`rule` is how a rule of the lab settles with it, "predicts" or "recognises"; null of a note, by which nothing is
    decided."""

    id: str
    effect: str
    rule: str | None


@dataclass(frozen=True)
class ExplanationJson:
    """What `lab explain --json` prints: all kinds of findings and all behaviours; or a kind, from `name` on; or a
    behaviour, from `id` on."""

    schema: Literal["sharding-lab/explanation/1"]
    findings: tuple[FindingKindJson, ...] | UnsetType = UNSET
    behaviours: tuple[BehaviourJson, ...] | UnsetType = UNSET
    name: str | UnsetType = UNSET
    what: str | UnsetType = UNSET
    costs: str | UnsetType = UNSET
    cure: str | UnsetType = UNSET
    mesh: str | UnsetType = UNSET
    target: str | UnsetType = UNSET
    example: str | UnsetType = UNSET
    command: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    platform: Platform | UnsetType | None = UNSET
    certainty: Certainty | UnsetType = UNSET
    effect: str | UnsetType = UNSET
    when: str | UnsetType = UNSET
    remedy: str | UnsetType = UNSET
    rule: str | UnsetType | None = UNSET


def find(name: str) -> Kind | CompilerNote:
    """The kind of finding, the behaviour or the note of a name.

    Raises:
      UsageError: there is neither.
    """
    known: dict[str, Kind | CompilerNote] = {kind.name: kind for kind in KINDS} | {b.id: b for b in _behaviours()}
    if name in known:
        return known[name]
    if name.upper() in known:
        return known[name.upper()]
    if _was_withdrawn(name.upper(), known):
        raise UsageError(f"{name.upper()} was withdrawn; lab explain lists the behaviours that are known")
    if re.match(r"ch\d+\w*\.", name.lower()):
        raise UsageError(f"{name} is of the book; lab book {name.lower()} tells what it claims")
    raise no_such("kind of finding or compiler behaviour", name, known, shown_by="lab explain")


def _was_withdrawn(id: str, known: Iterable[str]) -> bool:
    """A number below a later one of the same compiler; none is given again."""
    numbers = [int(other[1:]) for other in known if other[0] == id[:1] and other[1:].isdecimal()]
    return id[1:].isdecimal() and 0 < int(id[1:]) <= max(numbers, default=0)


def _behaviours() -> list[CompilerNote]:
    return [*by_number(), *notes_by_number()]


def _compilers(entry: CompilerNote) -> str:
    """`any`, `TPU`, or `GPU, TPU`."""
    if entry.platform:
        return COMPILERS[entry.platform]
    return (
        ", ".join(name for platform, name in COMPILERS.items() if platform != entry.not_on) if entry.not_on else "any"
    )


def listed_text() -> str:
    """Every kind of finding, every behaviour and every note, a line each."""

    def rows(entries: Sequence[CompilerNote]) -> str:
        return rows_text(("id", "compiler", "effect"), [(b.id, _compilers(b), b.effect) for b in entries])

    return "\n\n".join(
        (
            "Findings of lab inspect:",
            rows_text(("finding", "what it is"), [(kind.name, kind.what) for kind in KINDS]),
            "Compiler behaviours that explain a ledger in lab run:",
            rows(by_number()),
            "Notes on compilers, by which no verdict of lab run is decided:",
            rows(notes_by_number()),
        )
    )


def listed() -> ExplanationJson:
    return ExplanationJson(
        SCHEMA,
        findings=tuple(FindingKindJson(kind.name, kind.what) for kind in KINDS),
        behaviours=tuple(BehaviourJson(b.id, b.effect, _rule(b)) for b in _behaviours()),
    )


def text(entry: Kind | CompilerNote) -> str:
    return _kind_text(entry) if isinstance(entry, Kind) else _behaviour_text(entry)


def json_object(entry: Kind | CompilerNote) -> ExplanationJson:
    if isinstance(entry, Kind):
        return ExplanationJson(
            SCHEMA,
            name=entry.name,
            what=entry.what,
            costs=entry.costs,
            cure=entry.cure,
            mesh=entry.mesh,
            target=entry.target,
            example=example(entry),
            command=command(entry),
        )
    return ExplanationJson(
        SCHEMA,
        id=entry.id,
        platform=entry.platform,
        certainty=entry.certainty,
        effect=entry.effect,
        when=entry.when,
        remedy=entry.remedy,
        rule=_rule(entry),
    )


def example(kind: Kind) -> str:
    """The smallest program with such a finding, as a file of the lab."""
    return (files("lab.diagnosis.examples") / f"{kind.name}.py").read_text()


def command(kind: Kind) -> str:
    """What compiles and inspects that program."""
    target = f" --target {kind.target}" if kind.target else ""
    return f"lab inspect lab.diagnosis.examples.{kind.name}:build --mesh {kind.mesh}{target}"


def _kind_text(kind: Kind) -> str:
    program = "\n".join(f"    {line}".rstrip() for line in example(kind).splitlines())
    lines = f"{kind.name}: {kind.what}", f"What it costs: {kind.costs}", f"What to do: {kind.cure}"
    shown = f"The smallest program that has it:\n\n{program}", f"Try it: {command(kind)}"
    return "\n\n".join((*lines, *shown))


def _behaviour_text(behaviour: CompilerNote) -> str:
    rules = {
        "predicts": "predicts what the compiler emits",
        "recognises": "recognises it in the compiled text",
        None: "none; this is a note, by which no verdict of lab run is decided",
    }
    counts = f"; {COUNTS[behaviour.certainty]}" if _rule(behaviour) else ""
    lines = (
        f"{behaviour.id}: {behaviour.effect}",
        f"Compiler: {_compilers(behaviour)}",
        f"When: {behaviour.when}",
        f"Certainty: {behaviour.certainty}: {MEANING[behaviour.certainty]}{counts}",
        f"Rule: {rules[_rule(behaviour)]}",
        *[f"What to do: {behaviour.remedy}"] * bool(behaviour.remedy),
    )
    return "\n\n".join(lines)


def _rule(entry: CompilerNote) -> str | None:
    if not isinstance(entry, Behaviour):
        return None
    return "predicts" if entry.rewrite else "recognises"
