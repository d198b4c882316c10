"""A program's ledger with what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from msgspec import UNSET, UnsetType

from lab.core import display
from lab.core.codec import Count
from lab.core.ledger import Ledger, LedgerJson
from lab.core.note import NoteKind, note_kinds
from lab.diagnosis import holding
from lab.diagnosis.cost import Step, StepJson, priced
from lab.diagnosis.finding import Finding, FindingJson
from lab.diagnosis.holding import HeldBuffer
from lab.diagnosis.least import least
from lab.diagnosis.notes import notes
from lab.diagnosis.orders import why_axes_are_unknown
from lab.diagnosis.program import Program
from lab.diagnosis.proof import Trial, proven_here, untried
from lab.diagnosis.table import findings
from lab.hlo.read import collector_paused

_NO_MESH = "no mesh was given, so axes are unknown; add --mesh (in Python, mesh=)"
_DAMAGE = (NoteKind.TEXT_CUT, NoteKind.TEXT_DAMAGED, NoteKind.LINES_NOT_READ, NoteKind.NO_ENTRY)


@dataclass(frozen=True)
class Diagnosis:
    """Findings, the worst first, and the ledger, whose notes also say what is no fault and yet worth knowing.

    Attributes:
      misfit: why the given mesh cannot be that of the text; None where it may be.
      state: bytes of the arguments of one device, by kind.
      at_peak: the largest temporaries of the fullest moment, where they are known.
      step: what it takes at least, by which findings are ordered; None where nobody looked for them.
      least: why no program that does the same sends less, where that is proven.
      trial: for who tries the remedies of findings, where that is still to do.
    """

    ledger: Ledger
    findings: tuple[Finding, ...]
    misfit: str | None = None
    state: Mapping[str, int] = field(default_factory=dict)
    at_peak: tuple[HeldBuffer, ...] = ()
    step: Step | None = None
    least: str | None = None
    trial: Trial | None = None

    @property
    def unknown_axes(self) -> str | None:
        """Why axes are unknown; None where they are known. Most kinds of findings are about axes: without them nobody
        can look for these."""
        is_on_mesh = self.ledger.mesh is not None or (self.ledger.devices or 1) == 1
        return self.misfit if is_on_mesh else _NO_MESH

    @property
    def is_of_whole_text(self) -> bool:
        """Of a damaged text nobody looks for findings: what its instructions do is not known."""
        return not any(kind in _DAMAGE for kind in note_kinds(self.ledger.notes))

    def json_object(self) -> DiagnosisJson:
        findings = tuple(finding.json_object() for finding in self.findings)
        return DiagnosisJson(
            **vars(self.ledger.json_object()),
            findings=findings,
            state=self.state or UNSET,
            at_peak=self.at_peak or UNSET,
            step=UNSET if self.step is None else self.step.json_object(),
            least=self.least or UNSET,
        )


@dataclass(frozen=True)
class DiagnosisJson(LedgerJson):
    """What one program communicates in a step of one device, and what is wrong with it: what `lab inspect --json`
    prints. A ledger alone has no findings."""

    findings: tuple[FindingJson, ...] = ()
    state: Mapping[str, Count] | UnsetType = UNSET
    at_peak: tuple[HeldBuffer, ...] | UnsetType = UNSET
    step: StepJson | UnsetType = UNSET
    least: str | UnsetType = UNSET


class Findings(tuple[Finding, ...]):
    """The findings of one program, the worst first: a tuple that shows itself in a terminal and in a notebook."""

    diagnosis: Diagnosis

    def __new__(cls, diagnosis: Diagnosis) -> Findings:
        found = super().__new__(cls, diagnosis.findings)
        found.diagnosis = diagnosis
        return found

    def __getnewargs__(self) -> tuple[Diagnosis]:
        return (self.diagnosis,)

    def __repr__(self) -> str:
        return display.text(self)

    def _repr_html_(self) -> str | None:
        return display.html(self)


def of(program: Program, prove: bool = False, why_not: str = "") -> Diagnosis:
    """Args: prove: try the remedies of findings, by compiling the changed program. why_not: why they are not tried, if
    that is to be told."""
    if not (bare := Diagnosis(program.ledger, ())).is_of_whole_text:
        return bare
    with collector_paused():
        found, step = priced(program, findings(program))
    later = Trial.of(program) if prove and program.is_tried_elsewhere else None
    if prove and later is None:
        found = proven_here(program, found)
    elif why_not:
        found = untried(found, why_not)
    with collector_paused():
        return Diagnosis(
            replace(program.ledger, notes=tuple(notes(program))),
            found,
            why_axes_are_unknown(program),
            holding.state(program),
            holding.at_peak(program),
            step,
            None if any(finding.cost.wire_bytes for finding in found) else least(program),
            later,
        )
