"""The page of `lab time`: the time of a step, its timeline, and what it goes into."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from lab.core.units import seconds_text
from lab.measure.prediction import Prediction
from lab.report.html import charts
from lab.report.html.markup import joined, paragraphs
from lab.report.html.page import Part, Section, Verdict, document
from lab.report.html.tables import plain, table
from lab.report.seconds import headlines, notes, tables
from lab.report.timeline import timeline


def page(found: Sequence[Prediction]) -> str:
    word = ", ".join(seconds_text(one.time.total) for one in found)
    tone = "plain" if all(one.is_known for one in found) else "bad"
    sources = ", ".join(one.source or "program" for one in found)
    verdict = Verdict(f"{word} a step, predicted", (), tone)
    return document(f"lab time: {sources}", verdict, list(map(_part, found)))


def _part(found: Prediction) -> Part:
    return Part(found.source or "program", (Section("Time of a step", section(found)),))


def section(found: Prediction) -> Markup:
    """What `lab time` prints, with the timeline."""
    shown = joined(table(caption, list(map(plain, columns))) for caption, columns in tables(found))
    return paragraphs([*headlines(found), *notes(found)]) + charts.picture(timeline(found)) + shown
