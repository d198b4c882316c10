"""The register of the book for people: its chapters, a formula and its value, what is wrong in it, and what decides its claims."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import Any

import numpy as np

from lab.book.register import (
    CHAPTERS,
    KINDS,
    VERDICTS,
    Formula,
    Part,
    Worked,
    argument_names,
    evaluate,
    load,
    named,
)
from lab.report.settings import parse, unit_of
from lab.report.tables import Column, columns_text, rows_text
from lab.report.units import scaled
from meshes.errors import Unusable

SCHEMA = "sharding-lab/book/1"


@dataclass(frozen=True)
class Page:
    """What a command prints: as text, and as JSON."""

    text: str
    data: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **self.data}


def page(what: str | None, settings: Mapping[str, str], errata: bool, coverage: bool) -> Page:
    """The page for a chapter, an id, or everything.

    Raises:
      Unusable: no such chapter or formula, settings without a formula, or a value that the formula refuses.
    """
    parts = load()
    formulas = _sorted(formula for part in parts for formula in part.formulas)
    by_id = {formula.id: formula for formula in formulas}
    if what in by_id:
        return answer_page(by_id[what], settings) if settings else formula_page(by_id[what])
    if settings:
        raise Unusable("--set goes with the id of a formula, such as lab book ch12.ring --set p=64" if what is None else _unknown(what, by_id))
    if what is not None:
        if what not in CHAPTERS:
            raise Unusable(_unknown(what, by_id))
        formulas = [formula for formula in formulas if formula.chapter == what]
    if errata:
        return errata_page(formulas)
    if coverage:
        return coverage_page(formulas, () if what else parts)
    return chapters_page(formulas) if what is None else chapter_page(formulas)


def chapters_page(formulas: Sequence[Formula]) -> Page:
    """A row a chapter: how many entries there are, of each verdict."""
    rows = [(name, [formula for formula in formulas if formula.chapter == name]) for name in CHAPTERS]
    counted = [{"chapter": name, "about": CHAPTERS[name], "formulas": len(of), **_verdicts(of)} for name, of in rows if of]
    columns = [
        Column(heading, tuple(f"{row[heading]}" for row in counted), is_number=heading not in ("chapter", "about"))
        for heading in ("chapter", "about", "formulas", *VERDICTS)
    ]
    return Page(columns_text(columns), {"chapters": counted})


def chapter_page(formulas: Sequence[Formula]) -> Page:
    """A row a formula."""
    rows = [(formula.id, formula.title, formula.verdict, formula.kind, "yes" if formula.function else "") for formula in formulas]
    return Page(rows_text(("id", "title", "verdict", "decided by", "runs"), rows), {"formulas": [to_json(formula) for formula in formulas]})


def formula_page(formula: Formula) -> Page:
    """All that the register says of one formula, and how to evaluate it."""
    lines = [f"{formula.id}: {formula.title} (chapter {formula.chapter})", *_said(formula), f"evidence  {', '.join(formula.evidence)}"]
    if formula.function:
        lines += ["", f"{formula.function} [{formula.unit or '1'}]", *(f"  {line}" for line in inspect.getdoc(formula.call).splitlines())]
        lines += ["", "arguments", *(f"  {line}" for line in _arguments(formula))]
    if formula.worked:
        lines += ["", "worked numbers", *(f"  {_worked_text(formula, number)}" for number in formula.worked)]
    return Page("\n".join(lines), {"formula": to_json(formula)})


def answer_page(formula: Formula, settings: Mapping[str, str]) -> Page:
    """The formula's value for these settings, with how far it can be trusted."""
    try:
        arguments = {name: parse(name, text) for name, text in named(formula, settings).items()}
        value = evaluate(formula, arguments)
    except ValueError as error:
        raise Unusable(str(error)) from error
    # Defaults too: a time at an assumed MFU of 1 is another answer.
    used = {name: arguments.get(name, default) for name, default in formula.arguments.items()}
    given = ", ".join(f"{name} = {number_text(setting, unit_of(name))}" for name, setting in used.items())
    lines = [f"{number_text(value, formula.unit)}{_days(value, formula.unit)}   {formula.id}, {formula.title} (chapter {formula.chapter}), for {given}"]
    lines += [*_said(formula), f"evidence  {', '.join(formula.evidence)}"]
    return Page("\n".join(lines), {"value": plain(value), "unit": formula.unit, "set": used, "formula": to_json(formula)})


def errata_page(formulas: Iterable[Formula]) -> Page:
    """What is wrong in the book, worst first; statements, which are off by no number, come last."""
    wrong = sorted((formula for formula in formulas if formula.verdict == "wrong"), key=lambda formula: -(formula.severity or 0))
    blocks = [
        "\n".join([f"{_off_by(formula)}{formula.id}: {formula.title}", *(f"  {line}" for line in _said(formula)[:-1])]) for formula in wrong
    ]
    return Page("\n\n".join([*blocks, f"{len(wrong)} entries are wrong"]), {"errata": [to_json(formula) for formula in wrong]})


