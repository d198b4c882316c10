"""What is wrong with a compiled program, in sentences: rules over its ledger, text and memory, one module for each
mechanism."""

from lab.diagnosis.diagnosis import Diagnosis, Findings, of
from lab.diagnosis.finding import Finding
from lab.diagnosis.table import KINDS

__all__ = ["KINDS", "Diagnosis", "Finding", "Findings", "of"]
