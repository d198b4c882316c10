"""A program's ledger with what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lab.core.ledger import Ledger
from lab.diagnosis.finding import Finding
from lab.diagnosis.notes import notes
from lab.diagnosis.program import Program
from lab.diagnosis.table import findings
from lab.hlo.read import collector_paused


@dataclass(frozen=True)
class Diagnosis:
    """Findings, the worst first, and the ledger, whose notes also say what is no fault and yet worth knowing."""

    ledger: Ledger
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """The ledger's object with one field more."""
        return self.ledger.to_json() | {"findings": [finding.to_json() for finding in self.findings]}


def of(program: Program) -> Diagnosis:
    with collector_paused():
        ledger = replace(program.ledger, notes=(*program.ledger.notes, *notes(program)))
        return Diagnosis(ledger, tuple(findings(program)))
