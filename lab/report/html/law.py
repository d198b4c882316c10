"""The page of `lab law`."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from lab.laws import formula
from lab.laws.law import Law
from lab.laws.scale import Scale
from lab.laws.verify import full_text
from lab.report.html.markup import element, joined, paragraphs
from lab.report.html.page import Part, Section, Verdict, document
from lab.report.html.tables import plain, table
from lab.report.law import facts, headlines, scale_columns, scale_lines, tables


def page(law: Law, scales: Sequence[Scale] = ()) -> str:
    is_equal = all(check.is_equal for check in law.checks)
    word = "equal at every held-out size" if is_equal else "refuted at a held-out size"
    verdict = Verdict(word if law.checks else "not held against other sizes", (), "good" if is_equal else "bad")
    shown = joined(table(caption, list(map(plain, columns))) for caption, columns in tables(law))
    sections = [
        Section("Law", paragraphs(headlines(law)) + shown + paragraphs(facts(law))),
        Section("LaTeX", _latex(law)),
        *(
            Section(
                f"As {scale.variable} grows",
                table(f"Wire bytes of a step as {scale.variable} grows", list(map(plain, scale_columns(scale))))
                + paragraphs(scale_lines(scale)),
            )
            for scale in scales
        ),
    ]
    return document(f"lab law: {law.source}", verdict, [Part(law.source, tuple(sections))])


def _latex(law: Law) -> Markup:
    """To be copied: payload bytes of a step."""
    lines = [
        f"% {full_text(term)}{f', {term.origin}' if term.origin else ''}\n{formula.latex(term.payload_of_step)}"
        for term in law.terms
    ]
    return element("pre", "\n".join(lines))
