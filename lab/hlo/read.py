"""Reads a compiled program's text into a ledger."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from lab.core.known import known
from lab.core.ledger import Ledger, Transfer
from lab.core.note import Note, NoteKind
from lab.core.printable import printable
from lab.core.units import count
from lab.hlo import calls, collectives, flops, host_memory, overlap
from lab.hlo.agreement import lacks_dims, unknown_attributes
from lab.hlo.collectives import Reader, in_its_loops
from lab.hlo.flops import Work
from lab.hlo.frames import Frames
from lab.hlo.integrity import faults
from lab.hlo.names import scope
from lab.hlo.opcodes import is_known
from lab.hlo.origins import Origins
from lab.hlo.placement import Devices, Placement
from lab.hlo.rematerialized import repeated_transfers, repeats
from lab.hlo.shapes import arrays
from lab.hlo.text import Instruction, Module, parse
from lab.hlo.walk import Notes, Visit, Walk, walk
from lab.meshes import targets
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target

_PARTITIONS, _REPLICAS = "num_partitions", "replica_count"
_OF_DEVICES = ("replica_groups", "source_target_pairs")
_NO_START = ("-done", "-update", "recv")
_REACHING_OTHERS = ("uses_xla_collective_metadata = true", '"has_communication":true')
"""In the configuration of a Pallas kernel, of a GPU and of a TPU, that reaches other devices' memory."""
_BEFORE_PARTITIONING = ("Sharding", "SPMDFullToShardShape", "xla.sdy.")


@dataclass(frozen=True)
class Reading:
    """What a text holds.

    Attributes:
      ledger: what it communicates.
      reader: its parsed module, with what the transfers were read with.
      visits: the instruction of each transfer, in the ledger's order.
      products: every visited matrix product and convolution, with what it multiplies.
      origins: which line of a stack is shown.
    """

    ledger: Ledger
    reader: Reader
    visits: tuple[Visit, ...]
    products: tuple[tuple[Visit, Work], ...]
    origins: Origins


def read_text(
    text: str,
    *,
    source: str = "",
    axes: Axes | None = None,
    target: Target | None = None,
    devices: Devices | None = None,
) -> Ledger:
    """The ledger of a compiled module; arguments and errors are those of `read`."""
    with collector_paused():  # Until all but the ledger is gone again.
        return _read(text, source, axes, target, devices).ledger


def read(
    text: str,
    *,
    source: str = "",
    axes: Axes | None = None,
    target: Target | None = None,
    devices: Devices | None = None,
) -> Reading:
    """The ledger of a compiled module, with the instructions that it comes from.

    Args:
      text: what `compiled.as_text()` or an XLA dump gives, of CPU, GPU or TPU.
      source: how the ledger names it.
      axes: the mesh, in the order of `mesh.devices`; without it axes stay None.
      target: what it was compiled for; decides links and the number of slices.
      devices: what the mesh's own devices tell; without it, what `target` implies.
    Raises:
      UsageError: the text is no HLO, or the mesh has another size than the program has devices.
    """
    with collector_paused():
        return _read(text, source, axes, target, devices)


