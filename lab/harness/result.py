"""What running an experiment came to: `sharding-lab/run/1`. Imports no JAX."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lab.core import display
from lab.core.ledger import Ledger, Memory
from lab.harness.claim import Claim
from lab.programs.strategies.memory_terms import MemoryTerm, Terms, label
from lab.settle import Settlement, Verdict

SCHEMA = "sharding-lab/run/1"


@dataclass(frozen=True)
class Numerics:
    """How far a sharded program's results are from one device's, relative to the largest entry of each array."""

    worst_relative_error: float
    tolerance: float


@dataclass(frozen=True)
class Seconds:
    """Wall time of this process: of XLA's compilation, of reading the text, and of everything."""

    compile: float
    read: float
    all: float


@dataclass(frozen=True)
class Result:
    """What one experiment showed in one style on one target.

    Attributes:
      measured: the compiled program's ledger; None where it failed to compile or gave wrong numbers.
      settlement: None where `measured` is.
      held: bytes on one device at the fullest moment by theory, by the id of the term; None where it says nothing.
      numerics: None where the program was not run.
      unchecked: why the numbers of what was chosen were not checked where they could have been.
      failure: why there is no ledger, or which declared sharding did not happen, in a line.
    """

    experiment: str
    style: str
    target: str
    mesh: dict[str, int]
    parameters: dict[str, Any]
    seconds: Seconds
    measured: Ledger | None = None
    settlement: Settlement | None = None
    held: Terms | None = None
    claims: tuple[Claim, ...] = ()
    numerics: Numerics | None = None
    unchecked: str | None = None
    failure: str | None = None

    @property
    def verdict(self) -> Verdict:
        return Verdict.FAILED if self.failure or self.settlement is None else self.settlement.verdict

    @property
    def is_fine(self) -> bool:
        """Nothing failed and nothing, of the ledger or of the book, was refuted but what the catalogue disputes."""
        return self.verdict not in (Verdict.FAILED, Verdict.REFUTED) and not any(
            claim.is_undisputed_refutation for claim in self.claims
        )

    def _repr_html_(self) -> str | None:
        return display.html(self)

    def to_json(self) -> dict[str, Any]:
        """One of the `results` of `sharding-lab/run/1`."""
        return {
            "experiment": self.experiment,
            "style": self.style,
            "target": self.target,
            "mesh": self.mesh,
            "parameters": self.parameters,
            "verdict": str(self.verdict),
            "failure": self.failure,
            **settlement_json(self.settlement),
            "claims": [asdict(claim) for claim in self.claims],
            "notes": list(self.measured.notes) if self.measured else [],
            "numerics": asdict(self.numerics) if self.numerics else None,
            "unchecked": self.unchecked,
            "memory": _memory_json(self.held, self.measured.memory if self.measured else None),
            "seconds": asdict(self.seconds),
        }


def settlement_json(settled: Settlement | None) -> dict[str, Any]:
    """Terms, what no term asks for, and what is missing, and how many transfers were taken by size; nothing of each
    where nothing was settled."""
    if settled is None:
        return {"terms": [], "unexplained": [], "missing": [], "taken_by_size": 0}
    return {
        "terms": [term.to_json() for term in settled.terms],
        "unexplained": [transfer.to_json() for transfer in settled.unexplained],
        "missing": [term.to_json() for term in settled.missing],
        "taken_by_size": len(settled.taken_by_size),
    }


def _memory_json(held: Terms | None, memory: Memory | None) -> dict[str, Any] | None:
    predicted: dict[str, Any] | None = None
    if held:
        predicted = {
            "arguments": held[MemoryTerm.ARGUMENTS],
            "peak": sum(held.values()),
            "terms": {label(term): size for term, size in held.items()},
            "terms_by_id": held,
        }
    return {"predicted": predicted, "measured": memory and asdict(memory)} if held or memory else None
