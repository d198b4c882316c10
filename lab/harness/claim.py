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
    """

    id: str
    verdict: ClaimVerdict
    evidence: str
    statement: str | None = None
    disputed: str | None = None

    @property
    def is_undisputed_refutation(self) -> bool:
        """It is refuted, and nobody has said so before."""
        return self.verdict is ClaimVerdict.REFUTED and self.disputed is None


def decided(id: str, holds: bool, evidence: str, *, statement: str | None = None, disputed: str | None = None) -> Claim:
    return Claim(id, ClaimVerdict.CONFIRMED if holds else ClaimVerdict.REFUTED, evidence, statement, disputed)


def calculated(id: str, evidence: str, *, statement: str | None = None) -> Claim:
    return Claim(id, ClaimVerdict.CALCULATED, evidence, statement)
