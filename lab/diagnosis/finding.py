"""A finding: what a program does that it need not, in a sentence, with what to try and the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from msgspec import UNSET, UnsetType

from lab.core.codec import Count
from lab.core.frame import Stack
from lab.core.ledger import Totals, Transfer
from lab.diagnosis.account import Account, Edit, Way
from lab.diagnosis.remedy import Proof, Remedy
from lab.meshes.platforms import LinkName

OUT_OF_MEMORY = "out_of_memory"
SMALLEST_SHARE = 0.01
"""Of the step and of the memory: what costs less is a remark."""


@dataclass(frozen=True)
class Cost:
    """What the waste of a finding costs one device in a step.

    Attributes:
      wire_bytes: sent and not needed, by link; a link of None is not known.
      at_most: how much of it a better program would still send is not known.
      at_least: a better program sends at most what is counted as needed.
      seconds: at least, of the busiest of wires, products and memory at the chip's full rates; None where the target
        has no rates.
      share_of_step: of the least that the step takes at these rates; None also where a loop runs unknown times.
      share_of_memory: what is held needlessly, of what JAX takes of the chip's memory.
      share_at_most: of the step where no branch runs.
    """

    wire_bytes: Mapping[LinkName | None, Fraction] = field(default_factory=dict)
    at_most: bool = False
    seconds: float | None = None
    share_of_step: float | None = None
    share_of_memory: float | None = None
    share_at_most: float | None = None
    at_least: bool = False

    def json_object(self) -> CostJson:
        sent = {str(link or "unknown"): size for link, size in self.wire_bytes.items()}
        return CostJson(sent, self.at_most, self.seconds, self.share_of_step, self.share_of_memory, self.at_least)


@dataclass(frozen=True)
class CostJson:
    """What a finding wastes: bytes sent by link, `at_most` or `at_least` these where a better program's are not
    known, or known to be no more; seconds at least at the chip's full rates, and shares of the step's least and of the
    memory that JAX takes, null where the target has no rates."""

    wire_bytes: Mapping[str, Fraction]
    at_most: bool
    seconds: float | None
    share_of_step: float | None
    share_of_memory: float | None
    at_least: bool = False


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
      needed_bytes: of what the transfers send, what a better program would still send; None where that is not known.
      at_most: it needs no more than these bytes, and than the FLOPs and memory that it adds.
      added_bytes: that it sends more, by axes and link, less where negative; {} where it sends less of the transfers.
      added_flops, added_memory: that one device multiplies or holds for it.
      edit: what of the program to edit; None where it is not known.
      account: what it comes to; set where the whole program is known.
      flops: of products that a device need not compute, by dtype of their operands.
      accessed_bytes: that a device need not read or write in its memory.
      cost: of all that; set where the whole program is known.
      stack: what ran when the operation of that line was traced, from its innermost line outwards.
      remedy: what to try as changes that a program can make; () where it takes an edit.
      proof: what became of it; None where it was not asked for.
    """

    kind: str
    sentence: str
    advice: str
    transfers: tuple[Transfer, ...] = ()
    origin: str | None = None
    memory_bytes: int = 0
    seconds: float | None = None
    needed_bytes: Fraction | None = None
    at_most: bool = False
    added_bytes: Mapping[Way, Fraction] = field(default_factory=dict)
    added_flops: int = 0
    added_memory: int = 0
    edit: Edit | None = None
    account: Account | None = None
    flops: Mapping[str, int] = field(default_factory=dict)
    accessed_bytes: int = 0
    cost: Cost = Cost()
    stack: Stack = ()
    remedy: Remedy = ()
    proof: Proof | None = None

    @property
    def totals(self) -> Totals:
        return totals_of_arrays(self.transfers)

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(axis for t in self.transfers for axis in t.axes or ()))

    @property
    def is_remark(self) -> bool:
        """It is known to cost next to nothing, whichever branches run."""
        shares = [share for share in (self.cost.share_at_most, self.cost.share_of_memory) if share is not None]
        wastes = self.cost.wire_bytes or self.flops or self.accessed_bytes or self.memory_bytes
        return bool(shares and wastes) and max(shares) < SMALLEST_SHARE and self.kind != OUT_OF_MEMORY

    @property
    def is_in_vain(self) -> bool:
        """What could be tried of its advice saves nothing."""
        return self.proof is not None and self.proof.is_in_vain and self.kind != OUT_OF_MEMORY

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
            flops=self.flops or UNSET,
            waste=self.cost.json_object(),
            remark=self.is_remark,
            stack=self.stack,
            proof=UNSET if self.proof is None else self.proof,
            edit=self.edit or UNSET,
            account=self.account or UNSET,
        )


def totals_of_arrays(transfers: Sequence[Transfer]) -> Totals:
    """Of transfers that are one array each: those that the compiler moves in one instruction are moved in one
    execution."""
    executions = {t.instruction: t.executions or 0 for t in transfers}
    return replace(Totals.of(transfers), sites=len(executions), executions=sum(executions.values()))


@dataclass(frozen=True)
class FindingJson:
    """One fault of a program; bytes and executions are of one step of one device. A remark costs less than 1 % of the
    step and of the memory."""

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
    flops: Mapping[str, Count] | UnsetType = UNSET
    waste: CostJson | UnsetType = UNSET
    remark: bool = False
    stack: Stack = ()
    proof: Proof | UnsetType = UNSET
    edit: Edit | UnsetType = UNSET
    account: Account | UnsetType = UNSET
