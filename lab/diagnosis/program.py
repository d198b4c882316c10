"""What a rule may look at: the ledger of a compiled program with the instructions behind it, its arguments, and what
the compiler said."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from math import prod
from typing import Any, NamedTuple

import numpy as np

from lab.core.frame import Stack
from lab.core.known import known
from lab.core.ledger import Kind, Ledger, Phase, Transfer
from lab.core.units import listed
from lab.diagnosis.account import Edit
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import Flow, Place, Use
from lab.diagnosis.remarks import Remark
from lab.diagnosis.remedy import Remedy, remedy_text
from lab.diagnosis.specs import Dims, axes_of_dims, spec_text
from lab.diagnosis.varying import Variation
from lab.hlo.buffers import LiveBuffer
from lab.hlo.collectives import is_named_after_argument
from lab.hlo.flops import operand_shapes
from lab.hlo.groups import Groups, UnreadGroups
from lab.hlo.names import phase
from lab.hlo.part_names import joined_names
from lab.hlo.read import Reading
from lab.hlo.shapes import Shape, arrays
from lab.hlo.text import Computation, Instruction, Module, split_outside_brackets
from lab.hlo.walk import Visit
from lab.meshes.axes import Axes
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target
from lab.redistribution.placement import Array, Placement

# Collectives that JAX writes where the user does; any other primitive in an op_name is an operation that the
# partitioner moves data for.
WRITTEN = frozenset(
    """all_gather all_gather_invariant all_gather_reduced psum psum2 psum_invariant pmax pmin ppermute pbroadcast
    all_to_all ragged_all_to_all reduce_scatter psum_scatter unreduced_psum unreduced_reduce_scatter pgather
    pcast pvary collective_permute""".split()
)
_SHARDING = re.compile(r"sharding=(\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})")
_CHAIN = re.compile(r'chain_id="\d+"')
_SUMS = (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER)
_MOVES = (Kind.ALL_GATHER, Kind.ALL_TO_ALL, Kind.COLLECTIVE_PERMUTE)
_GATHERS = frozenset({"all-gather", "all-gather-start"})
_AS_IT_IS = _GATHERS | {"collective-permute", "collective-permute-start"}
PRODUCTS = frozenset({"dot", "convolution", "custom-call"})
_FARTHEST = 200
_SHOWN = 3
_JOINED = re.compile(r"^(.*)/\(([^:]*):.*\)$")
_DIM = re.compile(r"\d{1,9}")
_ALIAS = re.compile(r"\((\d{1,9}), \{[\d, ]*\}(?:, (?:may|must)-alias)?\)")


@dataclass(frozen=True)
class Argument:
    """A parameter of the compiled program.

    Attributes:
      number: among the parameters.
      name: as JAX names it: `w`, `state['m']`.
      local: what one device holds.
      dims: the axes that split each dim; () where it is whole everywhere, None where that is not known.
    """

    number: int
    name: str
    local: Shape
    dims: Dims | None
    place: Place

    def whole(self, axes: Axes) -> tuple[int, ...]:
        split = (self.dims or ()) + ((),) * len(self.local.dims)
        return tuple(
            size * prod(axes[name] for name in names) for size, names in zip(self.local.dims, split, strict=False)
        )


@dataclass(frozen=True)
class Given:
    """An argument as the user gave it: what it holds, whether it is given up, and over how many devices it is split."""

    shape: tuple[int, ...]
    donated: bool
    parts: int


@dataclass(frozen=True)
class Change:
    """An argument, by its number, that is given back, placed as it was or otherwise."""

    argument: int
    array: Array
    before: Placement
    after: Placement


@dataclass(frozen=True)
class Wires:
    """Where the devices of a mesh stand in a torus, in the mesh's order, as they are and as JAX would put them."""

    torus: tuple[int, ...]
    stand: tuple[tuple[int, ...], ...]
    arranged: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Piece:
    """Operand `number` of a flat concatenation, its elements `start` to `stop`: GPU compilers pack what several sums
    reduce into one array."""

    number: int
    start: int
    stop: int


