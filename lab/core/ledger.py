"""Transfers and ledgers: what one step of a sharded program communicates. Theory predicts a ledger, a compiled program
yields one; both are this type.

Byte conventions. Payload `n`, per execution: all_reduce: the reduced buffer; all_gather: the gathered result;
reduce_scatter: the full input; all_to_all: the local buffer; ragged_all_to_all: the smaller of its two buffers, more
than which devices neither send nor are sent in the mean; collective_permute, collective_broadcast, send_recv: the
message. Wire bytes are what one participating device sends per execution, with P devices in a group: all_reduce
2(P-1)/P n; all_gather, reduce_scatter, all_to_all (P-1)/P n; a message n; ragged_all_to_all n at most, how much depends
on the data. P = 1 sends nothing. What TPUs send to other slices is a send_recv: where the runtime makes a collective of
a group's messages, its wire bytes are that collective's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from fractions import Fraction
from itertools import chain, repeat
from math import isclose
from operator import attrgetter
from typing import Any, Final, Literal

from msgspec import UNSET, UnsetType

from lab.core import codec, display
from lab.core.codec import Count, Size
from lab.core.frame import Stack
from lab.core.note import Note, note_kinds
from lab.core.room import Room, RoomJson
from lab.meshes.errors import UsageError
from lab.meshes.platforms import LinkName
from lab.meshes.targets import parse_target

SCHEMA: Final = "sharding-lab/ledger/1"


class Kind(StrEnum):
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    RAGGED_ALL_TO_ALL = "ragged_all_to_all"
    COLLECTIVE_PERMUTE = "collective_permute"
    COLLECTIVE_BROADCAST = "collective_broadcast"
    SEND_RECV = "send_recv"


class Phase(StrEnum):
    """Of a train step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


class Overlap(StrEnum):
    """Whether a compiled program starts a transfer and waits for it later."""

    ASYNC = "async"
    SYNC = "sync"


_SHARE_OF_GROUP = {
    Kind.ALL_REDUCE: 2,
    Kind.ALL_GATHER: 1,
    Kind.REDUCE_SCATTER: 1,
    Kind.ALL_TO_ALL: 1,
}


def wire_bytes(kind: Kind, payload_bytes: int, group_size: int, network_kind: Kind | None = None) -> Fraction:
    """Bytes that one participating device sends per execution; see the module's docstring.

    Args:
      network_kind: what becomes of a message between slices. It is then the device's own buffer: of a gather its part.
    """
    if group_size <= 1:
        return Fraction(0)
    if network_kind is not None:
        whole = payload_bytes * (group_size if network_kind is Kind.ALL_GATHER else 1)
        return wire_bytes(network_kind, whole, group_size)
    if kind in _SHARE_OF_GROUP:
        return Fraction(_SHARE_OF_GROUP[kind] * (group_size - 1) * payload_bytes, group_size)
    return Fraction(payload_bytes)


@dataclass(frozen=True)
class Part:
    """One operand of a combined transfer: what `Transfer` tells of it alone. Its scope and phase are those of what
    makes it, where the text tells, and its origin is the line of that."""

    dtype: str
    payload_bytes: int
    padded_from_bytes: int | None = None
    is_masked_gather: bool = False
    scope: str = ""
    phase: Phase | None = None
    is_widened: bool = False
    origin: str | None = field(default=None, compare=False)


@dataclass(frozen=True)
class SubAxis:
    """Part of an axis of the mesh: groups of `size` of its `axis_size` devices, each `stride` after the one before.

    Stride 1 cuts an axis of 8 into {0,1,2,3} and {4,5,6,7}, stride 2 into {0,2,4,6} and {1,3,5,7}; an axis as a whole
    has stride 1 and all devices.
    """

    axis: str
    axis_size: int
    stride: int
    size: int

    def __str__(self) -> str:
        """`fsdp`, `fsdp[4 of 8]`, `fsdp[4 of 8, stride 2]`."""
        if self.size == self.axis_size:
            return self.axis
        return f"{self.axis}[{self.size} of {self.axis_size}{f', stride {self.stride}' * (self.stride > 1)}]"


