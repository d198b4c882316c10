"""The register of the book for people: its chapters, a formula and its value, what is wrong in it, and what decides its
claims."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, cast

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
from lab.core.known import known
from lab.core.units import scaled
from lab.meshes.errors import UsageError, no_such
from lab.report.book_schema import (
    SCHEMA,
    AnswerJson,
    ArgumentJson,
    BookJson,
    ChapterJson,
    CoverageJson,
    FormulaJson,
    LeftOutJson,
    OpenJson,
    WorkedJson,
)
from lab.report.fitted import Column
from lab.report.settings import parse, swept, unit_of
from lab.report.tables import columns_text, rows_text

LONGER = {"days": 86400, "h": 3600, "min": 60}


_SAME = tuple(field.name for field in fields(FormulaJson) if field.name not in ("arguments", "worked"))
"""What a formula and its JSON have alike."""


@dataclass(frozen=True)
class Page:
    """What a command prints: as text, and as JSON."""

    text: str
    data: BookJson


def page(what: str | None, settings: Sequence[tuple[str, str]], errata: bool, coverage: bool) -> Page:
    """The page for a chapter, an id, words, or everything.

    Raises:
      UsageError: no such chapter or formula, options that do not go together, a value that the formula refuses, or a
        register that cannot be read.
    """
    parts = _parts()
    formulas = _sorted(formula for part in parts for formula in part.formulas)
    formula, chapter = _found(what, formulas)
    if (errata and coverage) or (formula and (errata or coverage)):
        raise UsageError(
            "--errata and --coverage are two pages, each of a chapter or of the whole book; ask for one of them"
        )
    if formula:
        return answer_page(formula, _once(settings)) if settings else formula_page(formula)
    if settings:
        raise UsageError("--set goes with the id of a formula, such as lab book ch12.ring --set p=64")
    if what:
        formulas = (
            [formula for formula in formulas if formula.chapter == chapter] if chapter else _mentioning(what, formulas)
        )
    if errata:
        return errata_page(formulas)
    if coverage:
        return coverage_page(formulas, () if what else parts)
    return chapter_page(formulas) if what else chapters_page(formulas)


def _parts() -> tuple[Part, ...]:
    try:
        return load()
    except ValueError as error:
        raise UsageError(f"the register cannot be read: {error}") from error


def _found(what: str | None, formulas: Sequence[Formula]) -> tuple[Formula | None, str | None]:
    """The formula or the chapter that is meant, however it is spelled: ch12, 12, Ch03a, CH12.RING."""
    if what is None:
        return None, None
    ids = {formula.id: formula for formula in formulas}
    # `A` is an appendix and `a7` a formula of the quick tables: as it stands, before any other spelling.
    spelled = {id.lower(): formula for id, formula in ids.items()}
    chapters = {
        f"{ch}{zeros}{name.lower()}": name for name in CHAPTERS for ch in ("", "ch", "ch.") for zeros in ("", "0")
    }
    return spelled.get(what.lower()), chapters.get(what.lower().replace(" ", ""))


def _mentioning(words: str, formulas: Sequence[Formula]) -> list[Formula]:
    """What has every word, in its id or title first.

    Raises:
      UsageError: nothing has.
    """

    def holding(text: Callable[[Formula], str]) -> list[Formula]:
        return [formula for formula in formulas if all(word in text(formula).lower() for word in words.lower().split())]

    found = holding(lambda of: f"{of.id} {of.title}") + holding(lambda of: f"{of.id} {of.title} {of.prints} {of.right}")
    if not found or not any(map(str.isalpha, words)):
        raise no_such(
            "chapter or formula", words, [*(formula.id for formula in formulas), *CHAPTERS], shown_by="lab book"
        )
    return list({formula.id: formula for formula in found}.values())


def _once(settings: Sequence[tuple[str, str]]) -> dict[str, str]:
    if doubled := [name for name, times in Counter(name for name, _ in settings).items() if times > 1]:
        raise UsageError(
            f"--set {doubled[0]} is given twice; several values are a sweep, such as --set {doubled[0]}=2,4,8"
        )
    return dict(settings)


def chapters_page(formulas: Sequence[Formula]) -> Page:
    """A row a chapter: how many entries there are, of each verdict."""
    rows = [(name, [formula for formula in formulas if formula.chapter == name]) for name in CHAPTERS]
    counted = tuple(ChapterJson(name, CHAPTERS[name], len(of), **_verdicts(of)) for name, of in rows if of)
    columns = [
        Column(
            heading, tuple(f"{getattr(row, heading)}" for row in counted), is_number=heading not in ("chapter", "about")
        )
        for heading in ("chapter", "about", "formulas", *VERDICTS)
    ]
    return Page(columns_text(columns), BookJson(SCHEMA, chapters=counted))


def chapter_page(formulas: Sequence[Formula]) -> Page:
    """A row a formula, and how many are right."""
    rows = [
        (formula.id, formula.title, formula.verdict, formula.kind, "yes" if formula.function else "")
        for formula in formulas
    ]
    counted = ", ".join(f"{count} {verdict}" for verdict, count in _verdicts(formulas).items())
    text = f"{rows_text(('id', 'title', 'verdict', 'decided by', 'runs'), rows)}\n\n{len(rows)} entries: {counted}"
    return Page(text, BookJson(SCHEMA, formulas=tuple(map(formula_json, formulas))))


def formula_page(formula: Formula) -> Page:
    """All that the register says of one formula, and how to evaluate it."""
    lines = [
        f"{formula.id}: {formula.title} (chapter {formula.chapter})",
        *_said(formula),
        f"evidence  {', '.join(formula.evidence)}",
    ]
    if formula.function:
        lines += [
            "",
            f"{formula.function} [{formula.unit or '1'}]",
            *(f"  {line}" for line in known(inspect.getdoc(formula.call)).splitlines()),
        ]
        lines += ["", "arguments", *(f"  {line}" for line in _arguments(formula))]
    if formula.worked:
        lines += ["", "worked numbers", *(f"  {_worked_text(formula, number)}" for number in formula.worked)]
    return Page("\n".join(lines), BookJson(SCHEMA, formula=formula_json(formula)))


def answer_page(formula: Formula, settings: Mapping[str, str]) -> Page:
    """The formula's value for these settings, with how far it can be trusted; a table where settings have several
    values."""
    try:
        points = [
            {name: parse(name, text) for name, text in point.items()} for point in swept(named(formula, settings))
        ]
        values = [evaluate(formula, point) for point in points]
    except ValueError as error:
        raise UsageError(str(error)) from error
    # Defaults too: a time at an assumed MFU of 1 is another answer.
    used = [{name: point.get(name, default) for name, default in formula.arguments.items()} for point in points]
    lines = _one_answer(formula, values[0], used[0]) if len(points) == 1 else _sweep(formula, values, used)
    lines += [*_said(formula), f"evidence  {', '.join(formula.evidence)}"]
    answers = tuple(AnswerJson(point, plain(value)) for point, value in zip(used, values, strict=True))
    said = vars(answers[0]) if len(answers) == 1 else {"sweep": answers}
    return Page("\n".join(lines), BookJson(SCHEMA, **said, unit=formula.unit, formula=formula_json(formula)))


def _one_answer(formula: Formula, value: Any, used: Mapping[str, Any]) -> list[str]:
    given = _given(used)
    return [
        f"{number_text(value, formula.unit)}{_longer(value, formula.unit)}   "
        f"{_headline(formula)}{f', for {given}' if given else ''}"
    ]


def _sweep(formula: Formula, values: Sequence[Any], used: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row a point: what varies and the value; what does not stands above."""
    varied = [name for name in used[0] if any(point[name] != used[0][name] for point in used)]
    given = _given({name: value for name, value in used[0].items() if name not in varied})
    columns = [
        Column(name, tuple(number_text(point[name], unit_of(name)) for point in used), is_number=True)
        for name in varied
    ]
    value = Column(
        "value",
        tuple(f"{number_text(value, formula.unit)}{_longer(value, formula.unit)}" for value in values),
        is_number=True,
    )
    return [f"{_headline(formula)}{f', for {given}' if given else ''}", "", columns_text([*columns, value]), ""]