@contextmanager
def collector_paused() -> Iterator[None]:
    """A text makes an object a line and no cycles; the collector would visit them all again and again, for a sixth of
    the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _read(text: str, source: str, axes: Axes | None, target: Target | None, devices: Devices | None) -> Reading:
    module = parse(text)
    if not module.computations:
        raise UsageError(
            f"{source or 'the text'}: no HLO module found (no computation in it); expected the text of a compiled "
            "program, as compiled.as_text() gives it"
        )
    notes = _reading_notes(module)
    partitions = _partitions(module, notes)
    slices = _slices(partitions, axes, target, devices)
    size = partitions and partitions * slices
    _check_sizes(source or "the program", size, axes, target)
    placement = Placement(
        axes, size or (axes.size if axes else None), devices or _implied(target, axes), slices, _replicas(module)
    )
    has_metadata = "metadata={" in text
    reader = Reader(
        module,
        Frames(module.head),
        placement,
        differentiated=has_metadata and "transpose(jvp(" in text,
        has_metadata=has_metadata,
    )
    work = flops.products(module)
    communicating = [i for i, _ in module.having(collectives.OPCODES)]
    copies = host_memory.host_copies(module) if host_memory.HOST in text else {}
    reached = walk(module, frozenset((*communicating, *work, *copies)))
    found, origins = _transfers(reader, reached, work, notes)
    _note_promoted(found, target, notes)
    transfers = [transfer for transfer, _ in found]
    _note_unknown(module, text, notes)
    _note_unknown_operations(module, notes)
    _note_products(work, notes)
    _note_operand_types(module, notes)
    _note_kernels(text, notes)
    _note_foreign(module, size, notes)
    products = tuple((visit, work[visit.instruction]) for visit in reached.visits if visit.instruction in work)
    total, again = _flops(products, notes), repeats(products)
    if not transfers:
        _note_why_none(text, size, notes)
    notes |= reached.notes
    ledger = Ledger(
        transfers=tuple(transfers),
        source=source,
        target=None if target is None else str(target),
        devices=size,
        mesh=None if axes is None else axes.shape,
        flops=total,
        notes=tuple(notes),
        is_complete=not any(notes.values()),
        flops_in_branches=_by_scope([one for one in products if one[0].conditional]),
        flops_rematerialized=_by_scope(again),
        flops_padded=_by_scope(_with_zeros(products, again)),
        host_copies=host_memory.total(reached.visits, copies),
    )
    return Reading(ledger, reader, tuple(visit for _, visit in found), products, origins)


def _transfers(
    reader: Reader, reached: Walk, work: Mapping[Instruction, Work], notes: Notes
) -> tuple[list[tuple[Transfer, Visit]], Origins]:
    visits = [visit for visit in reached.visits if visit.instruction.opcode in collectives.OPCODES]
    _note_unreached(reader.module, visits, notes)
    visits = collectives.once(visits)
    named = [reader.named(visit) for visit in visits]
    stacks = list(map(reader.stack, visits, named))
    nameless = [visit for visit, stack in zip(visits, stacks, strict=True) if not stack]
    origins = Origins.of([*stacks, *(stack for visit in nameless for stack in reader.stacks_of_parts(visit))])
    found = [
        (reader.transfer(visit, speaker, stack, origins, notes), visit)
        for visit, speaker, stack in zip(visits, named, stacks, strict=True)
    ]
    again = repeated_transfers(visits)
    _note_rematerialized(again, notes)
    known_ones = [
        (replace(transfer, repeats=again[visit.instruction]) if visit.instruction in again else transfer, visit)
        for transfer, visit in found
        if transfer is not None
    ]
    if not overlap.is_gpu_schedule(reader.module, visits):
        return known_ones, origins
    starts = overlap.over_products(reader.module, {i for i, one in work.items() if not one.is_elementwise})
    return [
        (replace(transfer, is_over_products=overlap.is_over_products(visit, starts)), visit)
        for transfer, visit in known_ones
    ], origins


def _note_promoted(found: list[tuple[Transfer, Visit]], target: Target | None, notes: Notes) -> None:
    """Reductions whose operation XLA names as one of a wider type than the program's; where it joins several reductions
    whose results are added up (`all-reduce-reassociate`), also as that."""
    compiler = "the CPU compiler" if target and target.platform == Platform.CPU else "the compiler"
    reasons = {
        "_reassoc_promoted": "XLA adds up the narrower arrays of several reductions and reduces their sum, "
        "for twice the bytes of one of them",
        "_promoted": f"the program reduces a narrower type, and {compiler} promoted it",
    }
    widened: dict[str, list[str]] = {}
    for transfer, visit in found:
        reason = next((why for name, why in reasons.items() if name in visit.instruction.attributes), None)
        if reason:
            widened.setdefault(reason, []).append(transfer.dtype)
    for reason, dtypes in widened.items():
        run = "runs" if len(dtypes) == 1 else "run"
        sentence = f"{count(len(dtypes), 'reduction')} {run} in {' and '.join(sorted({*dtypes}))}: {reason}"
        notes[Note(NoteKind.PROMOTED_REDUCTIONS, sentence)] = False


def _note_rematerialized(again: Mapping[Instruction, str], notes: Notes) -> None:
    if again:
        sentence = (
            f"{count(len(again), 'transfer')} that the program asks for once and XLA does again where the result is "
            f"used again, since the step has no room to keep it, the first: {next(iter(again)).name}"
        )
        notes[Note(NoteKind.REMATERIALIZED_TRANSFERS, sentence)] = False


def _check_sizes(source: str, devices: int | None, axes: Axes | None, target: Target | None) -> None:
    if axes is not None and devices not in (None, axes.size):
        raise UsageError(
            f"{source} runs on {devices} devices but the mesh {axes} has {axes.size}; give a mesh of {devices}"
        )
    sizes = {size for size in (devices, axes.size if axes else None) if size is not None}
    if target is not None and target.devices is not None and sizes - {target.devices}:
        raise UsageError(
            f"{source} runs on {max(sizes)} devices but the target {target} has {target.devices}; name a target of "
            f"{max(sizes)}"
        )


def _flops(products: Sequence[tuple[Visit, Work]], notes: Notes) -> int | None:
    """None where no product can be counted."""
    counts, uncounted, ragged = list[int | None](), Counter[str](), Counter[int]()
    masked, stated = Counter[tuple[str, str]](), Counter[str]()
    for visit, work in products:
        if work.flops is None:
            uncounted[work.what] += 1
        elif work.flops and visit.executions is None:
            sentence = "some FLOPs are not counted, since the text does not say how often they run"
            notes[Note(NoteKind.UNKNOWN_FLOPS, sentence)] = False
        is_known = work.flops is not None and visit.executions is not None
        counts.append(known(work.flops) * known(visit.executions) if is_known else None)
        ragged[work.groups] += work.groups > 1
        masked[work.what, work.mask] += (counts[-1] or 0) * bool(work.mask)
        stated[work.what] += (counts[-1] or 0) * work.is_stated
    for what, times in uncounted.items():
        sentence = f"{what}: the FLOPs of {count(times, 'instruction')} cannot be read from the text; not counted"
        notes[Note(NoteKind.UNKNOWN_FLOPS, sentence)] = False
    for groups, times in (+ragged).items():
        sentence = (
            f"{count(times, 'ragged product')}: XLA multiplies each row with all {groups} groups, in all but its own "
            f"with zeros; counted as it runs, {groups} times the useful FLOPs"
        )
        notes[Note(NoteKind.RAGGED_PRODUCTS, sentence)] = False
    for (what, mask), taken in (+masked).items():
        sentence = (
            f"{what}: {taken:,} FLOP are of all scores; with its {mask} mask the kernel may leave out "
            f"{'half of them' if mask == 'causal' else 'some'}"
        )
        notes[Note(NoteKind.MASKED_FLOPS, sentence)] = False
    for what, taken in (+stated).items():
        sentence = f"{what}: {taken:,} FLOP are what the author of the kernel states (cost_estimate)"
        notes[Note(NoteKind.STATED_FLOPS, sentence)] = False
    counted = [one for one in counts if one is not None]
    if taken := sum(one for (visit, _), one in zip(products, counts, strict=True) if one and visit.conditional):
        sentence = (
            f"{taken:,} of {sum(counted):,} FLOP stand in branches of conditionals, all of which are counted as taken"
        )
        notes[Note(NoteKind.FLOPS_IN_BRANCHES, sentence)] = False
    return sum(counted) if counted or not counts else None


def _with_zeros(
    products: Sequence[tuple[Visit, Work]], again: Sequence[tuple[Visit, Work]]
) -> list[tuple[Visit, Work]]:
    """What multiplies zeros, of products that are not counted as done again."""
    counted = {id(visit) for visit, _ in again}
    return [
        (visit, replace(work, flops=work.padded))
        for visit, work in products
        if work.padded and id(visit) not in counted
    ]


def _by_scope(products: Sequence[tuple[Visit, Work]]) -> dict[str, int]:
    """FLOPs: the scope is the product's own, or that of the innermost call or loop around it that has one."""
    found = Counter[str]()
    for visit, work in products:
        if work.flops and visit.executions:
            around = (visit.instruction, *(site.instruction for site in reversed(visit.callers)))
            named = next((own for i in around if i.op_name and (own := scope(in_its_loops(i.op_name, visit)))), "")
            found[printable(named)] += work.flops * visit.executions
    return dict(found)