@dataclass(frozen=True)
class Provenance:
    """How the value of a predicted transfer is computed: what compilers do to a transfer depends on that.

    Attributes:
      partial_products: products that are added before the value is reduced.
      stacked_layers: iterations of a loop whose values share one payload, each computed where the loop runs.
      iterations: iterations of a loop that computes the value and only stores it for later.
      micro_batches: passes whose values are added before the value is reduced.
      repeats: passes that need the same value, one after the other.
      steps: of a round, each of which computes and reduces the value anew.
      accumulated_in_loop: iterations of a loop that each reduce a value, only to add it to the sum of the others.
      product: dtype of the products that the value is summed or widened from, where it differs.
      sum_over: all axes that the value is summed over, where several transfers do it one after the other.
      sibling_reduction_axes: of a gradient, the axes of every sum in the same computation, a tuple for each.
      reduced_separately_over: axes that split different dims of what is summed, in groups, where there are several.
      uses: places of the program that use a weight and each give a gradient of it.
      saved_by_remat: it is recomputed from products that the remat policy saves.
      replicated_first: it is replicated before it is split, so that a lookup's operands are not moved instead.
      is_reshaped: a product that is reshaped before it is stored: where a partitioner sums the product, no loop stores
        the sum itself.
      is_matrix_product: a product of matrices over tokens, as gradients of matrices are, and those of norms are not.
      made_in: the pass that makes the value, of one that is summed after that pass.
      named_after: scopes of the operations for which a partitioner moves the value, where those have other names than
        the term; it names a transfer after them.
      dims: of the value on one device, before it is reduced; () where no rule needs them.
      scattered_dim: which of them a reduce-scatter splits.
    """

    partial_products: int = 1
    stacked_layers: int = 1
    iterations: int = 1
    micro_batches: int = 1
    repeats: int = 1
    steps: int = 1
    accumulated_in_loop: int = 1
    product: str | None = None
    sum_over: tuple[str, ...] = ()
    sibling_reduction_axes: frozenset[tuple[str, ...]] = frozenset()
    reduced_separately_over: tuple[tuple[str, ...], ...] = ()
    uses: int = 1
    saved_by_remat: bool = False
    replicated_first: bool = False
    is_reshaped: bool = False
    is_matrix_product: bool = False
    made_in: Phase | None = None
    named_after: tuple[str, ...] = ()
    dims: tuple[int, ...] = ()
    scattered_dim: int | None = None


@dataclass(frozen=True)
class _Stated:
    """What a transfer and its JSON have alike."""

    kind: Kind
    axes: tuple[str, ...] | None
    group_size: Count | None
    executions: Count | None
    dtype: str
    payload_bytes: Count
    groups: Count | None = None
    shift: int | None = None
    conditional: bool = False
    phase: Phase | None = None
    scope: str = ""
    origin: str | None = None
    op_name: str | None = None
    instruction: str | None = None
    overlap: Overlap | None = None
    link: LinkName | None = None
    sub_axes: tuple[SubAxis, ...] | None = None
    parts: tuple[Part, ...] = ()
    padded_from_bytes: Count | None = None
    is_masked_gather: bool = False
    is_widened: bool = False
    pairs: tuple[tuple[Count, Count], ...] | None = None
    network_kind: Kind | None = None
    is_over_products: bool | None = None
    repeats: str | None = None
    function: str = ""
    stack: Stack = field(default=(), compare=False)