def _headline(formula: Formula) -> str:
    return f"{formula.id}, {formula.title} (chapter {formula.chapter})"


def _given(used: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {number_text(value, unit_of(name))}" for name, value in used.items())


def errata_page(formulas: Iterable[Formula]) -> Page:
    """What is wrong in the book, worst first: what does not work as printed, numbers by how far they are off, then
    statements."""
    wrong = sorted(
        (formula for formula in formulas if formula.verdict == "wrong"),
        key=lambda formula: (not formula.fails, -(formula.severity or 0)),
    )
    blocks = [
        "\n".join([f"{_off_by(formula)}{formula.id}: {formula.title}", *(f"  {line}" for line in _said(formula)[:-1])])
        for formula in wrong
    ]
    fail, off = (
        sum(formula.fails for formula in wrong),
        sum(formula.severity is not None and not formula.fails for formula in wrong),
    )
    counted = (
        f"{len(wrong)} entries are wrong: {fail} do not work as printed, {off} are off by a number, "
        f"{len(wrong) - fail - off} are statements"
    )
    return Page("\n\n".join([*blocks, counted]), BookJson(SCHEMA, errata=tuple(map(formula_json, wrong))))


def coverage_page(formulas: Sequence[Formula], parts: Sequence[Part]) -> Page:
    """How entries are decided: by what, and with which verdict; and which are open, with the reason."""
    rows = [(kind, [formula for formula in formulas if formula.kind == kind]) for kind in KINDS] + [("all", formulas)]
    counted = [{"decided by": kind, "entries": len(of), **_verdicts(of)} for kind, of in rows]
    columns = [
        Column(heading, tuple(f"{row[heading]}" for row in counted), is_number=heading != "decided by")
        for heading in ("decided by", "entries", *VERDICTS)
    ]
    undecided = tuple(
        OpenJson(formula.id, formula.title, formula.reason) for formula in formulas if formula.kind == "open"
    )
    left_out = tuple(LeftOutJson(entry.id, entry.reason) for part in parts for entry in part.left_out)
    worked = sum(len(formula.worked) for formula in formulas)
    runs = len({formula.function for formula in formulas if formula.function})
    lines = [
        columns_text(columns),
        "",
        f"{runs} functions evaluate these entries; {worked} worked numbers are checked",
        *_listed("open", undecided),
        *_listed("left out of the register", left_out),
    ]
    data = BookJson(
        SCHEMA,
        coverage=tuple(cast(CoverageJson, row) for row in counted),
        functions=runs,
        worked=worked,
        open=undecided,
        left_out=left_out,
    )
    return Page("\n".join(lines), data)


def _listed(heading: str, entries: Sequence[OpenJson | LeftOutJson]) -> list[str]:
    return (
        ["", f"{heading}: {len(entries)}", *(f"  {entry.id}: {entry.reason}" for entry in entries)] if entries else []
    )


def formula_json(formula: Formula) -> FormulaJson:
    return FormulaJson(
        **{name: getattr(formula, name) for name in _SAME},
        arguments=tuple(
            ArgumentJson(name, unit_of(name), tuple(_letters(formula, name))) for name in formula.arguments
        ),
        worked=tuple(
            WorkedJson(set=number.arguments, gives=number.gives, prints=number.prints, is_=number.says or None)
            for number in formula.worked
        ),
    )


def number_text(value: Any, unit: str) -> str:
    """Bytes and rates with a prefix, the rest to six digits."""
    value = plain(value)
    after = unit[1:] if unit.startswith("1/") else f" {unit}".rstrip()
    if isinstance(value, (bool, str)) or not isinstance(value, (int, float)):
        return f"{value}{after}"
    if unit.startswith(("B", "FLOP")) and abs(value) >= 1:
        return scaled(value, unit)
    return f"{value:,}{after}" if isinstance(value, int) else f"{value:.6g}{after}"


def _longer(value: Any, unit: str) -> str:
    """` (10.8 days)` after many seconds."""
    value = plain(value)
    if unit != "s" or not isinstance(value, (int, float)):
        return ""
    return next(
        (
            f" ({value / seconds:,.3g} {name})"
            for name, seconds in LONGER.items()
            if value >= 2 * seconds or value >= seconds > 3600
        ),
        "",
    )


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
    told = {
        "open": "nothing decides it",
        "calculated": "calculated only",
        "published": "as published: the source is named, nothing here computes it",
    }
    return told.get(formula.kind, f"decided by: {formula.kind}")


def _off_by(formula: Formula) -> str:
    if formula.fails:
        return "does not work: "
    if formula.severity is None:
        return ""
    return f"{formula.severity:,.0f} times: " if formula.severity >= 100 else f"{formula.severity:.3g} times: "


def _arguments(formula: Formula) -> list[str]:
    units = [unit_of(name) for name in formula.arguments]
    defaults = ["" if default is inspect.Parameter.empty else f" = {default}" for default in formula.arguments.values()]
    return [
        f"{name}{default}{f'  [{unit}]' if unit else ''}"
        for name, default, unit in zip(argument_names(formula), defaults, units, strict=True)
    ]


def _letters(formula: Formula, argument: str) -> list[str]:
    return [letter for letter, name in formula.symbols.items() if name == argument]


def _worked_text(formula: Formula, number: Worked) -> str:
    given = ", ".join(f"{name} = {number_text(value, unit_of(name))}" for name, value in number.arguments.items())
    unit = formula.unit if number.times == 1 else ""
    prints = f" (the book: {number_text(number.prints, unit)})" if number.prints is not None else ""
    return f"{number_text(number.gives, unit)}{prints} for {given}{f': {number.says}' if number.says else ''}"


def _verdicts(formulas: Iterable[Formula]) -> dict[str, int]:
    counts = Counter(formula.verdict for formula in formulas)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def _sorted(formulas: Iterable[Formula]) -> list[Formula]:
    order = list(CHAPTERS)
    return sorted(formulas, key=lambda formula: order.index(formula.chapter))
