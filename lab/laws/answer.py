"""What `lab law --json` prints. Imports no JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from msgspec import UNSET, UnsetType

from lab.core.codec import Count
from lab.core.ledger import Kind, Phase
from lab.laws.law import Law
from lab.laws.scale import Scale


@dataclass(frozen=True)
class TermValue:
    """A term at sizes: executions, payload and wire bytes of a step."""

    kind: Kind
    axes: tuple[str, ...]
    phase: Phase | None
    scope: str
    function: str
    origin: str | None
    dtype: str
    executions: Count
    payload_bytes: Count
    wire_bytes: Fraction


@dataclass(frozen=True)
class Value:
    """What a law comes to at sizes; see `lab.laws.evaluate.evaluate`."""

    sizes: Mapping[str, int]
    terms: tuple[TermValue, ...]
    payload_bytes: Count
    wire_bytes: Fraction
    by_axes: Mapping[str, Fraction]
    flops: Count | None
    memory: Mapping[str, Count]
    memory_at_least: Mapping[str, Count]
    beyond: tuple[str, ...]
    is_whole: bool

    @classmethod
    def of(cls, law: Law, sizes: Mapping[str, int]) -> Value:
        """Raises OutsideLaw where the law does not hold."""
        found = law.at(sizes)
        terms = tuple(TermValue(**term) for term in found.pop("terms"))
        return cls(sizes=dict(sizes), terms=terms, **found)


@dataclass(frozen=True)
class Answer(Law):
    """A law; `values` where it was evaluated, `scales` where it was asked how it grows."""

    values: tuple[Value, ...] | UnsetType = UNSET
    scales: tuple[Scale, ...] | UnsetType = UNSET

    @classmethod
    def of(cls, law: Law, values: Sequence[Value], scales: Sequence[Scale]) -> Answer:
        return cls(**vars(law), values=tuple(values) or UNSET, scales=tuple(scales) or UNSET)