@dataclass(frozen=True)
class Transfer(_Stated):
    """One communicating site of a program, per execution on one participating device.

    Attributes:
      kind: the collective.
      axes: mesh axes that it spans, in the mesh's order; None where no set of axes gives its groups or no mesh is
        known.
      group_size: devices in one group; of a permute, devices in one connected chain or ring (1: only self-pairs). None
        where the compiled text cannot tell; wire bytes are then unknown too.
      executions: times a step; None where the compiled text cannot tell.
      dtype: element type as XLA names it (`f32`, `bf16`); several joined by `+` in a combined transfer.
      payload_bytes: per execution, see the module's docstring.
      groups: how many groups run at once.
      shift: of a permute along one axis, the distance, modulo the axis size.
      conditional: it stands in a branch that may not run.
      scope: the user's named scopes, joined by `/`; in a predicted ledger the term of the formula.
      origin: file and line of the user's code, the one of its stack that tells it from the others of its ledger; of a
        combined transfer that has none, that of its first part.
      function: that the line stands in.
      stack: what ran when the transfer's operation was traced, from its innermost line outwards. Who calls a program
        makes no other transfer of it: stacks are not compared.
      link: the slowest that it crosses; None where no target is known.
      sub_axes: where no set of axes gives its groups, the parts of axes that do; None where none do either.
      parts: the operands of a combined transfer.
      padded_from_bytes: payload before the compiler padded it, where the text shows that it did.
      is_masked_gather: an all-reduce in which each device has its own part and zeros beside it: it gathers.
      is_widened: it moves in float32 what was of 16 bits, as the text shows.
      pairs: of a compiled permute in which not every device sends by the one `shift`: (source, target) in each of its
        groups, as places along its axes; None also where groups have other pairs.
      network_kind: of a send_recv between TPU slices, the collective that the runtime makes of the messages of a group;
        None where each has one receiver.
      is_over_products: products run between its start and where it is awaited, so that the schedule can hide it; None
        where the text is no GPU's schedule.
      repeats: the instruction that moved the same value before: XLA, not the program, asks for it again, so that the
        result of the first need not be kept.
      provenance: of a predicted transfer, how its value is computed.
    """

    provenance: Provenance = Provenance()

    @property
    def span(self) -> str:
        """The axes, or parts of axes, for people."""
        return span_text(self.axes, self.sub_axes)

    @property
    def scope_or_function(self) -> str:
        """Its named scopes; where it has none, and is no combination of several transfers, the function that it is
        written in: `Attention.out_projection()`."""
        return self.scope or (f"{self.function}()" if self.function and not self.parts else "")

    @property
    def arrays(self) -> int:
        """How many arrays one execution moves: several where the compiler combined their transfers into one."""
        return max(1, len(self.parts))

    @property
    def lower_bound(self) -> bool:
        """It sends at least what is known of it: its executions or its group are not."""
        return self.executions is None or self.group_size is None

    @property
    def upper_bound(self) -> bool:
        """Its bytes are the most that devices send in the mean: how many depends on the data."""
        return self.kind is Kind.RAGGED_ALL_TO_ALL

    @property
    def wire_bytes(self) -> Fraction | None:
        size = self.group_size
        return None if size is None else wire_bytes(self.kind, self.payload_bytes, size, self.network_kind)

    def split(self) -> tuple[Transfer, ...]:
        """The same communication, one transfer an operand, each in the scope that the text tells of it, for the name of
        a combination, and its function, are those of one of them, and in its phase or, where that is not told, in that
        of the combination; of its own line where the combination has no name.
        """
        if len(self.parts) < 2:
            return (self,)
        alone = replace(self, parts=(), function="")
        return tuple(
            replace(
                alone,
                **asdict(part)
                | {"phase": part.phase or self.phase, "origin": self.origin if self.stack else part.origin},
            )
            for part in self.parts
        )

    def json_object(self) -> TransferJson:
        return TransferJson(*_written(self), wire_bytes=self.wire_bytes)


@dataclass(frozen=True)
class TransferJson(_Stated):
    """A transfer; `payload_bytes` and `wire_bytes` are of one execution."""

    wire_bytes: Fraction | None = field(kw_only=True)

    def transfer(self) -> Transfer:
        return Transfer(*_written(self))


