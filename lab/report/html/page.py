"""A page: its verdict, then parts of sections, with style and script inside."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from markupsafe import Markup

from lab.report.html.markup import rendered, source

MOST_LISTED = 2
"""Parts whose sections stand in the contents."""


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it. Those with nothing under them are left out."""

    title: str
    body: Markup


@dataclass(frozen=True)
class Part:
    """A run of sections, about one program or one run.

    Attributes:
      lead: a sentence before them.
      is_folded: only its title shows until it is opened.
      id: what links name; a number where it is "".
    """

    title: str
    sections: tuple[Section, ...]
    lead: str = ""
    is_folded: bool = False
    id: str = ""


@dataclass(frozen=True)
class Verdict:
    """What the page comes to: a word or two, sentences, and whether that is "good", "bad" or "plain"."""

    word: str
    sentences: tuple[str, ...]
    tone: str = "plain"


def document(title: str, verdict: Verdict, parts: Sequence[Part]) -> str:
    """The whole file. Its policy lets no script run but its own, and nothing be fetched."""
    style, script = source("report.css"), source("report.js")
    script_hash = b64encode(sha256(script.encode()).digest()).decode()
    told = [told_part for part in parts if (told_part := _told(part)).sections or part.lead]
    numbered = [replace(part, id=part.id or f"part-{number}") for number, part in enumerate(told, 1)]
    links = _links([part for part in numbered if not part.is_folded])
    return str(
        rendered(
            "page.html",
            title=title,
            verdict=verdict,
            parts=numbered,
            links=links,
            style=style,
            script=script,
            script_hash=script_hash,
        )
    )


def _links(parts: Sequence[Part]) -> list[tuple[str, str]]:
    """(id, title) of parts; of their sections where parts are few and no two sections are called alike."""
    sections = [
        (f"{part.id}-{number}", section.title) for part in parts for number, section in enumerate(part.sections, 1)
    ]
    is_short = len(parts) <= MOST_LISTED and len({title for _, title in sections}) == len(sections)
    return sections if is_short else [(part.id, part.title) for part in parts]


def _told(part: Part) -> Part:
    return replace(part, sections=tuple(section for section in part.sections if section.body))
