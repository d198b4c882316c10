"""What one compile of a program at one size tells, as far as laws are made of it. Imports no JAX."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from lab.core.ledger import Kind, Ledger, Memory, Phase
from lab.diagnosis.program import Program
from lab.hlo.names import phase, scope
from lab.hlo.shapes import arrays
from lab.meshes.errors import UsageError


@dataclass(frozen=True)
class Site:
    """Transfers of one compile that nothing but their number tells apart; a combined one counts as one an operand.

    Attributes:
      axes: those that its groups span, or parts of axes (`fsdp[2 of 4]`); "?" where no axes give them.
      op_name, origin, function: of a transfer that was not combined: a combined one has those of one of its operands.
      executions: of all of them; None where the text cannot tell.
      is_padded: the compiler padded what it moves.
      shift: of a permute along one axis, modulo the axis' size.
      rank: of its payload among those of sites that are alike in all else, the largest first.
      is_widened, is_masked_gather: see `lab.core.ledger.Transfer`.
    """

    kind: Kind
    axes: tuple[str, ...]
    is_axes: bool
    phase: Phase | None
    scope: str
    function: str
    origin: str | None
    op_name: str | None
    dtype: str
    conditional: bool
    network_kind: Kind | None
    group_size: int | None
    payload_bytes: int
    executions: int | None
    is_padded: bool
    is_widened: bool
    is_masked_gather: bool
    shift: int | None = None
    rank: int = 0


@dataclass(frozen=True)
class Product:
    """Matrix products of one operation of the program, as one device runs them; `flops` are those of a step, None
    where the text does not tell."""

    op_name: str
    scope: str
    phase: Phase | None
    flops: int | None


@dataclass(frozen=True)
class Argument:
    """Bytes of one array that the step takes, or gives, on one device."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Split:
    """A dim that the program asks to be split over axes, or of an argument: the sizes that it has, in the program's
    order."""

    place: str
    axes: tuple[str, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Measurement:
    """One compile.

    Attributes:
      splits: by arguments, sharding constraints and `shard_map`.
      notes: what was not read in whole, or read with an assumption.
    """

    sites: tuple[Site, ...]
    products: tuple[Product, ...]
    arguments: tuple[Argument, ...]
    splits: tuple[Split, ...]
    flops: int | None
    memory: Memory | None
    notes: tuple[str, ...]
    is_complete: bool
    seconds: float = 0.0
    outputs: tuple[Argument, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """Why a program does not build or compile at a size.

    Attributes:
      notes: of the error; frames of the user's own files, where they raised it.
    """

    reason: str
    notes: tuple[str, ...] = ()

    def of(self, said: str) -> UsageError:
        """An error that says so, with its notes."""
        error = UsageError(said)
        for note in self.notes:
            error.add_note(note)
        return error


def sites(ledger: Ledger) -> Iterator[Site]:
    """In the ledger's order, those alike as one."""
    found = Counter[Site]()
    unknown = list[Site]()
    for transfer in ledger.transfers:
        alone = len(transfer.parts) < 2
        for part in transfer.split():
            spans = part.axes if part.axes is not None else tuple(map(str, part.sub_axes or ("?",)))
            site = Site(
                part.kind,
                spans,
                part.axes is not None,
                part.phase,
                part.scope,
                part.function if alone else "",
                part.origin if alone else None,
                part.op_name if alone else None,
                part.dtype,
                part.conditional,
                part.network_kind,
                part.group_size,
                part.payload_bytes,
                0,
                part.padded_from_bytes is not None,
                part.is_widened,
                part.is_masked_gather,
                part.shift,
            )
            if part.executions is None:
                unknown.append(site)
            found[site] += part.executions or 0
    alike: dict[Site, list[int]] = {}
    for site in found:
        alike.setdefault(replace(site, payload_bytes=0, is_padded=False), []).append(site.payload_bytes)
    for site, executions in found.items():
        payloads = sorted({*alike[replace(site, payload_bytes=0, is_padded=False)]}, reverse=True)
        rank = payloads.index(site.payload_bytes)
        yield replace(site, executions=None if site in unknown else executions, rank=rank)


def outputs(program: Program) -> Iterator[Argument]:
    """In the step's order."""
    entry = program.module.entry
    if entry is not None and entry.root is not None:
        for number, array in enumerate(arrays(entry.root.shape)):
            yield Argument(f"result {number}", array.bytes)


def products(program: Program) -> Iterator[Product]:
    """In the program's order, those of one operation as one."""
    has_backward = program.reading.reader.differentiated
    found: dict[str, int | None] = {}
    for visit, work in program.reading.products:
        name = visit.instruction.op_name or work.what
        flops = None if work.flops is None or visit.executions is None else work.flops * visit.executions
        known = found.get(name, 0)
        found[name] = None if flops is None or known is None else known + flops
    for name, flops in found.items():
        yield Product(name, scope(name), phase(name, has_backward), flops)