_written = attrgetter(*(each.name for each in fields(_Stated)))


@dataclass(frozen=True)
class Memory:
    """Bytes that one device holds, as XLA's own analysis reports them; `peak` is None where the backend gives none.

    Attributes:
      padding: of the arguments, what fills up the layout tiles of a TPU (T8).
      host_arguments, host_outputs, host_temporaries: in the host's memory, and in none of the others.
      on_chip: temporaries in a TPU's on-chip memory that XLA's peak counts in place of those in main memory, where they
        are more; 0 where it is not known.
    """

    arguments: int
    outputs: int
    temporaries: int
    aliased: int
    peak: int | None
    padding: int = 0
    host_arguments: int = 0
    host_outputs: int = 0
    host_temporaries: int = 0
    on_chip: int = 0

    @property
    def is_on_host(self) -> bool:
        """Some of it."""
        return any((self.host_arguments, self.host_outputs, self.host_temporaries))

    @property
    def stays(self) -> int:
        """Arguments and outputs, for the whole of a step."""
        return self.arguments + self.outputs - self.aliased

    @property
    def at_peak(self) -> int:
        """What the peak has beside arguments and outputs; 0 where there is no peak."""
        return 0 if self.peak is None else self.peak - self.stays


@dataclass(frozen=True)
class HostCopies:
    """Bytes that a step of one device copies to its host's memory and back; at least these where it is not known how
    often one runs."""

    to_host: int
    to_device: int
    lower_bound: bool = False


@dataclass(frozen=True)
class Totals:
    """Sums over one step of one device.

    Attributes:
      arrays: moved in these executions, of which one moves several where the compiler combined transfers.
      lower_bound: some executions or groups are unknown, and not in the sums.
      upper_bound: some bytes are the most that may be sent.
    """

    sites: int
    executions: int
    arrays: int
    payload_bytes: int
    wire_bytes: Fraction
    lower_bound: bool
    upper_bound: bool = False

    @classmethod
    def of(cls, transfers: Iterable[Transfer]) -> Totals:
        sites = executions = arrays = payload_bytes = 0
        lower_bound = upper_bound = False
        # Wire bytes are added up as integers where kind and group size are the same: fractions are slow.
        sent: dict[tuple[Kind, int, Kind | None], int] = {}
        for t in transfers:
            often = t.executions or 0
            payload = often * t.payload_bytes
            sites += 1
            executions += often
            arrays += often * (len(t.parts) or 1)
            payload_bytes += payload
            lower_bound = lower_bound or t.lower_bound
            upper_bound = upper_bound or t.upper_bound
            if t.group_size is not None:
                key = t.kind, t.group_size, t.network_kind
                sent[key] = sent.get(key, 0) + payload
        wire = [wire_bytes(kind, payload, size, network) for (kind, size, network), payload in sent.items()]
        whole = wire[0] if len(wire) == 1 else sum(wire, Fraction(0))
        return cls(sites, executions, arrays, payload_bytes, whole, lower_bound, upper_bound)

    @property
    def by_wire_bytes(self) -> tuple[float, Fraction]:
        """What totals are sorted by: floats are compared first, for fractions are slow."""
        return float(self.wire_bytes), self.wire_bytes

    def json_object(self) -> TotalsJson:
        return TotalsJson(
            self.sites,
            self.executions,
            self.payload_bytes,
            self.wire_bytes,
            self.arrays,
            True if self.lower_bound else UNSET,
            True if self.upper_bound else UNSET,
        )


@dataclass(frozen=True)
class TotalsJson:
    """Sums over one step of one device; `lower_bound` is there, and true, where some executions are unknown,
    `upper_bound` where some bytes are the most that may be sent."""

    sites: int
    executions: int
    payload_bytes: int
    wire_bytes: Fraction
    arrays: int | UnsetType = UNSET
    lower_bound: bool | UnsetType = UNSET
    upper_bound: bool | UnsetType = UNSET