@dataclass(frozen=True)
class Site:
    """A transfer and its instruction; of a combined transfer, one operand: it is the compiler that combines, and rules
    ask what for.

    Attributes:
      number: of the operand of a combined transfer; None of a transfer by itself.
      op_name: of the instruction, of the one that speaks for it, or, where that only says what is moved or combined, of
        the one that it is moved for; of one operand of a combined sum, of what makes the operand.
      line: file and line of the same.
      phase: "forward", "backward" or "update", by the same.
      piece: what it is of its instruction's operand, where several are packed into one.
    """

    transfer: Transfer
    visit: Visit
    number: int | None
    op_name: str
    line: str | None
    phase: Phase | None
    piece: Piece | None = None

    @property
    def place(self) -> Place:
        return Place(self.visit.instruction, self.visit.computation)

    @property
    def key(self) -> tuple[str, str, int | None]:
        """What no other site has."""
        number = self.number if self.piece is None else self.piece.number
        return self.visit.computation.name, self.visit.instruction.name, number

    @property
    def result(self) -> Shape:
        """What one device holds after it."""
        shapes = arrays(self.visit.instruction.shape)
        if self.piece is not None:
            return Shape(shapes[-1].dtype, (self.piece.stop - self.piece.start,))
        return shapes[-1] if self.number is None else shapes[self.number - len(self.visit.instruction.operands)]

    @property
    def gathered(self) -> tuple[int, str]:
        """Of an all-gather, the dim along which it goes, and what it gives, as XLA prints it with its layout."""
        whole = split_outside_brackets(self.visit.instruction.shape.removeprefix("(").removesuffix(")"))[-1].strip()
        shapes = split_outside_brackets(whole.removeprefix("(").removesuffix(")"))
        dim = _DIM.search(self.visit.instruction.braced("dimensions") or "")
        return int(dim[0]) if dim else 0, shapes[min(self.number or 0, len(shapes) - 1)].strip()

    @property
    def primitive(self) -> str:
        """The operation that it serves: the last level of the op_name."""
        return self.op_name.rsplit("/", 1)[-1]

    @property
    def is_written(self) -> bool:
        """The user wrote it; the compiler put in the others."""
        return self.primitive in WRITTEN

    @property
    def kind(self) -> str:
        return str(self.transfer.kind)


class NarrowValue(NamedTuple):
    """A value of 8 bits.

    Attributes:
      dtype: by XLA's name.
      is_cast_before: it is moved as such by the traced program; else it is widened first.
      scale_bits: of scales that belong to some of its values each, for every value; None where that is not known.
      number_bytes: of scales that are one number on each device.
    """

    dtype: str
    is_cast_before: bool = False
    scale_bits: Fraction | None = None
    number_bytes: int = 0


