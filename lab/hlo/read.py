"""Reads a compiled program's text into a ledger."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lab.hlo import collectives, flops
from lab.hlo.collectives import Placement, Reader
from lab.hlo.names import read_frames
from lab.hlo.shapes import arrays
from lab.hlo.text import Module, parse
from lab.hlo.walk import Visit, Walk, walk
from lab.ledger import Ledger, Transfer
from meshes import targets
from meshes.axes import Axes
from meshes.errors import Unusable
from meshes.targets import Target

_PARTITIONS = re.compile(r"\bnum_partitions=(\d+)")
_REPLICAS = re.compile(r"\breplica_count=(\d+)")
_BEFORE_PARTITIONING = ("Sharding", "SPMDFullToShardShape", "xla.sdy.")


def read_text(text: str, *, source: str = "", axes: Axes | None = None, target: Target | None = None, domains: Sequence[int] | None = None) -> Ledger:
    """The ledger of a compiled module.

    Args:
      text: what `compiled.as_text()` or an XLA dump gives, of CPU, GPU or TPU.
      source: how the ledger names it.
      axes: the mesh, in the order of `mesh.devices`; without it axes stay None.
      target: what it was compiled for; decides links and the number of slices.
      domains: host or slice of each position of the mesh, where it is not the one that `target` implies.
    Raises:
      Unusable: the text is no HLO, or the mesh has another size than the program has devices.
    """
    with _collector_paused():
        return _read(text, source, axes, target, domains)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A text makes an object a line and no cycles; the collector would visit them all again and again, for a sixth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _read(text: str, source: str, axes: Axes | None, target: Target | None, domains: Sequence[int] | None) -> Ledger:
    module = parse(text)
    if not module.computations:
        raise Unusable(f"{source or 'the text'}: no HLO module found (no computation in it); expected the text of a compiled program, as compiled.as_text() gives it")
    notes = _reading_notes(module)
    partitions = _partitions(module, notes)
    slices = _slices(partitions, axes, target, domains)
    devices = partitions and partitions * slices
    _check_sizes(source or "the program", devices, axes, target)
    reached = walk(module, collectives.OPCODES | flops.OPCODES)
    placement = _placement(axes, devices or (axes.size if axes else None), target, domains, slices)
    reader = Reader(module, read_frames(module.head), placement, differentiated="transpose(jvp(" in text, has_metadata="metadata={" in text)
    transfers = _transfers(reader, reached, notes)
    total = _flops(reached.visits, notes)
    if not transfers:
        _note_why_none(module, text, devices, notes)
    notes |= reached.notes
    mesh = None if axes is None else axes.shape
    return Ledger(tuple(transfers), source, None if target is None else str(target), devices, mesh, total, None, tuple(notes))


def _transfers(reader: Reader, reached: Walk, notes: dict[str, None]) -> list[Transfer]:
    visits = [visit for visit in reached.visits if visit.instruction.opcode in collectives.OPCODES]
    _note_unreached(reader.module, visits, notes)
    found = (reader.transfer(visit, notes) for visit in collectives.once(visits))
    promoted = sum(1 for visit in visits if "_promoted" in visit.instruction.attributes)
    if promoted:
        notes[f"{promoted} reductions run in f32 although the program reduces a narrower type: the CPU compiler promoted them"] = None
    return [transfer for transfer in found if transfer is not None]


def _check_sizes(source: str, devices: int | None, axes: Axes | None, target: Target | None) -> None:
    if axes is not None and devices not in (None, axes.size):
        raise Unusable(f"{source} runs on {devices} devices but the mesh {axes} has {axes.size}; give a mesh of {devices}")
    sizes = {devices, axes.size if axes else None} - {None}
    if target is not None and target.devices is not None and sizes - {target.devices}:
        raise Unusable(f"{source} runs on {max(sizes)} devices but the target {target} has {target.devices}; name a target of {max(sizes)}")


def _flops(visits: list[Visit], notes: dict[str, None]) -> int | None:
    total = 0
    for visit in visits:
        if visit.instruction.opcode not in flops.OPCODES:
            continue
        once = flops.flops(visit.instruction, visit.computation)
        if once is None:
            notes[f"{visit.instruction.name}: its FLOPs cannot be read from the text; not counted"] = None
        elif once and visit.executions is None:
            notes["FLOPs inside a loop of unknown length are not counted"] = None
        else:
            total += (once or 0) * (visit.executions or 0)
    return total


def _placement(axes: Axes | None, devices: int | None, target: Target | None, domains: Sequence[int] | None, slices: int) -> Placement:
    if domains is None and target is not None and target.devices is not None:
        domains = targets.domains(target, axes or Axes(("devices",), (target.devices,))).tolist()
    if domains is None or (target is None and slices == 1):
        return Placement(axes, devices)
    names = targets.link_names(target) if target is not None else ("ici", "dcn")
    return Placement(axes, devices, tuple(domains), names, slices)


def _slices(partitions: int | None, axes: Axes | None, target: Target | None, domains: Sequence[int] | None) -> int:
    """How many copies of the module make up the program: on several TPU slices each runs one of its own."""
    if target is not None:
        return target.slices
    apart = len(set(domains or ()))
    return apart if partitions and axes is not None and apart * partitions == axes.size else 1


def _partitions(module: Module, notes: dict[str, None]) -> int | None:
    """On how many devices the module runs: it says so, or its largest group does."""
    partitions, replicas = _PARTITIONS.search(module.head), _REPLICAS.search(module.head)
    if partitions or replicas:
        return int(partitions[1] if partitions else 1) * int(replicas[1] if replicas else 1)
    for source, found in (("its groups", _largest_group), ("the shapes of its gathers", _widest_gather)):
        if count := found(module):
            notes[f"the module does not say on how many devices it runs: {count} taken from {source}"] = None
            return count
    return None


def _largest_group(module: Module) -> int | None:
    """One more than the largest device id that a collective names."""
    texts = {collectives.groups_text(i) for c in module.computations.values() for i in c.instructions if i.opcode in collectives.OPCODES}
    ids = [max(row) for text in texts for row in collectives.listed_groups(text).members if row]
    return 1 + max(ids) if ids else None


def _widest_gather(module: Module) -> int | None:
    """How much larger a gather without groups makes its operand."""
    ratios = [
        sum(shape.bytes for shape in arrays(i.shape)) // max(1, sum(shape.bytes for shape in flops.operand_shapes(i, c)))
        for c in module.computations.values()
        for i in c.instructions
        if i.opcode == "all-gather"
    ]
    return max(ratios, default=0) or None


def _reading_notes(module: Module) -> dict[str, None]:
    notes: dict[str, None] = {}
    if module.is_cut:
        notes["the text ends early, inside a computation: what stands here is what it holds"] = None
    if module.unread:
        notes[f"{len(module.unread)} lines are no instruction, the first: {module.unread[0][:60]}"] = None
    return notes


def _note_unreached(module: Module, visits: list[Visit], notes: dict[str, None]) -> None:
    reached = {visit.computation.name for visit in visits}
    skipped = (c for name, c in module.computations.items() if name not in reached)
    left = [i.name for c in skipped for i in c.instructions if i.opcode in collectives.OPCODES]
    if left:
        notes[f"{len(left)} collectives stand in computations that nothing here runs, the first: {left[0]}; not counted"] = None


def _note_why_none(module: Module, text: str, devices: int | None, notes: dict[str, None]) -> None:
    if any(f'custom_call_target="{target}' in text for target in _BEFORE_PARTITIONING):
        notes["no transfers: the program is annotated with shardings but not partitioned yet; read the text of the compiled program instead"] = None
    elif devices in (None, 1):
        notes["no transfers: the module runs on one device"] = None
