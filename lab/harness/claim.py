"""One formula of the book put to the test, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ClaimVerdict(StrEnum):
    """`calculated`: the formula was evaluated, but this program does not decide it."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    CALCULATED = "calculated"


@dataclass(frozen=True)
class Claim:
    """One formula of the book put to the test: its id in the catalogue, the outcome, and one sentence of evidence.

    Attributes:
      statement: what was tested, where the evidence alone does not tell.
      disputed: the item of the catalogue that already says that the statement is wrong.
      structural: it compares two programs, tests a property or counts. No formula of `lab.book` enters whose value
        could be wrong, and so none is confirmed by it.
    """

    id: str
    verdict: ClaimVerdict
    evidence: str
    statement: str | None = None
    disputed: str | None = None
    structural: bool = False

    @property
    def is_undisputed_refutation(self) -> bool:
        """It is refuted, and nobody has said so before."""
        return self.verdict is ClaimVerdict.REFUTED and self.disputed is None


def decided(
    id: str,
    holds: bool,
    evidence: str,
    *,
    statement: str | None = None,
    disputed: str | None = None,
    structural: bool = False,
) -> Claim:
    verdict = ClaimVerdict.CONFIRMED if holds else ClaimVerdict.REFUTED
    return Claim(id, verdict, evidence, statement, disputed, structural)


def calculated(id: str, evidence: str, *, statement: str | None = None) -> Claim:
    return Claim(id, ClaimVerdict.CALCULATED, evidence, statement)