@dataclass(frozen=True)
class Program:
    """A compiled program as rules see it.

    Attributes:
      ledger: what it communicates, holds and multiplies.
      reading: the text as `lab.hlo` has parsed it.
      axes: the user's mesh; None where it is not known.
      target: what it was compiled for; None where it is not known.
      given: the arguments as they were given; () for a text alone.
      remarks: what the compiler said.
      locate: gives where the devices stand; None but on TPUs.
      platform: what it was compiled for.
      held: gives the temporaries of the fullest moment, the largest first; none where no compiler is at hand.
      offloaded: values that policies of `jax.checkpoint` ask to be moved to the host, by name, with the line that names
        them.
      replicated: arguments that sharding constraints of the program replicate, by name; () where it was not traced.
      changes: results that are arguments, as they were placed and as they are; () of a text alone.
      attempt: compiles the program with changes; None where only its text is at hand.
      is_tried_elsewhere: changed, it is better compiled in another process.
      seconds: that it took to compile and to read.
      is_of_several: several processes compile it, and what one tries all must: XLA's compilers wait for one another.
      narrow: gives, of the name of a transfer and the elements of its result, the value of 8 bits that it moves by the
        traced program, or that what it moves was made of; None where there is none, or the program does not tell.
    """

    ledger: Ledger
    reading: Reading
    axes: Axes | None = None
    target: Target | None = None
    given: tuple[Given, ...] = ()
    remarks: tuple[Remark, ...] = ()
    locate: Callable[[], Wires | None] = lambda: None
    platform: str | None = None
    offloaded: Mapping[str, str | None] = field(default_factory=dict)
    replicated: tuple[str, ...] = ()
    held: Callable[[], tuple[LiveBuffer, ...]] = tuple
    changes: tuple[Change, ...] = ()
    attempt: Callable[[Remedy], Program] | None = None
    is_tried_elsewhere: bool = False
    seconds: float = 0.0
    is_of_several: bool = False
    narrow: Callable[[str, int], NarrowValue | None] = lambda _name, _elements: None

    @property
    def module(self) -> Module:
        return self.reading.reader.module

    @property
    def may_be_cpus(self) -> bool:
        """No compiler for GPUs or TPUs is known to have made it: what one for CPUs does is not to be blamed on the
        program."""
        return self.platform not in (Platform.GPU, Platform.TPU)

    @cached_property
    def flow(self) -> Flow:
        return Flow(self.module)

    @cached_property
    def variation(self) -> Variation:
        given = {argument.place.instruction.name: argument.dims for argument in self.arguments}
        return Variation.of(self.module, self.axes, given, zip(self.ledger.transfers, self.reading.visits, strict=True))

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """The transfers that cross a wire."""
        pairs = zip(self.ledger.transfers, self.reading.visits, strict=True)
        return tuple(site for t, visit in pairs if t.group_size != 1 for site in self._sites(t, visit))

    @cached_property
    def inserted(self) -> tuple[Site, ...]:
        """Those that the compiler put in."""
        return tuple(site for site in self.sites if not site.is_written)

    def _sites(self, transfer: Transfer, visit: Visit) -> list[Site]:
        if len(transfer.parts) < 2:
            return [self._site(transfer, visit)]
        if len(transfer.parts) == len(visit.instruction.operands):
            return [self._site(part, visit, number) for number, part in enumerate(transfer.split())]
        if pieces := self._pieces(transfer, visit):
            return [self._site(part, visit, piece=piece) for part, piece in zip(transfer.split(), pieces, strict=True)]
        return [self._site(transfer, visit)]

    def _pieces(self, transfer: Transfer, visit: Visit) -> list[Piece]:
        """What a sum packs into its one operand; [] where that is no concatenation of as many arrays as it combines."""
        packed = self._packed(Place(visit.instruction, visit.computation))
        shapes = operand_shapes(*packed) if packed is not None else ()
        if transfer.kind != Kind.ALL_REDUCE or len(shapes) != len(transfer.parts):
            return []
        stops = [*accumulate(shape.elements for shape in shapes)]
        starts = [0, *stops[:-1]]
        return [Piece(number, *ends) for number, ends in enumerate(zip(starts, stops, strict=True))]

    def _packed(self, place: Place) -> Place | None:
        operand = self.operand(place)
        source = None if operand is None else self.flow.source(*operand)
        return source if source is not None and source.instruction.opcode == "concatenate" else None

    def _site(self, transfer: Transfer, visit: Visit, number: int | None = None, piece: Piece | None = None) -> Site:
        named = self.reading.reader.named(visit)
        site = Site(transfer, visit, number, _first(named.op_name) if named else "", transfer.origin, None, piece)
        if site.key[-1] is not None and transfer.kind in _SUMS and not site.is_written:
            site = self._named_after_operand(site, named)
        says_what_is_moved = (
            number is not None or is_named_after_argument(visit.instruction) or site.op_name in self._names_behind(site)
        )
        if transfer.kind in _MOVES and not site.is_written and says_what_is_moved:
            served = self._served(site)
            site = (
                replace(site, op_name=_first(served.op_name), line=self.origin(served) or site.line) if served else site
            )
        return replace(site, phase=phase(site.op_name or None, self.is_differentiated))

    def _named_after_operand(self, site: Site, named: Instruction | None) -> Site:
        """One sum of a combination, by its own of the names that XLA joins, else by that of what makes its operand."""
        pack = site.place if site.piece is None else known(self._packed(site.place))
        joined, at = joined_names(named.op_name) if named else (), known(site.key[-1])
        operand = self.moving(site)
        back = () if operand is None else self.flow.back(*operand)
        maker = next((i for i, _ in back if "/" in (i.op_name or "")), None)
        made = _first(maker.op_name) if maker else site.op_name
        own = joined[at] if len(joined) == len(pack.instruction.operands) else made
        return replace(site, op_name=own, line=(self.origin(maker) if maker else None) or site.line)

    def _names_behind(self, site: Site) -> set[str]:
        """What newer XLA names a move after: the value that it moves."""
        operand = self.moving(site)
        return (
            set()
            if operand is None
            else {_first(i.op_name) for i, _ in self.flow.back(*operand, through=_GATHERS) if i.op_name}
        )

    def _served(self, site: Site) -> Instruction | None:
        """The named instruction that a moved value is moved for, in the forward pass where there are several."""
        users = [Place(use.instruction, use.computation) for use in self.uses(site) if use.instruction]
        after = [
            then.instruction
            for place in users
            if not place.instruction.op_name
            for then in self.flow.uses(*place)
            if then.instruction
        ]
        named = [i for i in (*(place.instruction for place in users), *after) if i.op_name]
        return min(named, key=lambda i: "transpose(" in (i.op_name or ""), default=None)

    @cached_property
    def is_differentiated(self) -> bool:
        return self.reading.reader.differentiated

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        entry = self.module.entry
        if entry is None:
            return ()
        parameters = [i for i in entry.instructions if i.opcode == "parameter" and i.literal.isdigit()]
        return tuple(sorted((self._argument(i, entry) for i in parameters if arrays(i.shape)), key=lambda a: a.number))

    def _argument(self, i: Instruction, entry: Computation) -> Argument:
        sharding = _SHARDING.search(i.extras)
        dims = axes_of_dims(sharding[1], self.axes) if sharding and self.axes else None
        return Argument(
            int(i.literal), (i.op_name or i.name).replace("\\'", "'"), arrays(i.shape)[0], dims, Place(i, entry)
        )

    @cached_property
    def _by_parameter(self) -> dict[str, Argument]:
        return {argument.place.instruction.name: argument for argument in self.arguments}

    def argument_at(self, place: Place) -> Argument | None:
        return self._by_parameter.get(place.instruction.name) if place.computation.is_entry else None

    def first_use(self, place: Place) -> str | None:
        """The first line at which something is done with a value."""
        steps = [i for use in self.flow.uses(*place) if use.instruction for i in (*use.path, use.instruction)]
        return next((line for i in steps if (line := self.origin(i))), None)

    def argument_of(
        self, instruction: Instruction, computation: Computation, through: frozenset[str] = frozenset()
    ) -> Argument | None:
        """The argument that a value is, laid out anew; None where something was done to it."""
        return self.argument_at(self.flow.source(instruction, computation, through))

    def operand(self, place: Place, number: int = 0) -> Place | None:
        operands = place.instruction.operands
        found = place.computation.by_name.get(operands[number]) if number < len(operands) else None
        return None if found is None else Place(found, place.computation)

    def moving(self, site: Site) -> Place | None:
        """The value that a transfer moves or reduces."""
        if site.piece is None:
            return self.operand(site.place, site.number or 0)
        packed = self._packed(site.place)
        return None if packed is None else self.operand(packed, site.piece.number)

    def moved(self, site: Site) -> str:
        """What a transfer moves, for people: an argument by its name and spec, else the result of an operation."""
        operand = self.moving(site)
        if operand is None:
            return "a value"
        source = self.flow.source(*operand, through=_AS_IT_IS)
        if argument := self.argument_at(source):
            return self.named(argument)
        made = operation(source.instruction.op_name) or operation(site.op_name)
        return f"the result of {made}" if made else "a value"

    def subject(self, site: Site) -> str:
        """The same, with the argument that it is made of, or whose gradient it is."""
        operand, moved = self.moving(site), self.moved(site)
        if operand is None or self.argument_of(*operand, _AS_IT_IS):
            return moved
        if twin := self.gradient_of(site):
            return f"the gradient of {self.named(twin)}"
        behind = self.sole_argument_behind(site)
        return f"{moved}, made of {self.named(behind)}" if behind else moved

    def gradient_of(self, site: Site) -> Argument | None:
        """The argument that a sum of the backward pass has the shape of, the first that is multiplied or looked up in
        where there are several; None where none has."""
        if site.transfer.kind not in _SUMS or not self.is_differentiated:
            return None
        alike = [a for a in self.arguments if sorted(a.local.dims) == sorted(site.result.dims) and site.result.dims]
        used = (a for a in alike if any(use.opcode in PRODUCTS | {"gather"} for use in self.flow.uses(*a.place)))
        return next(used, alike[0] if len(alike) == 1 else None)

    def split_over(self, axes: Iterable[str]) -> list[Argument]:
        """Arguments of which these axes split a dim."""
        over = set(axes)
        return [a for a in self.arguments if any(over & set(names) for names in a.dims or ())]

    def in_specs(self, *arguments: Argument | None) -> str:
        """`in_specs P() of w and P('data') of x in jax.shard_map`, of the first whose specs are known."""
        known_ones = {a.name: spec_text(a.dims) for a in arguments if a is not None and a.dims is not None}
        each = [f"{spec} of {name}" for name, spec in [*known_ones.items()][:_SHOWN]]
        return f"in_specs {listed(each)} in jax.shard_map" if each else ""

    def uses(self, site: Site, through: frozenset[str] = frozenset()) -> list[Use]:
        """What is done with what a transfer gives; TPU text prints an asynchronous one several times, and its result
        where it is waited for."""
        asked = site.key, through
        if asked not in self._uses:
            copies = self._copies(site.visit.instruction) or [site.place]
            self._uses[asked] = [
                use
                for copy in copies
                for use in (
                    self.flow.uses(*copy, through, site.number)
                    if site.piece is None
                    else self._uses_of_piece(copy, site.piece, through)
                )
            ]
        return self._uses[asked]

    def _uses_of_piece(self, packed: Place, piece: Piece, through: frozenset[str]) -> Iterator[Use]:
        """What is done with the slices that cut a piece out again."""
        for use in self.flow.uses(*packed):
            if use.opcode != "slice":
                yield use
            elif known(use.instruction).braced("slice") == f"[{piece.start}:{piece.stop}]":
                yield from self.flow.uses(known(use.instruction), use.computation, through)

    @cached_property
    def _uses(self) -> dict[tuple[Any, frozenset[str]], list[Use]]:
        return {}

    def _copies(self, instruction: Instruction) -> list[Place]:
        chain = _CHAIN.search(instruction.extras) if "chain_id=" in instruction.tail else None
        return self._chains[instruction.opcode, instruction.attribute("channel_id"), chain[0]] if chain else []

    @cached_property
    def _chains(self) -> dict[tuple[str, str | None, str], list[Place]]:
        """The copies of each asynchronous collective of TPU text, by opcode, channel and chain."""
        found: dict[tuple[str, str | None, str], list[Place]] = {}
        for computation in self.module.computations.values():
            for i in computation.instructions:
                if "chain_id=" in i.tail and (chain := _CHAIN.search(i.extras)):
                    found.setdefault((i.opcode, i.attribute("channel_id"), chain[0]), []).append(Place(i, computation))
        return found

    def behind(self, site: Site) -> str:
        """The largest argument that a moved value is made of, for people, or the product that it is made of; the value
        itself where there is neither."""
        found, products = self._made_of(site, until=PRODUCTS)
        weights = [
            weight
            for product in products
            for number in (0, 1)
            if (side := self.operand(product, number)) and (weight := self.argument_of(*side, through=_GATHERS))
        ]
        if found:
            return self.named(max(found, key=_weight_of))
        return f"the product with {self.named(max(weights, key=_weight_of))}" if weights else self.moved(site)

    def argument_behind(self, site: Site) -> Argument | None:
        """The largest argument that a moved value is made of; of split ones, where there are any."""
        return max(self._made_of(site)[0], key=_weight_of, default=None)

    def sole_argument_behind(self, site: Site) -> Argument | None:
        """The same where no other one of several dims is split over the axes that it moves along, so that it is surely
        the one."""
        behind = {a.number: a for a in self._made_of(site)[0] if len(a.local.dims) > 1}
        split = {a.number for a in self.split_over(site.transfer.axes or ())}
        return self.argument_behind(site) if len(split & behind.keys()) < 2 else None

    def _made_of(self, site: Site, until: frozenset[str] = frozenset()) -> tuple[list[Argument], list[Place]]:
        """The arguments that a moved value is made of, and the instructions of the opcodes `until` that end the way."""
        moving = self.moving(site)
        pending = [] if moving is None else [moving]
        seen: set[tuple[str, str]] = set()
        found: list[Argument] = []
        ends: list[Place] = []
        while pending and len(seen) < _FARTHEST:
            place = self.flow.source(*pending.pop())
            key = place.computation.name, place.instruction.name
            argument = self.argument_at(place)
            found += [] if argument is None else [argument]
            if place.instruction.opcode in until:
                ends.append(place)
            elif key not in seen:
                seen.add(key)
                pending += [
                    Place(place.computation.by_name[name], place.computation)
                    for name in place.instruction.operands
                    if name in place.computation.by_name
                ]
        return found, ends

    def named(self, argument: Argument) -> str:
        """`w f32[512,256] P('fsdp')`."""
        if self.axes is None or argument.dims is None:
            return f"{argument.name} {shape_text(argument.local)} a device"
        whole = replace(argument.local, dims=argument.whole(self.axes))
        return f"{argument.name} {shape_text(whole)} {spec_text(argument.dims)}"

    @cached_property
    def aliased(self) -> frozenset[int]:
        """Numbers of the parameters whose memory an output takes over."""
        return frozenset(int(number) for number in _ALIAS.findall(self._header("input_output_alias")))

    @cached_property
    def donors(self) -> frozenset[int]:
        """Numbers of the parameters that were given up and no output could be made in, as the text says."""
        return frozenset(int(number) for number in _ALIAS.findall(self._header("buffer_donor"))) - self.aliased

    def _header(self, name: str) -> str:
        head = self.module.head.partition("\n")[0]
        return head.partition(f"{name}={{")[2].partition(" }")[0]

    def origin(self, instruction: Instruction) -> str | None:
        """The line that is shown of it; see `Origins`."""
        stack = self.reading.reader.frames.stack(instruction.extras)
        label, _ = self.reading.origins.shown_line(stack)
        if label is not None:
            self._stacks.setdefault(label, stack)
        return label

    @cached_property
    def _stacks(self) -> dict[str, Stack]:
        """Of each line that was asked for, the first."""
        return {}

    def members(self, site: Site) -> Groups | None:
        """Who takes part, as positions in the mesh."""
        try:
            return self.reading.reader.members(site.visit.instruction)[0]
        except UnreadGroups:
            return None

    def between(self, site: Site) -> object:
        """The same of transfers between the same devices: along axes, or in groups that fill none."""
        return self.members(site) or site.key if site.transfer.axes is None else site.transfer.axes

    def spanned(self, site: Site) -> tuple[str, ...]:
        """The axes along which members of a group differ, where they fill no whole axis too."""
        if site.transfer.axes is not None or self.axes is None:
            return site.transfer.axes or ()
        groups = self.members(site)
        return () if groups is None else axes_within(groups, self.axes)

    def finding(
        self,
        kind: str,
        sentence: str,
        advice: str,
        *sites: Site,
        origin: str | None = None,
        memory_bytes: int = 0,
        needed_bytes: Fraction | None = None,
        flops: Mapping[str, int] | None = None,
        accessed_bytes: int = 0,
        remedy: Remedy = (),
        value: str = "",
        write: str | None = None,
        **better: Any,
    ) -> Finding:
        """The line of its largest transfer, and what that moves, where no others are given.

        Args:
          value: that the advice is about; write: the PartitionSpec to write for it, and where, which the remedy says
            where that is None.
          better: other fields of a Finding that say what the advice comes to.
        """
        transfers = tuple(site.transfer for site in sites)
        lines = [site for site in sites if site.line]
        origin = origin or (largest(lines).line if lines else None)
        stacks = [t.stack for t in transfers if t.origin == origin]
        value = value or (self.subject(largest(sites)) if sites else "")
        return Finding(
            kind,
            sentence,
            advice,
            transfers,
            origin,
            memory_bytes,
            needed_bytes=needed_bytes,
            flops=flops or {},
            accessed_bytes=accessed_bytes,
            stack=stacks[0] if stacks else self._stacks.get(origin or "", ()),
            remedy=remedy,
            edit=Edit(value, remedy_text(remedy) if write is None else write, origin) if value else None,
            **better,
        )


