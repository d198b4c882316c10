"""What `lab run --json` and `lab verify --json` print: `sharding-lab/run/1`. Imports no JAX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, Literal

from msgspec import UNSET, UnsetType

from lab.core.ledger import Memory, TransferJson
from lab.harness.claim import Claim
from lab.settle.settlement import RuleJson, TermJson

SCHEMA: Final = "sharding-lab/run/1"


@dataclass(frozen=True)
class NumericsJson:
    """How far results are from one device's, relative to the largest entry of each array or to each loss; null where
    that is not finite. `compared` says which results: of a training step those of `steps` in a row, and a weight
    relative to what float32 lets it differ by."""

    worst_relative_error: float | None
    tolerance: float
    steps: int | UnsetType | None = UNSET
    compared: tuple[str, ...] | UnsetType = UNSET


@dataclass(frozen=True)
class PredictedMemoryJson:
    """Bytes of one device at the fullest moment of a step by theory: `terms` by label, `terms_by_id` the same by id."""

    arguments: int
    peak: int
    terms: Mapping[str, int]
    terms_by_id: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class BufferJson:
    """Bytes at XLA's fullest moment of what ops of this scope make, or of copies of the argument of this name; empty
    where names tell none."""

    scope: str
    bytes: int


@dataclass(frozen=True)
class PartOffJson:
    """A part of a step in which XLA holds more or less at its fullest moment than the terms of it say.

    Attributes:
      part: its id, and `label` the same for people.
      terms: their ids.
      largest: the scopes that hold most of it.
    """

    part: str
    label: str
    predicted: int
    measured: int
    terms: tuple[str, ...]
    largest: tuple[BufferJson, ...]


@dataclass(frozen=True)
class MemoryJson:
    """Of one device; `off` is empty where the predicted peak is within 5 % of XLA's."""

    predicted: PredictedMemoryJson | None
    measured: Memory | None
    off: tuple[PartOffJson, ...] = ()


@dataclass(frozen=True)
class CompositionJson:
    """Of a step of several parallelisms, by theory: wire bytes that a device of each pipeline stage sends a step, its
    branches taken as often as the schedule says, and the same by axes; the transfers that are not repeated for further
    micro-batches; and where theory tells them the FLOPs of a device of the busiest stage by cause, of each stage by the
    schedule, and of a text whose branches all run every time. `compiled_flops_by_stages` are those of the compiled
    text, its branches taken as often as the schedule says."""

    sent_by_stages: tuple[Fraction, ...]
    once_a_step: tuple[str, ...]
    once_a_step_wire_bytes: Fraction
    flops: Mapping[str, Fraction]
    flops_by_stages: tuple[Fraction, ...] = ()
    flops_if_every_branch: Fraction | None = None
    compiled_flops_by_stages: tuple[Fraction, ...] = ()
    sent_by_axes: Mapping[str, tuple[Fraction, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class PublishedRunJson:
    """A training run that somebody published, and whose model, batch and mesh a step has.

    Attributes:
      source: of its numbers.
      target, mesh: its own; those of the step may be of more or fewer devices.
      step_s, mfu: seconds of a step, and share of the peak; null where they were not published.
      differs: what the step that is compiled does not do as theirs did.
    """

    name: str
    source: str
    target: str
    mesh: str
    step_s: float | None
    mfu: float | None
    differs: str


@dataclass(frozen=True)
class SecondsJson:
    """Wall time: of everything; of one program also of XLA's compilation and of reading the text."""

    all: float
    compile: float | UnsetType = UNSET
    read: float | UnsetType = UNSET


@dataclass(frozen=True)
class AnswerRowJson:
    """One number of an answer, or a word; where it is measured, what theory predicts for it."""

    what: str
    value: float | str
    unit: str
    predicted: float | None


@dataclass(frozen=True)
class OneDeviceJson:
    """The losses of one device, how far another order of the sequences moves them, and what a curve may differ by."""

    losses: tuple[float | None, ...]
    moved_by_order: tuple[float | None, ...]
    tolerances: tuple[float | None, ...]


@dataclass(frozen=True)
class RoutingTieJson:
    """A step at which rounding decides a choice of experts: a change of the routers' weights by `size` tips it."""

    step: int
    size: float


@dataclass(frozen=True)
class CurveJson:
    """A training under one layout in one style.

    Attributes:
      expected_losses: one device's, where it was run again with this layout's choice of experts at ties.
      is_on_curve: its losses are one device's, up to their tolerances.
    """

    layout: str
    style: str
    mesh: Mapping[str, int]
    verdict: str
    failure: str | None
    terms: tuple[TermJson, ...]
    unexplained: tuple[TransferJson, ...]
    missing: tuple[TermJson, ...]
    taken_by_size: int
    losses: tuple[float | None, ...]
    ties: tuple[RoutingTieJson, ...]
    worst_relative_error: float | None
    seconds: Mapping[str, float]
    is_on_curve: bool | UnsetType = UNSET
    did_not_happen: tuple[RuleJson, ...] | UnsetType = UNSET
    scope_not_stated: int | UnsetType = UNSET
    phase_not_stated: int | UnsetType = UNSET
    expected_losses: tuple[float | None, ...] | UnsetType = UNSET


@dataclass(frozen=True)
class RunResultJson:
    """An experiment in one style on one target; or a question, with `question` and `rows`, and `losses_by_name` if it
    trains; or a training, with
    `one_device`, `guessing_by_frequency`, `text_sha256`, `curves` and `left_out`, the layouts that have none of the
    styles asked for."""

    experiment: str
    style: str | None
    target: str | None
    mesh: Mapping[str, int] | None
    parameters: Mapping[str, Any]
    verdict: str
    terms: tuple[TermJson, ...]
    unexplained: tuple[TransferJson, ...]
    missing: tuple[TermJson, ...]
    claims: tuple[Claim, ...]
    numerics: NumericsJson | None
    memory: MemoryJson | None
    seconds: SecondsJson
    failure: str | None = None
    taken_by_size: int | UnsetType = UNSET
    did_not_happen: tuple[RuleJson, ...] | UnsetType = UNSET
    scope_not_stated: int | UnsetType = UNSET
    phase_not_stated: int | UnsetType = UNSET
    notes: tuple[str, ...] | UnsetType = UNSET
    note_kinds: tuple[str | None, ...] | UnsetType = UNSET
    unchecked: str | UnsetType | None = UNSET
    composition: CompositionJson | UnsetType = UNSET
    published: PublishedRunJson | UnsetType = UNSET
    question: str | UnsetType = UNSET
    rows: tuple[AnswerRowJson, ...] | UnsetType = UNSET
    one_device: OneDeviceJson | UnsetType = UNSET
    guessing_by_frequency: float | UnsetType = UNSET
    text_sha256: str | UnsetType | None = UNSET
    curves: tuple[CurveJson, ...] | UnsetType = UNSET
    left_out: tuple[str, ...] | UnsetType = UNSET
    losses_by_name: Mapping[str, tuple[float | None, ...]] | UnsetType = UNSET


@dataclass(frozen=True)
class RunJson:
    schema: Literal["sharding-lab/run/1"]
    results: tuple[RunResultJson, ...]
