"""A finding: what a program does that it need not, in a sentence, with what to try and the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from lab.core.ledger import Totals, Transfer


@dataclass(frozen=True)
class Finding:
    """One fault of a program.

    Attributes:
      kind: its short name, a row of `lab.diagnosis.table`.
      sentence: what happened, with array or operation and factor.
      advice: what to try.
      transfers: those that it concerns; bytes and executions are theirs, of one device in one step.
      origin: file and line of the user's code; of the transfers where none is given.
      memory_bytes: what one device holds for it and need not.
      seconds: what the transfers take at least, at the full rate of the target's links; None where the target is not
        known.
    """

    kind: str
    sentence: str
    advice: str
    transfers: tuple[Transfer, ...] = ()
    origin: str | None = None
    memory_bytes: int = 0
    seconds: float | None = None

    @property
    def totals(self) -> Totals:
        return totals_of_arrays(self.transfers)

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(axis for t in self.transfers for axis in t.axes or ()))

    @property
    def cost(self) -> tuple[Fraction, int]:
        """Wire bytes, then memory: the worst has the largest."""
        return self.totals.wire_bytes, self.memory_bytes

    @property
    def spans(self) -> tuple[str, ...]:
        """What each transfer spans, once: `fsdp` and `fsdp+tensor` are two."""
        return tuple(dict.fromkeys("+".join(t.axes) for t in self.transfers if t.axes))

    def json_object(self) -> FindingJson:
        totals = self.totals
        return FindingJson(
            kind=self.kind,
            sentence=self.sentence,
            advice=self.advice,
            origin=self.origin,
            axes=self.axes,
            sites=totals.sites,
            executions=None if any(t.executions is None for t in self.transfers) else totals.executions,
            payload_bytes=totals.payload_bytes,
            wire_bytes=totals.wire_bytes,
            lower_bound=totals.lower_bound,
            memory_bytes=self.memory_bytes,
            seconds=self.seconds,
            instructions=tuple(dict.fromkeys(t.instruction for t in self.transfers)),
        )


def totals_of_arrays(transfers: Sequence[Transfer]) -> Totals:
    """Of transfers that are one array each: those that the compiler moves in one instruction are moved in one
    execution."""
    executions = {t.instruction: t.executions or 0 for t in transfers}
    return replace(Totals.of(transfers), sites=len(executions), executions=sum(executions.values()))


@dataclass(frozen=True)
class FindingJson:
    """One fault of a program; bytes and executions are of one step of one device."""

    kind: str
    sentence: str
    advice: str
    origin: str | None
    axes: tuple[str, ...]
    sites: int
    executions: int | None
    payload_bytes: int
    wire_bytes: Fraction
    lower_bound: bool
    memory_bytes: int
    seconds: float | None
    instructions: tuple[str | None, ...]
