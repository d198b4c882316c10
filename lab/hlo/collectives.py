"""Instructions that communicate, as transfers of the ledger."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from lab.core.frame import Stack
from lab.core.ledger import Kind, Overlap, Part, Phase, SubAxis, Transfer
from lab.core.note import Note, NoteKind
from lab.core.printable import printable
from lab.hlo.agreement import types_disagree, unknown_attributes
from lab.hlo.flops import operand_shapes, operand_types
from lab.hlo.frames import Frames
from lab.hlo.groups import (
    GroupMode,
    Groups,
    UnreadGroups,
    axes_of_groups,
    read_groups,
    read_groups_of,
    read_permutation,
    sub_axes_of_groups,
)
from lab.hlo.masked import MAY_BE_PADDED, is_zero_padded_shard
from lab.hlo.names import phase, scope, within
from lab.hlo.origins import Origins
from lab.hlo.packing import PACKS, filled_from_bytes, pieces
from lab.hlo.part_names import joined_names, names_of_sums, operand_makers, operand_names, producers
from lab.hlo.placement import MEGASCALE_TARGET, Placement
from lab.hlo.promoted import are_widened
from lab.hlo.shapes import Shape, arrays, shapes_of
from lab.hlo.text import PARAMETER, Computation, Instruction, Module
from lab.hlo.walk import Notes, Site, Visit, operand_sites, outermost
from lab.meshes.platforms import LinkName

KINDS = {
    "all-reduce": Kind.ALL_REDUCE,
    "all-gather": Kind.ALL_GATHER,
    "reduce-scatter": Kind.REDUCE_SCATTER,
    "all-to-all": Kind.ALL_TO_ALL,
    "ragged-all-to-all": Kind.RAGGED_ALL_TO_ALL,
    "collective-permute": Kind.COLLECTIVE_PERMUTE,
    "collective-broadcast": Kind.COLLECTIVE_BROADCAST,
    "send": Kind.SEND_RECV,
}
OPCODES = frozenset(KINDS) | {f"{opcode}-start" for opcode in KINDS if opcode != "send"}
_NETWORK_KIND = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_NETWORK_KINDS = {kind.upper(): kind for kind in KINDS.values()}
_BY_PAIRS = ("collective-permute", "collective-permute-start", "send")
_WAITS = frozenset({"async-start", "call-start", "fusion-start"})
_MESH_GROUPS = re.compile(r"mesh\[[^\]]*\](?:,\s*device_ids=\([^{]*?\))?\s*\{[^}]*\}")
_LISTS = r"\{\s*(?:\{[^{}]*\}\s*(?:,\s*)?)*\}"
"""With blanks anywhere: XLA prints none, and reads any."""
_LISTED_GROUPS, _PAIRS = re.compile(_LISTS), re.compile(rf'source_target_pairs="?({_LISTS})')
_SLICE_SIZES = re.compile(r"slice_sizes=\{(\{[\d,]*\}(?:,\{[\d,]*\})*)\}")
_TELLING = MAY_BE_PADDED | PARAMETER | {"pad", "concatenate"}
"""Operations that tell of what they make more than its type, or stand for one elsewhere that does."""
_FILLING = frozenset({"bitcast", "custom-call", "get-tuple-element", "all-reduce"})
_GLOBAL_IDS = "use_global_device_ids=true"
_WITH_GLOBAL_IDS = frozenset({Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER})
"""Operations that may have that attribute."""


class _Span(NamedTuple):
    """Who takes part in a transfer; see `Transfer`."""

    groups: Groups | None
    axes: tuple[str, ...] | None
    shift: int | None
    link: LinkName | None
    pairs: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class Reader:
    """What every transfer of one module is read with."""

    module: Module
    frames: Frames
    placement: Placement
    differentiated: bool
    has_metadata: bool

    def transfer(
        self, visit: Visit, named: Instruction | None, stack: Stack, origins: Origins, notes: Notes
    ) -> Transfer | None:
        """One site; None for what moves nothing between devices (a transfer to the host).

        Args:
          named: see `named`.
          stack: see `stack`.
          origins: of all sites.
        """
        instruction = visit.instruction
        kind = KINDS[instruction.opcode.removesuffix("-start")]
        if kind is Kind.SEND_RECV and not (_moves_by_pairs(instruction) or _megascale_target(instruction)):
            sentence = f"{instruction.name}: a transfer to the host, not between devices; not counted"
            notes[Note(NoteKind.HOST_TRANSFER, sentence)] = False
            return None
        groups, axes, shift, link, pairs = self._span(instruction, notes)
        types = operand_types(instruction, visit.computation)
        self._note_disagreement(instruction, kind, types, groups, notes)
        if _is_reduce_scatter_fusion(visit, groups.size if groups else None):
            kind = Kind.REDUCE_SCATTER
        parts = self._parts(visit, kind, types, groups.size if groups else 1)
        parts = self._widened(parts, visit)
        op_name, (line, function) = instruction.op_name, origins.shown_line(stack)
        where, at = self._place(named.op_name, visit) if named and named.op_name else ("", None)
        parts = self._located_parts(self._named_parts(parts, visit), visit, origins)
        line = line or next((part.origin for part in parts if part.origin), None)
        dtype, payload_bytes, is_masked_gather, is_widened = _together_of(parts)
        return Transfer(
            kind=kind,
            axes=axes,
            group_size=groups.size if groups else None,
            executions=visit.executions,
            dtype=dtype,
            payload_bytes=payload_bytes,
            groups=groups.count if groups else None,
            shift=shift,
            conditional=visit.conditional,
            phase=at,
            scope=where,
            origin=line,
            op_name=op_name and printable(op_name),
            instruction=printable(instruction.name),
            overlap=Overlap.ASYNC if _is_async(visit) else Overlap.SYNC,
            link=link,
            sub_axes=self._sub_axes(groups) if groups and axes is None else None,
            parts=parts if len(parts) > 1 else (),
            padded_from_bytes=parts[0].padded_from_bytes if len(parts) == 1 else None,
            is_masked_gather=is_masked_gather,
            is_widened=is_widened,
            pairs=pairs,
            network_kind=_network_kind(instruction) if kind is Kind.SEND_RECV else None,
            function=function,
            stack=stack,
        )

    def _note_disagreement(
        self, i: Instruction, kind: Kind, operands: tuple[str, ...], groups: Groups | None, notes: Notes
    ) -> None:
        if unknown := unknown_attributes(i):
            sentence = f"{i.name}: an attribute that is not known here: {unknown[0][:40] or 'one without a name'}"
            notes[Note(NoteKind.UNKNOWN_ATTRIBUTE, sentence)] = False
        has_types = kind not in (Kind.SEND_RECV, Kind.RAGGED_ALL_TO_ALL) and "slice_sizes=" not in i.attributes
        if groups and has_types and types_disagree(kind, i.opcode, i.shape, operands, groups.size):
            sentence = f"damaged text: the type of {i.name} is not what its operands and groups give"
            notes[Note(NoteKind.TEXT_DAMAGED, sentence)] = True

    def _phase(self, visit: Visit, op_name: str | None) -> Phase | None:
        """By its name; but what a loop of the backward pass runs is backward: of equal bodies in both passes XLA keeps
        one, with the names of the forward pass."""
        found = phase(op_name, self.differentiated)
        if found != Phase.FORWARD:
            return found
        loops = [site.instruction for site in visit.callers if site.instruction.opcode == "while"]
        return Phase.BACKWARD if Phase.BACKWARD in (phase(loop.op_name, True) for loop in loops) else found

    def stack(self, visit: Visit, named: Instruction | None) -> Stack:
        """That of the instruction, else of its callers, else of the one that speaks for it; of that one first, where it
        is the one that it is moved for."""
        if not self.has_metadata:
            return ()
        speaker, callers = [named] if named else [], [s.instruction for s in reversed(visit.callers)]
        speakers = (
            visit.instruction,
            *(speaker + callers if is_named_after_argument(visit.instruction) else callers + speaker),
        )
        return next((stack for speaker in speakers if (stack := self.frames.stack(speaker.extras))), ())

    def _span(self, instruction: Instruction, notes: Notes) -> _Span:
        """Groups as mesh positions, with the axes that give them and, of a permutation, its shift; None where they are
        not understood."""
        try:
            key = _megascale_target(instruction) or (groups_text(instruction), _group_mode(instruction))
            if key not in self._spans:
                self._spans[key] = self._read_span(instruction, notes)
            return self._spans[key]
        except UnreadGroups as problem:
            sentence = f"{instruction.name}: groups not understood, so that its wire bytes are not counted: {problem}"
            notes[Note(NoteKind.UNKNOWN_GROUPS, sentence)] = True
            return _Span(None, None, None, None)

    @cached_property
    def _spans(self) -> dict[object, _Span]:
        """By the spelling of groups: programs have few, and many collectives."""
        return {}

    def _read_span(self, instruction: Instruction, notes: Notes) -> _Span:
        groups, are_pairs = self.members(instruction)
        if groups.are_assumed:
            sentence = (
                "groups name more replicas than the module has, as groups without a channel do, or with one and "
                "without use_global_device_ids; XLA runs no such program, and they are read as devices"
            )
            notes[Note(NoteKind.GROUPS_ASSUMED, sentence)] = False
        elif not groups.are_whole:
            what = "pairs send or receive twice" if are_pairs else "groups leave out or repeat devices"
            sentence = f"damaged text: {instruction.name}: {what}, or name some that are not there"
            notes[Note(NoteKind.TEXT_DAMAGED, sentence)] = True
        axes = self.placement.axes
        if are_pairs:
            permutation = read_permutation(groups.members, axes)
            link = self.placement.link(permutation.groups)
            return _Span(permutation.groups, permutation.axes, permutation.shift, link, permutation.pairs)
        found = axes_of_groups(groups, axes) if axes is not None else None
        if axes is not None and found is None:
            parts = self._sub_axes(groups)
            are = f": they are those of {'+'.join(map(str, parts))}" if parts else ""
            notes[Note(NoteKind.GROUPS_OF_NO_AXES, f"the groups {_short(groups)} are not those of whole axes{are}")] = (
                False
            )
        return _Span(groups, found, None, self.placement.link(groups))

    def _sub_axes(self, groups: Groups) -> tuple[SubAxis, ...] | None:
        axes = self.placement.axes
        return None if axes is None else sub_axes_of_groups(groups, axes)

    def members(self, instruction: Instruction) -> tuple[Groups, bool]:
        """Who takes part, as positions in the mesh, and whether they are pairs of source and target."""
        if target := _megascale_target(instruction):
            return self.placement.across_slices(target)
        are_pairs = _moves_by_pairs(instruction)
        spelled, mode = groups_text(instruction), _group_mode(instruction)
        groups = read_groups_of(spelled, mode, self.placement.in_slice, self.placement.replicas, are_pairs)
        return self.placement.on_mesh(groups), are_pairs

    def _parts(self, visit: Visit, kind: Kind, types: tuple[str, ...], group_size: int) -> tuple[Part, ...]:
        """Payload of every operand, by the conventions of the ledger."""
        instruction, computation = visit.instruction, visit.computation
        is_permute = kind is Kind.COLLECTIVE_PERMUTE and bool(shapes_of(types))
        if is_permute and (sizes := _SLICE_SIZES.search(instruction.attributes)):
            return _slices(sizes[1], _sources(instruction, computation)[:1])
        parts = _payloads(kind, instruction.opcode, instruction.shape, types, group_size)
        if kind is Kind.SEND_RECV:
            packed = _packed_parts(instruction.operands[:1], computation, self.module)
            return packed or _filled(parts, instruction.operands[:1], computation)
        if kind is Kind.ALL_REDUCE:
            parts = _filled(parts, instruction.operands, computation)
        opcodes = map(computation.by_name.opcode, instruction.operands)
        if kind not in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER) or _TELLING.isdisjoint(opcodes):
            return parts
        sources = operand_sites(visit, self.module)
        if kind is Kind.ALL_REDUCE and len(parts) == len(sources) == 1:
            source, made_in = sources[0]
            # Between slices of a TPU a flat sum may be scattered as a whole; its messages tell of its pieces.
            parts = _packed_parts((source.name,), made_in, self.module, frozenset({"concatenate"})) or parts
        if len(sources) != len(parts):
            return parts
        return tuple([self._as_made(part, kind, source) for part, source in zip(parts, sources, strict=True)])

    def _widened(self, parts: tuple[Part, ...], visit: Visit) -> tuple[Part, ...]:
        instruction = visit.instruction
        if "f32" not in [part.dtype for part in parts]:
            return parts
        widened = are_widened(instruction, visit.computation, self.module, "to_apply=" in instruction.wording)
        if len(parts) == 1:
            widened = [all(widened) and bool(widened)]
        if len(widened) != len(parts) or not any(widened):
            return parts
        return tuple(
            replace(part, is_widened=True) if was and part.dtype == "f32" else part
            for part, was in zip(parts, widened, strict=True)
        )

    def _named_parts(self, parts: tuple[Part, ...], visit: Visit) -> tuple[Part, ...]:
        """Each with what the text tells of it: its own of the joined names, which stand in the order of the operands;
        where some are left out, the one that what makes it has; where none are joined, that by which it is taken out of
        the result, or the nearest name of what makes it."""
        if len(parts) == 1 or not self.has_metadata:
            return parts
        own = visit.instruction.op_name
        joined = [self._place(name, visit) for name in joined_names(own)]
        if len(joined) == len(parts):
            return tuple(replace(part, scope=where, phase=at) for part, (where, at) in zip(parts, joined, strict=True))
        phases = {at for _, at in joined}
        unknown = "", phases.pop() if len(phases) == 1 else None
        made = operand_names(self.module, visit.instruction, visit.computation)
        places = [unknown for _ in parts]
        if len(made) == len(parts) and not (own and not joined and not scope(own)):
            places = [self._place(name, visit) if name and scope(name) else unknown for name in made]
        if joined:
            places = [place if place in joined else unknown for place in places]
        # Two operands of one name: one of them, or both, were made by an operation that is named after another.
        places = [place if places.count(place) == 1 else unknown for place in places]
        sums = [] if joined else names_of_sums(self.module, visit.instruction, visit.computation)
        if len(sums) == len(parts):
            places = [
                self._place(name, visit) if name and scope(name) else place
                for name, place in zip(sums, places, strict=True)
            ]
        return tuple(replace(part, scope=where, phase=at) for part, (where, at) in zip(parts, places, strict=True))

    def _located_parts(self, parts: tuple[Part, ...], visit: Visit, origins: Origins) -> tuple[Part, ...]:
        """Each with the line of what makes it."""
        stacks = self.stacks_of_parts(visit) if len(parts) > 1 else []
        if len(stacks) != len(parts):
            return parts
        return tuple(
            replace(part, origin=origins.shown_line(stack)[0]) for part, stack in zip(parts, stacks, strict=True)
        )

    def stacks_of_parts(self, visit: Visit) -> list[Stack]:
        """Of a combined transfer, what ran when each of its operands was traced."""
        made = operand_makers(self.module, visit.instruction, visit.computation) if self.has_metadata else []
        return [self.frames.stack(maker.extras) if maker else () for maker in made]

    def _place(self, op_name: str, visit: Visit) -> tuple[str, Phase | None]:
        op_name = in_its_loops(op_name, visit)
        return printable(scope(op_name)), self._phase(visit, op_name)

    def _as_made(self, part: Part, kind: Kind, made: Site) -> Part:
        """With what the operand tells of what compilers did to it."""
        source, computation = made
        if kind is Kind.REDUCE_SCATTER and source.opcode == "pad":
            return replace(part, padded_from_bytes=sum(s.bytes for s in operand_shapes(source, computation)[:1]))
        if kind is Kind.ALL_REDUCE and is_zero_padded_shard(source, computation, self.module):
            return replace(part, is_masked_gather=True)
        return part

    def named(self, visit: Visit) -> Instruction | None:
        """The instruction whose op_name speaks for this one: itself, its callers, or the nearest producer that has a
        name.

        Newer XLA names a move after the argument that it moves, the gather of a loop's result after the loop, and the
        sum that stands for a gather after nothing; then it is the operation that it is moved for.
        """
        if not self.has_metadata:
            return None
        is_moved = is_named_after_argument(visit.instruction) or _is_gather_named_after_loop(visit.instruction)
        if is_moved or self._is_nameless_gather(visit):
            served = next((user for user in _users(*outermost(visit)) if "/" in (user.op_name or "")), None)
            if served is not None:
                return served
        sites = [
            Site(visit.instruction, visit.computation),
            *(s for s in reversed(visit.callers) if s.instruction.opcode != "while"),
        ]
        nearest = itertools.chain(
            (site.instruction for site in sites), *(producers(i.operands, c, self.module) for i, c in sites)
        )
        return next((instruction for instruction in nearest if instruction.op_name), None)

    def _is_nameless_gather(self, visit: Visit) -> bool:
        instruction, sources = visit.instruction, operand_sites(visit, self.module)
        is_nameless_sum = (
            KINDS.get(instruction.opcode.removesuffix("-start")) is Kind.ALL_REDUCE and instruction.op_name is None
        )
        return (
            is_nameless_sum and bool(sources) and all(is_zero_padded_shard(*source, self.module) for source in sources)
        )


def _is_gather_named_after_loop(instruction: Instruction) -> bool:
    is_gather = KINDS.get(instruction.opcode.removesuffix("-start")) is Kind.ALL_GATHER
    return is_gather and (instruction.op_name or "").endswith("/while")


def in_its_loops(op_name: str, visit: Visit) -> str:
    """What the loops around a visited instruction make of a name there."""
    loops = (site.instruction.op_name or "" for site in visit.callers if site.instruction.opcode == "while")
    return within(op_name, tuple(loops))


def groups_text(instruction: Instruction) -> str:
    """The groups or pairs of an instruction as they are spelled; empty where it names none."""
    if _moves_by_pairs(instruction):
        pairs = _PAIRS.search(instruction.extras)
        return pairs[1] if pairs else instruction.extras.partition("source_target_pairs=")[2][:80]
    return _groups_in(instruction.wording)


@lru_cache(maxsize=1 << 12)
def _groups_in(wording: str) -> str:
    spelled = wording.partition("replica_groups=")[2]
    # What is no list ends at a comma and a blank, but for `mesh['x'=4], device_ids=([4,2]T(1,0)) {'x'}`.
    if spelled.startswith("mesh") and (mesh := _MESH_GROUPS.match(spelled)):
        return mesh[0]
    listed = _LISTED_GROUPS.match(spelled)
    return listed[0] if listed else spelled.partition(", ")[0]


def listed_groups(text: str) -> Groups:
    """Groups that need no number of devices to be read, () otherwise."""
    try:
        return read_groups(text, None)
    except UnreadGroups:
        return Groups(())


def _moves_by_pairs(instruction: Instruction) -> bool:
    return instruction.opcode in _BY_PAIRS and "source_target_pairs" in instruction.extras


def once(visits: Iterable[Visit]) -> list[Visit]:
    """The visits without repeats of one collective.

    TPU text prints an asynchronous collective in every fusion that carries a piece of it, under one channel and chain;
    the copy that starts it is the one that runs. An instruction reached on several ways keeps one visit, with the sum
    of its executions.
    """
    merged: dict[tuple[str, str], Visit] = {}
    for visit in visits:
        key = visit.computation.name, visit.instruction.name
        merged[key] = _together(merged[key], visit) if key in merged else visit
    chains: dict[tuple[str, ...], list[Visit]] = {}
    for key, visit in merged.items():
        chains.setdefault(chain(visit.instruction) or key, []).append(visit)
    return [visit for copies in chains.values() for visit in _starters(copies)]


def _together(one: Visit, other: Visit) -> Visit:
    conditional = one.conditional and other.conditional
    executions = None
    if one.executions is not None and other.executions is not None:
        executions = one.executions + other.executions
    return Visit(one.instruction, one.computation, one.callers, executions, conditional)


def chain(instruction: Instruction) -> tuple[str, ...] | None:
    """Which asynchronous collective of a TPU an instruction is a piece of; None of one that is whole."""
    if "chain_id=" not in instruction.tail:
        return None
    found = re.search(r'chain_id="(\d+)"', instruction.extras)
    channel = instruction.attribute("channel_id")
    return (instruction.opcode, channel, found[1]) if found and channel else None


def _starters(copies: list[Visit]) -> list[Visit]:
    if len(copies) == 1:
        return copies
    return [copy for copy in copies if starts_chain(copy.computation)] or copies[:1]


def starts_chain(computation: Computation) -> bool:
    """A fused computation in which an asynchronous collective of a TPU begins."""
    return any("AsyncCollectiveStart" in rest for rest in computation.instructions.rests)


def _is_async(visit: Visit) -> bool:
    """Whether it is started before it is waited for. A GPU start that XLA marks synchronous runs to its end at once."""
    if '"is_sync":true' in visit.instruction.tail:
        return False
    wrapped = any(site.instruction.opcode in _WAITS for site in visit.callers)
    return (
        visit.instruction.opcode.endswith("-start")
        or visit.instruction.opcode == "send"
        or wrapped
        or "chain_id=" in visit.instruction.tail
    )


def _megascale_target(instruction: Instruction) -> str | None:
    """Who meets over the data-centre network, as it is spelled."""
    if _moves_by_pairs(instruction) or "_xla_megascale_target=" not in instruction.tail:
        return None
    found = MEGASCALE_TARGET.search(instruction.extras)
    return found and (found[1] or found[2])


def _network_kind(instruction: Instruction) -> Kind | None:
    """What the runtime makes of messages over the data-centre network; None where each has one receiver."""
    found = _NETWORK_KIND.search(instruction.extras)
    return _NETWORK_KINDS.get(found[1]) if found else None


def _group_mode(instruction: Instruction) -> GroupMode:
    if "channel_id=" not in instruction.attributes:
        return GroupMode.REPLICAS
    if KINDS[instruction.opcode.removesuffix("-start")] not in _WITH_GLOBAL_IDS:
        return GroupMode.PARTITIONS
    has_global_ids = _GLOBAL_IDS in instruction.attributes
    return GroupMode.DEVICES if has_global_ids else GroupMode.REPLICAS_WITH_ALL_PARTITIONS


def _is_reduce_scatter_fusion(visit: Visit, group_size: int | None) -> bool:
    """TPU: an all-reduce, fused into one custom operation with the slice that each of P devices keeps, a P-th of the
    sum, is a reduce-scatter; nothing else may use the sum."""
    if visit.instruction.opcode != "all-reduce" or not visit.callers or not group_size:
        return False
    caller, inside = visit.callers[-1].instruction, visit.computation
    if not caller.opcode.startswith("fusion") or "kind=kCustom" not in caller.attributes:
        return False
    sums, slices = [visit.instruction], 0
    while sums:
        one = sums.pop()
        for user in inside.users.get(one.name, ()):
            if user.opcode in ("get-tuple-element", "bitcast"):
                sums.append(user)
            elif user.opcode == "dynamic-slice" and _bytes(user) * group_size == _bytes(one):
                slices += 1
            else:
                return False
    return slices > 0


def _bytes(instruction: Instruction) -> int:
    return sum(shape.bytes for shape in arrays(instruction.shape))


def _slices(sizes: str, source: tuple[Instruction, ...]) -> tuple[Part, ...]:
    """What a permute moves that works in place: slices of its first operand, as many of each buffer in it."""
    buffers = [shape for i in source for shape in arrays(i.shape)]
    rows = [tuple(map(int, filter(None, row.split(",")))) for row in sizes[1:-1].split("},{")]
    each = max(1, len(rows) // max(1, len(buffers)))
    dtypes = [shape.dtype for shape in buffers for _ in range(each)]
    return _as_parts((Shape(dtype, row) for dtype, row in zip(dtypes, rows, strict=False)), 1)


def _sources(instruction: Instruction, computation: Computation) -> tuple[Instruction, ...]:
    """What defines its operands, where the text shows it."""
    return tuple(source for name in instruction.operands if (source := computation.by_name.get(name)) is not None)


@lru_cache(maxsize=1 << 12)
def _payloads(kind: Kind, opcode: str, result: str, operands: tuple[str, ...], group_size: int) -> tuple[Part, ...]:
    """What the types alone say: lines repeat them."""
    shapes = shapes_of(operands)
    if not shapes or (kind is Kind.ALL_GATHER and not opcode.endswith("-start")):
        return _as_parts(arrays(result), 1)
    if kind is Kind.RAGGED_ALL_TO_ALL:
        shapes = (min(shapes[:2], key=lambda shape: shape.bytes),)
    if kind is Kind.ALL_TO_ALL and len(shapes) == group_size and len(set(shapes)) == 1:
        # A tuple has one piece for each member: the operands are one buffer.
        return (Part(shapes[0].dtype, sum(shape.bytes for shape in shapes)),)
    return _as_parts(shapes, group_size if kind is Kind.ALL_GATHER else 1)


def _packed_parts(
    names: tuple[str, ...], computation: Computation, module: Module, packed_by: frozenset[str] = PACKS
) -> tuple[Part, ...]:
    """Of one operand: what was combined into one flat array for it."""
    return tuple(
        Part(shape.dtype, shape.bytes + filling, padded_from_bytes=shape.bytes if filling else None)
        for name in names
        for shape, _, filling in pieces(name, computation, module, packed_by)
    )


def _filled(parts: tuple[Part, ...], names: tuple[str, ...], computation: Computation) -> tuple[Part, ...]:
    """With what their operands were filled up from."""
    if len(parts) != len(names) or _FILLING.isdisjoint(map(computation.by_name.opcode, names)):
        return parts
    own = [filled_from_bytes(name, computation) for name in names]
    return tuple([replace(part, padded_from_bytes=size) for part, size in zip(parts, own, strict=True)])


def _users(instruction: Instruction, computation: Computation, limit: int = 16) -> Iterator[Instruction]:
    """The instructions that this one feeds, nearest first."""
    queue, seen = [instruction.name], set[str]()
    while queue and len(seen) < limit:
        name = queue.pop(0)
        if name not in seen:
            seen.add(name)
            yield from computation.users.get(name, ())
            queue += [user.name for user in computation.users.get(name, ())]


def is_named_after_argument(instruction: Instruction) -> bool:
    """An argument's name has no levels."""
    name = instruction.op_name
    return name is not None and "/" not in name


def _together_of(parts: tuple[Part, ...]) -> tuple[str, int, bool, bool]:
    """Dtype, payload, whether they gather by a mask and whether they are widened, of all parts of a transfer."""
    if len(parts) == 1:  # Most by far.
        (part,) = parts
        return part.dtype, part.payload_bytes, part.is_masked_gather, part.is_widened
    dtype, payload_bytes = "+".join(dict.fromkeys(part.dtype for part in parts)), sum(p.payload_bytes for p in parts)
    return dtype, payload_bytes, all(p.is_masked_gather for p in parts), all(p.is_widened for p in parts)


def _as_parts(shapes: Iterable[Shape], times: int) -> tuple[Part, ...]:
    return tuple([Part(shape.dtype, shape.bytes * times) for shape in shapes])


def _short(groups: Groups, most: int = 8) -> str:
    shown = ", ".join(
        "{" + ",".join(map(str, row[:most])) + ("..." if len(row) > most else "") + "}" for row in groups.members[:most]
    )
    return shown + (", ..." if groups.count > most else "")