def _implied(target: Target | None, axes: Axes | None) -> Devices | None:
    """What a target alone tells of the devices."""
    if target is None or target.devices is None:
        return None
    domains = targets.domains(target, axes or Axes(("devices",), (target.devices,))).tolist()
    return Devices(tuple(domains), targets.link_names(target))


def _slices(partitions: int | None, axes: Axes | None, target: Target | None, devices: Devices | None) -> int:
    """How many copies of the module make up the program: on several TPU slices each runs one of its own."""
    if target is not None:
        return target.slices
    apart = len(set(devices.domains)) if devices else 1
    return apart if partitions and axes is not None and apart * partitions == axes.size else 1


def _partitions(module: Module, notes: Notes) -> int | None:
    """On how many devices the module runs: it says so, or its largest group does."""
    partitions, replicas = _said(module, _PARTITIONS), _said(module, _REPLICAS)
    if partitions is not None or replicas is not None:
        return (1 if partitions is None else partitions) * (1 if replicas is None else replicas)
    for source, found in (("its groups", _largest_group), ("the shapes of its gathers", _widest_gather)):
        if number := found(module):
            sentence = f"the module does not say on how many devices it runs; {number} is taken from {source}"
            notes[Note(NoteKind.DEVICES_ASSUMED, sentence)] = False
            return number
    return None


