"""What `lab inspect` finds of a program: what is wrong with it, and how long a step takes where rates tell."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from lab import diagnosis
from lab.diagnosis.diagnosis import DiagnosisJson
from lab.diagnosis.program import Program
from lab.measure.prediction import Prediction, PredictionJson, predicted
from lab.meshes.errors import UsageError


@dataclass(frozen=True)
class Study:
    """Attributes: time: None where the target's chip has no rates, or the text does not tell how often a loop runs."""

    diagnosis: diagnosis.Diagnosis
    time: Prediction | None

    def json_object(self) -> InspectionJson:
        time = self.time.json_object() if self.time else UNSET
        return InspectionJson(**vars(self.diagnosis.json_object()), time=time)


@dataclass(frozen=True)
class InspectionJson(DiagnosisJson):
    """What `lab inspect --json` prints of one program; `time` is what `lab time --json` prints, where rates tell."""

    time: PredictionJson | UnsetType = UNSET


def studied(program: Program, prove: bool = True, why_not: str = "") -> Study:
    """See `lab.diagnosis.of`."""
    try:
        time = predicted(program)
    except UsageError:
        time = None
    return Study(diagnosis.of(program, prove, why_not), time)