@dataclass(frozen=True)
class Ledger:
    """The transfers of one step, with what else the compiled program tells.

    Attributes:
      transfers: one entry a site, in the program's order.
      source, target: where it comes from and what it was compiled for.
      devices: how many the program runs on, None where the text does not say.
      mesh: axis names and sizes in the order of `mesh.devices`, None where no mesh was given.
      flops: of matrix products and convolutions, a step of one device, loops counted; None in a predicted ledger.
      flops_in_branches: those of them that stand in branches, by scope, as often as if each ran every time.
      flops_rematerialized: those of them that XLA added where the step had no room, by scope.
      flops_padded: those of them that multiply zeros by which a compiler filled up both operands, by scope.
      host_copies: between the device's memory and its host's; None where there are none.
      notes: whatever could not be read, or was read with an assumption.
      is_complete: nothing that communicates is known to be left out; the notes tell what is.
      steps: that the program takes at once: everything is of a round of so many.
    """

    transfers: tuple[Transfer, ...]
    source: str = ""
    target: str | None = None
    devices: int | None = None
    mesh: Mapping[str, int] | None = None
    flops: int | None = None
    memory: Memory | None = None
    notes: tuple[str, ...] = ()
    is_complete: bool = True
    flops_in_branches: Mapping[str, int] = field(default_factory=dict)
    flops_rematerialized: Mapping[str, int] = field(default_factory=dict)
    flops_padded: Mapping[str, int] = field(default_factory=dict)
    host_copies: HostCopies | None = None
    steps: int = 1

    @property
    def flops_added(self) -> Mapping[str, int]:
        """By scope, those that a compiler added to the products of the program."""
        return Counter(self.flops_rematerialized) + Counter(self.flops_padded)

    def split(self) -> Ledger:
        """Combined operations as one transfer an operand."""
        return replace(self, transfers=tuple(part for t in self.transfers for part in t.split()))

    @property
    def unit(self) -> str:
        """What its numbers are of, for people."""
        return "step" if self.steps == 1 else "round"

    def of_round(self, steps: int) -> Ledger:
        """Of a round of so many steps, in one of which every branch runs, and in the others none; a program without
        transfers in branches is such a round itself."""
        if not any(t.conditional for t in self.transfers):
            return replace(self, steps=steps)

        def often(t: Transfer) -> int | None:
            return t.executions if t.conditional or t.executions is None else steps * t.executions

        in_branches = sum(self.flops_in_branches.values())
        flops = None if self.flops is None else steps * (self.flops - in_branches) + in_branches
        transfers = tuple(replace(t, executions=often(t)) for t in self.transfers)
        return replace(self, transfers=transfers, flops=flops, steps=steps)

    def totals(self) -> Totals:
        return Totals.of(self.transfers)

    def totals_by(self, key: Callable[[Transfer], str]) -> dict[str, Totals]:
        """Totals of the transfers that share `key(transfer)`, in order of first appearance."""
        names = dict.fromkeys(key(t) for t in self.transfers)
        return {name: Totals.of(t for t in self.transfers if key(t) == name) for name in names}

    def json_object(self) -> LedgerJson:
        by_kind, by_axes = self.totals_by(lambda t: str(t.kind)), self.totals_by(lambda t: t.span)
        totals = LedgerTotalsJson(
            {name: total.json_object() for name, total in by_kind.items()},
            {name: total.json_object() for name, total in by_axes.items()},
            self.totals().json_object(),
        )
        room, peak = self.room, self.memory.peak if self.memory else None
        return LedgerJson(
            schema=SCHEMA,
            source=self.source,
            target=self.target,
            devices=self.devices,
            mesh=self.mesh,
            transfers=tuple(t.json_object() for t in self.transfers),
            totals=totals,
            flops=self.flops,
            memory=self.memory,
            notes=self.notes,
            complete=self.is_complete,
            note_kinds=note_kinds(self.notes),
            flops_in_branches=self.flops_in_branches or UNSET,
            flops_rematerialized=self.flops_rematerialized or UNSET,
            flops_padded=self.flops_padded or UNSET,
            host_copies=self.host_copies or UNSET,
            steps=UNSET if self.steps == 1 else self.steps,
            room=UNSET if room is None or peak is None else room.json_object(peak),
        )

    @property
    def room(self) -> Room | None:
        """On a device of the target; None where it names no chip."""
        return Room.of(parse_target(self.target)) if self.target else None

    def to_json(self) -> dict[str, Any]:
        """The `sharding-lab/ledger/1` object."""
        found: dict[str, Any] = codec.to_json(self)
        return found

    @classmethod
    def from_json(cls, found: object) -> Ledger:
        """The inverse of `to_json`.

        Raises:
          UsageError: it is no such object, or its totals are not those of its transfers; the line names the key.
        """
        written = codec.from_json(LedgerJson, found)
        ledger = written.ledger()
        _check_totals(written.totals.all, ledger.totals())
        return ledger

    def __str__(self) -> str:
        return display.text(self)

    def _repr_html_(self) -> str | None:
        return display.html(self)