def _replicas(module: Module) -> int | None:
    replicas = _said(module, _REPLICAS)
    return 1 if replicas is None and _said(module, _PARTITIONS) is not None else replicas


def _said(module: Module, name: str) -> int | None:
    """A number on the module's line, which may be a hundred thousand characters long."""
    line = module.first_line
    at = line.find(f"{name}=")
    found = re.compile(rf"\b{name}=(\d{{1,9}})\b").search(line, at) if at >= 0 else None
    return int(found[1]) if found else None


def _largest_group(module: Module) -> int | None:
    """One more than the largest device id that a collective names."""
    texts = {collectives.groups_text(i) for i, _ in module.having(collectives.OPCODES)}
    ids = [max(row) for text in texts for row in collectives.listed_groups(text).members if row]
    return 1 + max(ids) if ids else None


def _widest_gather(module: Module) -> int | None:
    """How much larger a gather without groups makes its operand."""
    ratios = [
        sum(shape.bytes for shape in arrays(i.shape))
        // max(1, sum(shape.bytes for shape in flops.operand_shapes(i, c)))
        for i, c in module.having(collectives.OPCODES)
        if i.opcode == "all-gather"
    ]
    return max(ratios, default=0) or None


def _reading_notes(module: Module) -> Notes:
    notes: Notes = {}
    if module.is_cut:
        sentence = "the text ends early, inside a computation: only what it holds is listed"
        notes[Note(NoteKind.TEXT_CUT, sentence)] = True
    for fault in faults(module):
        notes[Note(NoteKind.TEXT_DAMAGED, fault)] = True
    if module.unread:
        sentence = f"{count(len(module.unread), 'line')} not understood, the first: {module.unread[0][:60]}"
        notes[Note(NoteKind.LINES_NOT_READ, sentence)] = True
    return notes