def _weight_of(argument: Argument) -> tuple[bool, int]:
    """Split arguments count before whole ones, large before small."""
    return argument.dims != (), argument.local.bytes


def dtype_of_product(visit: Visit) -> str:
    """Of its first operand; `f32` where the text does not tell."""
    shapes = operand_shapes(visit.instruction, visit.computation)
    return shapes[0].dtype if shapes else "f32"


def sent(sites: Iterable[Site]) -> Fraction:
    """Bytes of one device in a step; once where the text does not say how often."""
    each = ((s.transfer.wire_bytes or Fraction(0), s.transfer.executions) for s in sites)
    return sum((size * (1 if often is None else often) for size, often in each), Fraction(0))


def largest(sites: Sequence[Site]) -> Site:
    """The site that moves most in a step; of several the first."""
    return max(sites, key=lambda site: site.transfer.payload_bytes * (site.transfer.executions or 1))


@lru_cache(maxsize=512)
def axes_within(groups: Groups, axes: Axes) -> tuple[str, ...]:
    """The axes along which members of a group differ; groups with a member outside of the mesh do not count."""
    groups_inside = [row for row in groups.members if row and max(row) < axes.size]
    sizes = list(map(len, groups_inside))
    members = np.fromiter(chain.from_iterable(groups_inside), int, sum(sizes))
    firsts = np.repeat(np.array([row[0] for row in groups_inside], int), sizes)
    places = zip(axes.names, np.unravel_index(members, axes.sizes), np.unravel_index(firsts, axes.sizes), strict=True)
    return tuple(name for name, member, first in places if (member != first).any())


def _first(op_name: str | None) -> str:
    """Of several names that a GPU fusion or combination joins, the first."""
    first = (op_name or "").partition(";")[0]
    joined = _JOINED.match(first)
    return f"{joined[1]}/{joined[2]}" if joined else first


def shape_text(shape: Shape) -> str:
    return f"{shape.dtype}[{','.join(map(str, shape.dims))}]"


def operation(op_name: str | None) -> str:
    """The operation that an op_name ends with, without the levels above it; empty where it is none."""
    return (op_name or "").rsplit("/", 1)[-1]


def times(factor: float) -> str:
    """`8x`, `1.5x`."""
    return f"{factor:.3g}x"
