"""What running an experiment came to. Imports no JAX."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from msgspec import UNSET, UnsetType

from lab.core import display
from lab.core.ledger import Ledger, Memory, Totals, Transfer
from lab.core.note import note_kinds
from lab.harness.claim import Claim
from lab.harness.schemas import (
    BufferJson,
    CompositionJson,
    MemoryJson,
    NumericsJson,
    PartOffJson,
    PredictedMemoryJson,
    PublishedRunJson,
    RunResultJson,
    SecondsJson,
)
from lab.programs.memory.parts import LABELS, PartOff
from lab.programs.memory.terms import MemoryTerm, Terms, label
from lab.settle import Settlement, Verdict
from lab.settle.settlement import SettlementJson
from lab.zoo.runs import PublishedRun


@dataclass(frozen=True)
class Numerics:
    """How far a sharded program's results are from one device's, relative to the largest entry of each array; a weight
    after training steps, to what float32 lets it differ by.

    Attributes:
      steps: how many training steps were run; None of a program that is none.
      compared: of what.
    """

    worst_relative_error: float
    tolerance: float
    steps: int | None = None
    compared: tuple[str, ...] = ("results",)


class WrongResults(Exception):
    """A sharded program computes something else than one device; the message says what."""


@dataclass(frozen=True)
class Seconds:
    """Wall time of this process: of XLA's compilation, of reading the text, and of everything."""

    compile: float
    read: float
    all: float


@dataclass(frozen=True)
class Composition:
    """What theory says of a step of several parallelisms beside its ledger, and what is compiled of that.

    Attributes:
      sent_by_stages: [stages]: wire bytes that a device of each stage sends a step, its branches taken as often as the
        schedule says.
      sent_by_axes: the same by axes, the most first.
      once_a_step: the transfers that are not repeated for further micro-batches.
      computed: None where theory does not tell it.
    """

    sent_by_stages: tuple[Fraction, ...]
    once_a_step: tuple[Transfer, ...]
    computed: Computed | None
    sent_by_axes: Mapping[str, tuple[Fraction, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Computed:
    """FLOPs of one device's step.

    Attributes:
      by_cause: of the busiest stage.
      by_stages: of each stage; of a step without stages, its own alone.
      every_branch: as many as a text has whose branches all run every time.
      compiled_by_stages: of the compiled text, its branches taken as often as the schedule says; empty where there is
        none, or it does not name what stands in branches.
      compiled: of the whole text, without what XLA rematerializes for lack of memory; None where there is none, or it
        does not tell.
    """

    by_cause: Mapping[str, Fraction]
    by_stages: tuple[Fraction, ...]
    every_branch: Fraction
    compiled_by_stages: tuple[Fraction, ...] = ()
    compiled: int | None = None

    @property
    def busiest(self) -> int:
        return self.by_stages.index(max(self.by_stages))

    @property
    def pairs(self) -> Iterator[tuple[Fraction, Fraction]]:
        """Compiled and theory's, all that can be compared."""
        if self.compiled is not None:
            yield Fraction(self.compiled), self.every_branch
        yield from zip(self.compiled_by_stages, self.by_stages, strict=False)


@dataclass(frozen=True)
class Result:
    """What one experiment showed in one style on one target.

    Attributes:
      measured: the compiled program's ledger; None where it failed to compile or gave wrong numbers.
      settlement: None where `measured` is.
      composition: None where the experiment has none.
      published: the run whose step it is, of the zoo; None where it is none's.
      held: bytes on one device at the fullest moment by theory, by the id of the term; None where it says nothing.
      off: parts of the step in which XLA's plan holds something else than `held`, where that is off by over 5 %.
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
    composition: Composition | None = None
    published: PublishedRun | None = None
    held: Terms | None = None
    off: tuple[PartOff, ...] = ()
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

    def json_object(self) -> RunResultJson:
        notes = self.measured.notes if self.measured else ()
        return RunResultJson(
            experiment=self.experiment,
            style=self.style,
            target=self.target,
            mesh=self.mesh,
            parameters=self.parameters,
            verdict=self.verdict,
            failure=self.failure,
            **vars(settlement_json(self.settlement)),
            claims=self.claims,
            notes=notes,
            note_kinds=note_kinds(notes),
            numerics=NumericsJson(**vars(self.numerics)) if self.numerics else None,
            unchecked=self.unchecked,
            composition=_composition(self.composition),
            published=_published(self.published),
            memory=_memory(self.held, self.measured.memory if self.measured else None, self.off),
            seconds=SecondsJson(self.seconds.all, self.seconds.compile, self.seconds.read),
        )


def settlement_json(settled: Settlement | None) -> SettlementJson:
    return settled.json_object() if settled else SettlementJson()


def _composition(found: Composition | None) -> CompositionJson | UnsetType:
    if found is None:
        return UNSET
    once = tuple(f"{t.scope} {t.kind}" for t in found.once_a_step)
    computed = found.computed
    return CompositionJson(
        found.sent_by_stages,
        once,
        Totals.of(found.once_a_step).wire_bytes,
        computed.by_cause if computed else {},
        computed.by_stages if computed else (),
        computed.every_branch if computed else None,
        computed.compiled_by_stages if computed else (),
        found.sent_by_axes,
    )


def _published(run: PublishedRun | None) -> PublishedRunJson | UnsetType:
    if run is None:
        return UNSET
    return PublishedRunJson(run.name, run.source, run.target, run.mesh, run.step_s, run.mfu, run.differs)


def _memory(held: Terms | None, memory: Memory | None, off: tuple[PartOff, ...]) -> MemoryJson | None:
    if not (held or memory):
        return None
    return MemoryJson(_predicted(held) if held else None, memory, tuple(map(_off, off)))


def _off(found: PartOff) -> PartOffJson:
    terms, largest = tuple(map(str, found.terms)), tuple(BufferJson(*each) for each in found.largest)
    return PartOffJson(str(found.part), LABELS[found.part], found.predicted, found.measured, terms, largest)


def _predicted(held: Terms) -> PredictedMemoryJson:
    return PredictedMemoryJson(
        arguments=held[MemoryTerm.ARGUMENTS],
        peak=sum(held.values()),
        terms={label(term): size for term, size in held.items()},
        terms_by_id={str(term): size for term, size in held.items()},
    )
