"""Answers to questions without a program, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lab.core.units import scaled
from lab.report.fitted import Column
from lab.report.tables import columns_text
from lab.report.verdicts import claim_text, claims_text

if TYPE_CHECKING:
    from lab.harness.question import Answer, Row

# Units that take a decimal prefix; others are printed as they are.
_PREFIXED = ("B", "B/s", "FLOP", "FLOP/s")


def answers_text(answers: Sequence[Answer]) -> str:
    """Each answer in full: the question, what was assumed, the numbers, and what they say of the book."""
    return "\n\n\n".join(map(answer_text, answers))


def answer_text(answer: Answer) -> str:
    if answer.failure:
        return _failure(answer)
    assumed = ", ".join(
        f"{name} {value:,.12g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in answer.parameters.items()
    )
    columns = [
        Column("", tuple(row.what for row in answer.rows)),
        Column("value", tuple(map(value_text, answer.rows)), is_number=True),
    ]
    if any(row.predicted is not None for row in answer.rows):
        columns.append(Column("theory", tuple(map(predicted_text, answer.rows)), is_number=True))
    claims = "\n".join(map(claim_text, answer.claims))
    return "\n\n".join(
        part
        for part in (f"answered: {answer.experiment}\n{answer.question}\n{assumed}", columns_text(columns), claims)
        if part
    )


def summary_text(answers: Sequence[Answer]) -> str:
    """One line for each question, then what failed, and what was refuted and is not disputed yet."""
    columns = [
        Column("verdict", tuple(answer.verdict for answer in answers)),
        Column("experiment", tuple(answer.experiment for answer in answers)),
        Column("claims of the book", tuple(claims_text(answer.claims) for answer in answers)),
    ]
    failures = [_failure(answer) for answer in answers if answer.failure]
    surprises = [
        f"{answer.experiment}: {claim_text(claim)}"
        for answer in answers
        for claim in answer.claims
        if claim.is_undisputed_refutation
    ]
    return "\n\n".join(part for part in (columns_text(columns), "\n".join([*failures, *surprises])) if part)


def _failure(answer: Answer) -> str:
    return f"failed: {answer.experiment}: {answer.failure}"


def predicted_text(row: Row) -> str:
    return "" if row.predicted is None else value_text(replace(row, value=row.predicted))


def value_text(row: Row) -> str:
    if isinstance(row.value, str):
        return row.value
    if row.unit in _PREFIXED:
        return scaled(row.value, row.unit)
    return f"{row.value:{',.0f' if abs(row.value) >= 1e4 else ',.4g'}} {row.unit}".rstrip()