def _note_operand_types(module: Module, notes: Notes) -> None:
    """Bytes and FLOPs are of the types that stand with the operands, where some do."""
    for i, computation in module.having(collectives.OPCODES | flops.OPCODES):
        if "[" not in (literal := i.literal):
            continue
        defined = [computation.by_name.get(name) for name in i.operands]
        if None not in defined and arrays(literal) != tuple(s for one in defined if one for s in arrays(one.shape)):
            sentence = f"damaged text: an operand of {i.name} has another type than where it is defined"
            notes[Note(NoteKind.TEXT_DAMAGED, sentence)] = True


def _note_products(products: Iterable[Instruction], notes: Notes) -> None:
    """Those that lost what their FLOPs depend on."""
    for i in products:
        if i.opcode == "dot" and lacks_dims(i):
            notes[Note(NoteKind.TEXT_DAMAGED, f"damaged text: {i.name} does not say which dims it contracts")] = True
        elif i.opcode == "convolution" and (unknown := unknown_attributes(i)):
            sentence = f"{i.name}: an attribute that is not known here: {unknown[0][:40] or 'one without a name'}"
            notes[Note(NoteKind.UNKNOWN_ATTRIBUTE, sentence)] = False


def _note_unknown_operations(module: Module, notes: Notes) -> None:
    for opcode in module.opcodes:
        if not is_known(opcode):
            sentence = f"{opcode[:40]} is an operation that is not known here, taken for one that sends nothing"
            notes[Note(NoteKind.UNKNOWN_OPERATION, sentence)] = False


def _note_unreached(module: Module, visits: list[Visit], notes: Notes) -> None:
    reached = {visit.computation.name for visit in visits}
    left = [i.name for i, c in module.having(collectives.OPCODES) if c.name not in reached]
    if left:
        sentence = (
            f"{count(len(left), 'collective')} in computations that nothing here runs, not counted, the first: "
            f"{left[0]}"
        )
        notes[Note(NoteKind.UNREACHED_COLLECTIVES, sentence)] = True


def _note_unknown(module: Module, text: str, notes: Notes) -> None:
    """Instructions that name groups or pairs of devices and are no collective that is known here."""
    named = sum(text.count(f"{attribute}=") for attribute in _OF_DEVICES)
    if named <= sum(
        _OF_DEVICES[0] in i.tail or _OF_DEVICES[1] in i.tail for i, _ in module.having(collectives.OPCODES)
    ):
        return
    others = frozenset(code for code in module.opcodes if not code.endswith(_NO_START)) - collectives.OPCODES
    for i, _ in module.having(others):
        if any(f"{a}=" in i.attributes for a in _OF_DEVICES):
            sentence = f"{i.name}: {i.opcode} names devices and is not known here; not counted"
            notes[Note(NoteKind.UNKNOWN_COLLECTIVE, sentence)] = True


def _note_kernels(text: str, notes: Notes) -> None:
    if found := sum(map(text.count, _REACHING_OTHERS)):
        sentence = (
            f"{count(found, 'kernel')} with access to other devices' memory: the text does not say what such a kernel "
            "sends, so that it is not counted"
        )
        notes[Note(NoteKind.KERNEL_TRANSFERS, sentence)] = True


def _note_foreign(module: Module, devices: int | None, notes: Notes) -> None:
    """Calls of a user's or a library's own code, which may communicate on its own."""
    found = Counter(calls.target(i) for i, _ in module.having(calls.OPCODES) if calls.is_foreign(i))
    for target, times in found.items() if devices not in (None, 1) else ():
        sentence = (
            f"{target[:60]} is code of neither XLA nor JAX: what its {count(times, 'call')} may send is not known, so "
            "that the ledger is not complete"
        )
        notes[Note(NoteKind.FOREIGN_CALLS, sentence)] = True


def _note_why_none(text: str, devices: int | None, notes: Notes) -> None:
    if any(f'custom_call_target="{target}' in text for target in _BEFORE_PARTITIONING):
        sentence = (
            "no transfers: the program is annotated with shardings but not partitioned yet; read the text of the "
            "compiled program instead"
        )
        notes[Note(NoteKind.NOT_PARTITIONED, sentence)] = True
    elif devices in (None, 1):
        notes[Note(NoteKind.ONE_DEVICE, "no transfers: the module runs on one device")] = False
