"""The page of `lab restart`: what remains after each loss, as a picture and as tables."""

from __future__ import annotations

from markupsafe import Markup

from lab.report.html import charts
from lab.report.html.markup import paragraphs
from lab.report.html.page import Part, Section, Verdict, document
from lab.report.html.tables import plain, table
from lab.report.remaining import drawing
from lab.report.restart import columns, lost, notes, unplaced
from lab.resilience.restart import LossJson, RestartJson


def page(found: RestartJson) -> str:
    stops = [loss.loss for loss in found.losses if not any(one.can_go_on for one in loss.meshes)]
    word = f"nothing goes on without {', '.join(stops)}" if stops else "a mesh remains after each loss"
    verdict = Verdict(word, tuple(unplaced(found)), "bad" if stops else "good")
    whole = Part(
        f"{found.source} on {found.target}",
        (
            Section("What remains", charts.picture(drawing(found))),
            Section("Before a failure", table("The mesh as it is.", list(map(plain, columns((found.before,)))))),
        ),
    )
    return document(f"lab restart: {found.source}", verdict, [whole, *map(_part, found.losses)])


def _part(loss: LossJson) -> Part:
    kept = [one for one in loss.meshes if not one.refused]
    shown = table("Meshes that remain.", list(map(plain, columns(kept)))) if kept else Markup("")
    return Part(lost(loss), (Section("Meshes", shown), Section("Notes", paragraphs(notes(loss)))))
