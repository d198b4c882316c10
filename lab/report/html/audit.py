"""The audit of the book on a page: what is wrong in it, worst first, and what decides its entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from lab.core.codec import to_json
from lab.report import book
from lab.report.html.markup import element, joined
from lab.report.html.page import Part, Section
from lab.report.html.tables import Column, bars, numbers, table

Rows = Sequence[Mapping[str, Any]]


def audit() -> Part:
    """From the register as it stands."""
    errata = to_json(book.page(None, (), errata=True, coverage=False).data)["errata"]
    found = to_json(book.page(None, (), errata=False, coverage=True).data)
    lead = (
        f"{len(errata)} entries are wrong as printed; {found['functions']} formulas run, {found['worked']} worked "
        "numbers are checked."
    )
    told = joined(
        (
            _coverage(found["coverage"]),
            _listed("Open: nothing decides them", found["open"]),
            _listed("Left out of the register", found["left_out"]),
        )
    )
    return Part("Audit of the book", (Section("Errata", _errata(errata)), Section("Coverage", told)), lead)


def _errata(rows: Rows) -> Markup:
    columns = [
        Column("id", [row["id"] for row in rows]),
        numbers("off by", [_off_by(row) for row in rows], list(map(_severity, rows))),
        Column("chapter", [row["chapter"] for row in rows], is_choice=True),
        Column("title", [row["title"] for row in rows]),
        Column("the book prints", [row["prints"] for row in rows]),
        Column("right is", [row["right"] for row in rows]),
        Column("reason", [row["reason"] for row in rows]),
        Column("decided by", [row["kind"] for row in rows], is_choice=True),
    ]
    return table("What is wrong in the book, worst first", columns, is_sortable=True)


def _severity(row: Mapping[str, Any]) -> float:
    """What does not work at all stands before what is off by a number, and statements last."""
    return 1e300 if row["fails"] else row["severity"] or 0.0


def _off_by(row: Mapping[str, Any]) -> str:
    if row["fails"]:
        return "does not work"
    return f"{row['severity']:,.3g} times" if row["severity"] else "a statement"


def _coverage(rows: Rows) -> Markup:
    kinds = rows[:-1]
    columns = [
        Column("decided by", [row["decided by"] for row in rows]),
        bars("entries", [f"{row['entries']:,}" for row in rows], [row["entries"] for row in rows]),
        *(
            numbers(verdict, [f"{row[verdict]:,}" for row in rows], [row[verdict] for row in rows])
            for verdict in kinds[0]
            if verdict not in ("decided by", "entries")
        ),
    ]
    return table("How many entries are decided by what, and how", columns)


def _listed(caption: str, rows: Rows) -> Markup:
    if not rows:
        return Markup("")
    columns = [Column("id", [row["id"] for row in rows]), Column("reason", [row["reason"] for row in rows])]
    return element("details", element("summary", f"{caption}: {len(rows)}"), table(caption, columns))
