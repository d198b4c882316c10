"""The pages of `lab inspect`, `lab run` and `lab verify`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap, zip_longest
from typing import TYPE_CHECKING

from markupsafe import Markup

from lab.core.frame import Stack
from lab.report.diagnosis import (
    SHOWN,
    advice_text,
    amounts,
    apart,
    edit_text,
    evidence,
    gaps,
    not_shown,
    proof_text,
    remark_text,
    step_lines,
    verdict,
    waste_text,
)
from lab.report.html import ledgers, runs, seconds
from lab.report.html.audit import audit
from lab.report.html.holding import holding
from lab.report.html.markup import element, joined, paragraphs, words
from lab.report.html.page import Part, Section, Verdict, document
from lab.report.origins import common_folder, folder_lines, short_diagnosis, stack_lines
from lab.report.tables import headline

if TYPE_CHECKING:
    from lab.diagnosis import Diagnosis, Finding
    from lab.harness.decoder.training import TrainingResult
    from lab.harness.question import Answer
    from lab.harness.result import Result
    from lab.measure.prediction import Prediction


def inspection(diagnoses: Sequence[Diagnosis], times: Sequence[Prediction | None] = ()) -> str:
    """What is wrong with each program, then how long a step takes, where that is known, and what it communicates."""
    sources = [diagnosis.ledger.source or "program" for diagnosis in diagnoses]
    return document(
        f"lab inspect: {', '.join(sources)}", _found(diagnoses), list(starmap(_program, zip_longest(diagnoses, times)))
    )


def experiments(
    results: Sequence[Result], trained: Sequence[TrainingResult], answers: Sequence[Answer], *, is_audit: bool
) -> str:
    """What experiments came to; with the audit of the book each in short, else each with its program."""
    is_folded = len(results) + len(trained) + len(answers) > 1
    told = [(runs.name(one), claim) for one in results for claim in one.claims]
    told += [(one.training.name, claim) for one in trained for claim in one.claims] + [
        (one.experiment, claim) for one in answers for claim in one.claims
    ]
    overview = (
        [Part("Overview", (runs.summary(results), runs.others(trained, answers), runs.claims(told)))]
        if is_folded
        else []
    )
    parts = [
        runs.result_part(one, number, is_folded=is_folded, with_program=not is_audit)
        for number, one in enumerate(results, 1)
    ]
    parts += [runs.trained_part(one, number, is_folded=is_folded) for number, one in enumerate(trained, 1)]
    parts += [runs.answer_part(one, number, is_folded=is_folded) for number, one in enumerate(answers, 1)]
    names = list(
        dict.fromkeys(
            [
                *(one.experiment for one in results),
                *(one.training.name for one in trained),
                *(one.experiment for one in answers),
            ]
        )
    )
    title = "lab verify" if is_audit else f"lab run {' '.join(names)}"
    return document(
        title, runs.verdict(results, trained, answers), [*overview, *([audit()] if is_audit else []), *parts]
    )


def _found(diagnoses: Sequence[Diagnosis]) -> Verdict:
    found = [finding for diagnosis in diagnoses for finding in diagnosis.findings]
    is_bad = not all(finding.is_remark for finding in found)
    too_large = any(ledgers.does_not_fit(diagnosis.ledger) for diagnosis in diagnoses)
    clean = "; ".join(dict.fromkeys(map(verdict, diagnoses)))
    word = amounts(found) if found else clean
    sentences = ledgers.sums(diagnoses[0].ledger) if len(diagnoses) == 1 else (f"{len(diagnoses)} programs.",)
    tone = "plain" if any(map(gaps, diagnoses)) else "good"
    return Verdict(f"{word[0].upper()}{word[1:]}", sentences, "bad" if is_bad or too_large else tone)


def _program(diagnosis: Diagnosis, time: Prediction | None) -> Part:
    folder = common_folder(diagnosis.ledger, findings=diagnosis.findings)
    short = short_diagnosis(diagnosis, folder)
    lead = [] if diagnosis.ledger.transfers else ["it communicates nothing"]
    said = "; ".join([*lead, *gaps(diagnosis), *folder_lines(folder)])
    return Part(
        headline(diagnosis.ledger),
        (
            Section("Findings", findings(short)),
            *[Section("Time of a step", seconds.section(time)) for time in (time,) if time],
            Section("What fills the memory", holding(short)),
            *ledgers.sections(short.ledger),
        ),
        f"{said[0].upper()}{said[1:]}." if said else "",
    )


def findings(diagnosis: Diagnosis) -> Markup:
    """Each with what it costs and what to try, remarks after them."""
    found = diagnosis.findings
    findings, remarks = apart(found[:SHOWN])
    listed = joined(_finding(number, finding) for number, finding in enumerate(findings, 1))
    noted = paragraphs(f"Remark: {remark_text(remark)}" for remark in remarks)
    return paragraphs(step_lines(diagnosis)) + listed + noted + paragraphs(not_shown(found))


def _finding(number: int, finding: Finding) -> Markup:
    heading = element("h4", f"{number}. {finding.kind}: {finding.sentence}")
    return element(
        "article",
        heading,
        element("p", evidence(finding), class_="note"),
        *[element("p", waste, class_="note") for waste in (waste_text(finding),) if waste],
        element("p", _capitalized(advice_text(finding))),
        _stack(finding.stack),
        *[element("p", _capitalized(t), class_="note") for t in (edit_text(finding), proof_text(finding)) if t],
        class_="finding",
    )


def _capitalized(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _stack(stack: Stack) -> Markup:
    """Innermost line first; nothing where a line says it all."""
    lines = stack_lines(stack)
    if len(lines) < 2:
        return Markup("")
    return element("details", element("summary", "stack, innermost line first"), words(lines))