def _check_totals(stated: TotalsJson, own: Totals) -> None:
    """Wire bytes are fractions, which JSON rounds."""
    for name in ("sites", "executions", "payload_bytes", "wire_bytes"):
        there, here = getattr(stated, name), getattr(own, name)
        if there != here and not (name == "wire_bytes" and isclose(there, here)):
            added_up = f"its transfers add up to {float(here):,.12g}"
            raise UsageError(f"totals.all.{name}: found {float(there):,.12g}, but {added_up}")


@dataclass(frozen=True)
class LedgerTotalsJson:
    by_kind: Mapping[str, TotalsJson]
    by_axes: Mapping[str, TotalsJson]
    all: TotalsJson


@dataclass(frozen=True)
class LedgerJson:
    """What one program communicates in a step of one device, as `lab inspect --json` prints it."""

    schema: Literal["sharding-lab/ledger/1"]
    source: str
    target: str | None
    devices: Size | None
    mesh: Mapping[str, Size] | None
    transfers: tuple[TransferJson, ...]
    totals: LedgerTotalsJson
    flops: Count | None
    memory: Memory | None
    notes: tuple[str, ...]
    complete: bool
    note_kinds: tuple[str | None, ...] = ()
    flops_in_branches: Mapping[str, Count] | UnsetType = UNSET
    flops_rematerialized: Mapping[str, Count] | UnsetType = UNSET
    flops_padded: Mapping[str, Count] | UnsetType = UNSET
    host_copies: HostCopies | UnsetType = UNSET
    steps: Size | UnsetType = UNSET
    room: RoomJson | UnsetType = UNSET

    def ledger(self) -> Ledger:
        return Ledger(
            tuple(row.transfer() for row in self.transfers),
            source=self.source,
            target=self.target,
            devices=self.devices,
            mesh=self.mesh,
            flops=self.flops,
            memory=self.memory,
            notes=tuple(map(Note, chain(self.note_kinds, repeat(None)), self.notes)),
            is_complete=self.complete,
            flops_in_branches=self.flops_in_branches or {},
            flops_rematerialized=self.flops_rematerialized or {},
            flops_padded=self.flops_padded or {},
            host_copies=self.host_copies or None,
            steps=self.steps or 1,
        )


def axes_label(transfer: Transfer) -> str:
    """`data+fsdp` for the axes of a transfer, `?` where no set of axes gives its groups."""
    return "?" if transfer.axes is None else "+".join(transfer.axes)


def span_text(axes: tuple[str, ...] | None, sub_axes: tuple[SubAxis, ...] | None) -> str:
    """`data+fsdp[4 of 8]`: axes or parts of axes, for people; `?` where neither is known."""
    known = sub_axes if axes is None else axes
    return "?" if known is None else "+".join(map(str, known))
