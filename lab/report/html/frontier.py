"""The page of `lab frontier`: the pick, the picture, and what each change makes of the step."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from lab.frontier.frontier import Frontier, Row
from lab.frontier.intervention import text
from lab.report.frontier import columns, effects, headlines, notes, other_mathematics
from lab.report.frontier_picture import drawing
from lab.report.html import charts
from lab.report.html.markup import paragraphs
from lab.report.html.page import Part, Section, Verdict, document
from lab.report.html.tables import plain, table

_FRONT = "No other sends less, takes less time or holds less without more of another."


def page(found: Frontier) -> str:
    pick = found.pick
    word = f"take {text(pick.variant)}" if pick and pick.variant else "take it as it is" if pick else "nothing fits"
    verdict = Verdict(word, (found.why(),), "good" if pick else "bad")
    sections = (
        Section(
            "Frontier",
            paragraphs(line for line in headlines(found) if line != found.why()) + charts.picture(drawing(found)),
        ),
        Section("On the front", _table(found, found.front, _FRONT)),
        Section("What each changes", _table(found, effects(found), "Each variant beside the step as it is.")),
        Section("With other mathematics", _table(found, other_mathematics(found), "Which no pick has.")),
        Section("Without effect", paragraphs(notes(found))),
    )
    return document(f"lab frontier: {found.source}", verdict, [Part(f"{found.source} on {found.target}", sections)])


def _table(found: Frontier, rows: Sequence[Row], caption: str) -> Markup:
    return table(caption, list(map(plain, columns(found, rows)))) if rows else Markup("")