def coverage_page(formulas: Sequence[Formula], parts: Sequence[Part]) -> Page:
    """How entries are decided: by what, and with which verdict."""
    rows = [(kind, [formula for formula in formulas if formula.kind == kind]) for kind in KINDS] + [("all", formulas)]
    counted = [{"decided by": kind, "entries": len(of), **_verdicts(of)} for kind, of in rows]
    columns = [
        Column(heading, tuple(f"{row[heading]}" for row in counted), is_number=heading != "decided by")
        for heading in ("decided by", "entries", *VERDICTS)
    ]
    left_out = [{"id": entry.id, "reason": entry.reason} for part in parts for entry in part.left_out]
    worked = sum(len(formula.worked) for formula in formulas)
    runs = len({formula.function for formula in formulas if formula.function})
    said = f"{runs} functions, {worked} worked numbers, {len(left_out)} entries of the catalogue left out"
    lines = [columns_text(columns), "", said, *(f"  {entry['id']}: {entry['reason']}" for entry in left_out)]
    return Page("\n".join(lines), {"coverage": counted, "functions": runs, "worked": worked, "left_out": left_out})


def to_json(formula: Formula) -> dict[str, Any]:
    worked = [{"set": number.arguments, "gives": number.gives, "prints": number.prints, "is": number.says or None} for number in formula.worked]
    told = ("id", "chapter", "title", "prints", "right", "verdict", "reason", "disputed", "function", "unit", "severity", "evidence", "kind", "catalogue")
    arguments = [{"name": name, "unit": unit_of(name), "symbols": _letters(formula, name)} for name in formula.arguments]
    return {**{name: getattr(formula, name) for name in told}, "arguments": arguments, "worked": worked}


def number_text(value: Any, unit: str) -> str:
    """Bytes and rates with a prefix, the rest to six digits."""
    value = plain(value)
    if isinstance(value, (bool, str)) or not isinstance(value, (int, float)):
        return f"{value} {unit}".rstrip()
    if unit.startswith(("B", "FLOP")) and abs(value) >= 1:
        return scaled(value, unit)
    return f"{value:,} {unit}".rstrip() if isinstance(value, int) else f"{value:.6g} {unit}".rstrip()


def _days(value: Any, unit: str) -> str:
    """` (10.8 days)` after seconds of a day or more."""
    value = plain(value)
    return f" ({value / 86400:,.3g} days)" if unit == "s" and isinstance(value, (int, float)) and value >= 86400 else ""


def plain(value: Any) -> Any:
    """As JSON has it: whole fractions are integers, others floats, arrays and tuples lists."""
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _said(formula: Formula) -> list[str]:
    told = {"prints": formula.prints, "right": formula.right, "reason": formula.reason, "catalogue": formula.catalogue}
    disputed = f" ({', '.join(formula.disputed)})" if formula.disputed else ""
    lines = [f"{name:<9} {text}" for name, text in told.items() if text]
    return [*lines, f"verdict   {formula.verdict}{disputed}; {_decided(formula)}"]


def _decided(formula: Formula) -> str:
    return {"open": "nothing decides it yet", "calculated": "calculated only"}.get(formula.kind, f"decided by: {formula.kind}")


def _off_by(formula: Formula) -> str:
    if formula.severity is None:
        return ""
    return f"{formula.severity:,.0f} times: " if formula.severity >= 100 else f"{formula.severity:.3g} times: "


def _arguments(formula: Formula) -> list[str]:
    units = [unit_of(name) for name in formula.arguments]
    defaults = ["" if default is inspect.Parameter.empty else f" = {default}" for default in formula.arguments.values()]
    return [f"{name}{default}{f'  [{unit}]' if unit else ''}" for name, default, unit in zip(argument_names(formula), defaults, units, strict=True)]


def _letters(formula: Formula, argument: str) -> list[str]:
    return [letter for letter, name in formula.symbols.items() if name == argument]


def _worked_text(formula: Formula, number: Worked) -> str:
    given = ", ".join(f"{name} = {number_text(value, unit_of(name))}" for name, value in number.arguments.items())
    prints = f" (the book: {number_text(number.prints, '')})" if number.prints is not None else ""
    return f"{number_text(number.gives, '')}{prints} for {given}{f': {number.says}' if number.says else ''}"


def _verdicts(formulas: Iterable[Formula]) -> dict[str, int]:
    counts = Counter(formula.verdict for formula in formulas)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def _sorted(formulas: Iterable[Formula]) -> list[Formula]:
    order = list(CHAPTERS)
    return sorted(formulas, key=lambda formula: order.index(formula.chapter))


def _unknown(what: str, ids: Iterable[str]) -> str:
    ids = list(ids)
    close = get_close_matches(what, [*ids, *CHAPTERS], 3) or [id for id in ids if what.lower() in id.lower()][:3]
    return f"{what}: found no such chapter or formula, expected {' or '.join(close)}" if close else f"{what}: no such chapter or formula; see lab book"
