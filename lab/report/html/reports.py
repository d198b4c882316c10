"""The pages of `lab inspect`, `lab run` and `lab verify`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from lab.core.units import count
from lab.report.diagnosis import evidence
from lab.report.html import ledgers, runs
from lab.report.html.audit import audit
from lab.report.html.markup import element, joined
from lab.report.html.page import Part, Section, Verdict, document
from lab.report.tables import headline

if TYPE_CHECKING:
    from lab.diagnosis import Diagnosis, Finding
    from lab.harness.decoder.training import TrainingResult
    from lab.harness.question import Answer
    from lab.harness.result import Result


def inspection(diagnoses: Sequence[Diagnosis]) -> str:
    """What is wrong with each program, then what it communicates."""
    sources = [diagnosis.ledger.source or "program" for diagnosis in diagnoses]
    return document(f"lab inspect: {', '.join(sources)}", _found(diagnoses), list(map(_program, diagnoses)))


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
    findings = sum(len(diagnosis.findings) for diagnosis in diagnoses)
    too_large = any(ledgers.does_not_fit(diagnosis.ledger) for diagnosis in diagnoses)
    word = count(findings, "finding") if findings else "Nothing found that it could do without"
    sentences = ledgers.sums(diagnoses[0].ledger) if len(diagnoses) == 1 else (f"{len(diagnoses)} programs.",)
    return Verdict(word, sentences, "bad" if findings or too_large else "good")


def _program(diagnosis: Diagnosis) -> Part:
    findings = joined(_finding(number, finding) for number, finding in enumerate(diagnosis.findings, 1))
    lead = "" if diagnosis.ledger.transfers else "It communicates nothing."
    return Part(headline(diagnosis.ledger), (Section("Findings", findings), *ledgers.sections(diagnosis.ledger)), lead)


def _finding(number: int, finding: Finding) -> Markup:
    heading = element("h4", f"{number}. {finding.kind}: {finding.sentence}")
    return element(
        "article",
        heading,
        element("p", evidence(finding), class_="note"),
        element("p", f"Try: {finding.advice}"),
        class_="finding",
    )
