"""What it would take to split products that all devices along an axis compute alike: one value is split along one of
its dims, and what is made of it followed to where that dim is summed over, or meets another one.

What the text does not tell counts as free, so that bytes are at least what such a split sends.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import chain
from math import prod

import numpy as np

from lab.core.known import known
from lab.diagnosis.cost import Load, pays, rated
from lab.diagnosis.dims import followed, outermost_part
from lab.diagnosis.flow import CALLS, Place
from lab.diagnosis.program import Program, dtype_of_product
from lab.diagnosis.slices import is_cut
from lab.hlo.flops import OPCODES, Work, operand_shapes, operand_types
from lab.hlo.groups import Groups
from lab.hlo.loops import Scope, trip_count
from lab.hlo.shapes import Shape, arrays
from lab.hlo.text import Computation, Instruction
from lab.hlo.walk import Visit
from lab.meshes.platforms import LinkName

_WHOLE, _ANYHOW = None, -1
Split = int | None
"""The dim along which a value is split, `_ANYHOW` where that may be chosen or is not known, `_WHOLE`."""
Value = Split | tuple["Value", ...]
_OTHER = "?"
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_DIM_NUMBERS = re.compile(r'"dot_dimension_numbers":(\{[^{}]*\})')
_NUMBERS = ("lhs_batch", "rhs_batch", "lhs_contracting", "rhs_contracting")
_LAYS_OUT = frozenset({"reshape", "bitcast", "transpose", "copy", "convert"})
_CUTS = frozenset({"slice", "dynamic-slice"})
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


@dataclass(frozen=True)
class Plan:
    """What a split saves and takes, of one device in a step."""

    spared: Mapping[str, int]
    sent: Fraction


def cheapest(program: Program, axes: tuple[str, ...], products: Sequence[tuple[Visit, Work]]) -> Plan | None:
    """Of splits of an argument, or of an operand of the largest product, the one that saves most among those that pay;
    None where none does."""
    chip, link = rated(program).hardware, link_along(program, axes)
    devices = prod(known(program.axes)[axis] for axis in axes)
    seeds = _seeds(program, axes, products, devices)
    plans = [_plan(program, axes, products, devices, *seed) for seed in seeds]
    paying = [plan for plan in plans if plan.spared and pays(Load(flops=plan.spared), Load({link: plan.sent}), chip)]
    return max(paying, key=lambda plan: (sum(plan.spared.values()), -plan.sent), default=None)


def _seeds(
    program: Program, axes: tuple[str, ...], products: Sequence[tuple[Visit, Work]], devices: int
) -> Iterator[tuple[Place, int]]:
    largest, _ = max(products, key=lambda each: (each[1].flops or 0) * (each[0].executions or 1))
    place = Place(largest.instruction, largest.computation)
    sides = [_farthest_back(program, side) for number in (0, 1) if (side := program.operand(place, number))]
    whole = [a for a in program.arguments if a.dims is not None and not {*axes} & {*chain.from_iterable(a.dims)}]
    alike = {(argument.local, argument.dims): argument.place for argument in reversed(whole)}
    seeds = {place.instruction: place for place in (*sides, *alike.values())}
    for seed in seeds.values():
        shapes = arrays(seed.instruction.shape)
        for dim, size in enumerate(shapes[0].dims if len(shapes) == 1 else ()):
            if size >= devices:
                yield seed, dim


def _farthest_back(program: Program, operand: Place) -> Place:
    """Where it is made, out of fusions and loops; of what is awaited, where that ends."""
    way = [place for place in program.flow.back(*operand) if len(arrays(place.instruction.shape)) == 1]
    return (way or [operand])[-1]


def _plan(
    program: Program,
    axes: tuple[str, ...],
    products: Sequence[tuple[Visit, Work]],
    devices: int,
    seed: Place,
    dim: int,
) -> Plan:
    way = _Followed(program, frozenset(axes), devices, seed, dim)
    if program.module.entry is not None:
        way.run(program.module.entry, ())
    spared = Counter[str]()
    for visit, work in products:
        if (visit.computation.name, visit.instruction.name) in way.split:
            done = (work.flops or 0) * (visit.executions or 1)
            spared[dtype_of_product(visit)] += done - done // devices
    return Plan(spared, way.sent)


def link_along(program: Program, axes: tuple[str, ...]) -> LinkName | None:
    """By which devices along these axes reach each other."""
    mesh, placement = known(program.axes), program.reading.reader.placement
    at = [mesh.names.index(axis) for axis in axes]
    positions = np.moveaxis(np.arange(mesh.size).reshape(mesh.sizes), at, range(-len(at), 0))
    rows = positions.reshape(-1, prod(mesh[axis] for axis in axes))
    return placement.link(Groups(tuple(tuple(map(int, row)) for row in rows)))


@dataclass
class _Followed:
    """One value of a program split along a dim, and what follows from that.

    Attributes:
      seed, dim: the value, and the dim.
      sent: bytes of one device.
      split: the products of which each device does a part, by computation and instruction.
      often: the computation that is looked at runs; 0 while it is not yet known how a loop's state is split.
    """

    program: Program
    axes: frozenset[str]
    devices: int
    seed: Place
    dim: int
    sent: Fraction = Fraction(0)
    split: set[tuple[str, str]] = field(default_factory=set)
    often: int = 1

    @cached_property
    def _holders(self) -> set[str]:
        """The computations that hold the seed, or run one that does."""
        found, pending = set[str](), [self.seed.computation]
        while pending:
            one = pending.pop()
            if one.name not in found:
                found.add(one.name)
                pending += [place.computation for place in self.program.flow.callers(one)]
        return found

    def run(self, computation: Computation, used: Sequence[Value]) -> Value:
        """The value of its root."""
        if not any(map(_is_split, used)) and computation.name not in self._holders:
            return _WHOLE
        values: dict[str, Value] = {}
        for i in computation.instructions:
            if i.opcode == "parameter":
                number = computation.parameters.get(i.name, len(used))
                value = used[number] if number < len(used) else _WHOLE
            else:
                value = self._value(i, computation, [values.get(name, _WHOLE) for name in i.operands])
            if i is self.seed.instruction:
                self._moved(value, self.dim, arrays(i.shape)[0])
                value = self.dim
            values[i.name] = value
        return values.get(computation.root.name, _WHOLE) if computation.root else _WHOLE

    def _value(self, i: Instruction, c: Computation, used: list[Value]) -> Value:
        if i.opcode == "tuple":
            return tuple(used)
        if i.opcode == "get-tuple-element":
            return _fitting(_element(used[0], i.attribute("index")), i)
        if i.opcode == "while":
            return self._loop(i, c, used[0])
        if i.opcode in CALLS:
            callee = self.program.module.called(c, i.attribute("calls") or i.attribute("to_apply"))
            return _WHOLE if callee is None else self.run(callee, used)
        if i.opcode == "conditional":
            branches = [self.program.module.computations.get(name) for name in i.callees]
            ways = [self.run(one, used[n + 1 : n + 2]) for n, one in enumerate(branches) if one is not None]
            return next(filter(_is_split, ways), _WHOLE)
        if not any(map(_is_split, used)) or i.opcode.endswith("-done"):
            return used[0] if used else _WHOLE
        if i.opcode.startswith(_COLLECTIVES) and self._spans(i, c):
            return _WHOLE
        if is_cut(self.program.flow, Place(i, c)):  # Into parts, of which each device has its own already.
            return _WHOLE
        if i.opcode in OPCODES and (letters := letters_of(i, c)) is not None:
            return self._product(i, c, [_joined(value) for value in used[:2]], letters)
        return self._same(i, c, [_joined(value) for value in used])

    def _spans(self, collective: Instruction, c: Computation) -> bool:
        """It brings together what devices along the axes have."""
        sites = self.program.sites
        its = [s for s in sites if s.visit.instruction is collective and s.visit.computation is c]
        return any(self.axes & set(site.transfer.axes or ()) for site in its)

    def _loop(self, loop: Instruction, c: Computation, state: Value) -> Value:
        """What is split after a round is split before it, as it can be cut beforehand."""
        body = self.program.module.called(c, loop.attribute("body"))
        if body is None:
            return _WHOLE
        size, often = len(arrays(loop.shape)), self.often
        values: list[Value] = list(state) if isinstance(state, tuple) else [state] * size
        self.often = 0
        for _ in range(size):
            after = self._elements(body, values)
            grown: list[Value] = [two if one is _WHOLE else one for one, two in zip(values, after, strict=True)]
            if grown == values:
                break
            values = grown
        self.often = often * (trip_count(loop, Scope(self.program.module, c)) or 1)
        for before, now, shape in zip(values, self._elements(body, values), arrays(loop.shape), strict=False):
            if not isinstance(before, tuple) and before is not _WHOLE:
                self._moved(now, before, shape)
        self.often = often
        return tuple(values)

    def _elements(self, body: Computation, state: list[Value]) -> list[Value]:
        after = self.run(body, [tuple(state)])
        return list(after) if isinstance(after, tuple) and len(after) == len(state) else [_WHOLE] * len(state)

    def _moved(self, value: Value, dim: int, shape: Shape) -> None:
        """An all-to-all, where it is split along another dim."""
        if value not in (_WHOLE, _ANYHOW, dim) and dim != _ANYHOW:
            self._send(Fraction(shape.bytes, self.devices))

    def _send(self, payload: int | Fraction) -> None:
        self.sent += self.often * payload * Fraction(self.devices - 1, self.devices)

    def _product(self, i: Instruction, c: Computation, used: list[Split], letters: list[list[str]]) -> Split:
        shapes, result = operand_shapes(i, c), arrays(i.shape)[0]
        names = [
            None if one is _WHOLE else _OTHER if one < 0 else of[one] for one, of in zip(used, letters[:2], strict=True)
        ]
        along = [name for name in dict.fromkeys(names) if name is not None]
        if len(along) == 2:
            along = [self._agreed(names, letters, shapes)]
        self.split.add((c.name, i.name))
        if along[0] in letters[2]:
            return letters[2].index(along[0])
        if along[0] != _OTHER:  # A part of the sum on each device.
            self._send(result.bytes)
        return _ANYHOW

    def _agreed(self, names: list[str | None], letters: list[list[str]], shapes: Sequence[Shape]) -> str:
        """Both operands are split, each otherwise: one is gathered, unless it may be split as the other is."""
        for one, other in ((0, 1), (1, 0)):
            if names[one] == _OTHER and (names[other] in letters[one] or names[other] == _OTHER):
                return names[other] or _OTHER
        gathered = min((0, 1), key=lambda n: (names[n] != _OTHER, shapes[n].bytes))
        self._send(shapes[gathered].bytes)
        return names[1 - gathered] or _OTHER

    def _same(self, i: Instruction, c: Computation, used: list[Split]) -> Split:
        """Of an operation that keeps dims apart."""
        result, types = arrays(i.shape), operand_types(i, c)
        shapes = operand_shapes(i, c)
        if len(shapes) != len(used) or not result:
            return _ANYHOW
        found = list[tuple[Split, Shape]]()
        for dim, shape, one in zip(used, shapes, types if len(types) == len(used) else [""] * len(used), strict=True):
            if dim is not _WHOLE:
                at = _ANYHOW if dim == _ANYHOW else self._after(i, dim, shape, one, result[0])
                found.append((at, shape))
        splits = [(at, shape) for at, shape in found if at is not _WHOLE]
        if not splits:
            return _WHOLE
        chosen = next((at for at, _ in splits if at != _ANYHOW), _ANYHOW)
        for at, shape in splits:
            self._moved(at, chosen, shape)
        return chosen

    def _after(self, i: Instruction, dim: int, shape: Shape, printed: str, result: Shape) -> Split:
        dims = [int(number) for number in re.findall(r"\d{1,9}", i.braced("dimensions") or "")]
        if i.opcode in _LAYS_OUT:
            is_reshaped = i.opcode in ("reshape", "bitcast")
            at = outermost_part(dim, printed, i) if is_reshaped else followed(dim, printed, [i])
            return _ANYHOW if at is None else at
        if i.opcode == "broadcast":
            return dims[dim] if dim < len(dims) else _ANYHOW
        if i.opcode == "reduce":
            if dim in dims:
                self._send(result.bytes)
                return _ANYHOW
            return dim - sum(one < dim for one in dims)
        is_kept = len(shape.dims) == len(result.dims) and shape.dims[dim] == result.dims[dim]
        if not is_kept and i.opcode in _CUTS:
            self._send(result.bytes)
            return _WHOLE
        return dim if is_kept else _ANYHOW


def _is_split(value: Value) -> bool:
    return any(map(_is_split, value)) if isinstance(value, tuple) else value is not _WHOLE


def _joined(value: Value) -> Split:
    return (_ANYHOW if _is_split(value) else _WHOLE) if isinstance(value, tuple) else value


def _element(value: Value, index: str | None) -> Value:
    if not isinstance(value, tuple):
        return value
    return value[int(index)] if index is not None and int(index) < len(value) else _joined(value)


def _fitting(value: Value, element: Instruction) -> Value:
    """Of what gives several values, a dim is that of one of them, which others may not have; a number has none."""
    rank = len(found[0].dims) if (found := arrays(element.shape)) else 0
    if isinstance(value, tuple) or value is _WHOLE or value < rank:
        return value
    return _ANYHOW if rank else _WHOLE


def letters_of(i: Instruction, c: Computation) -> list[list[str]] | None:
    """One for each dim of both operands and of the result of a product, the same where it is the same dim."""
    shapes, result = operand_shapes(i, c), arrays(i.shape)
    if labels := _LABELS.search(i.attributes):
        lhs, rhs, out = labels.groups()
        return [list(lhs), list(rhs.replace("i", "f")), list(out.replace("f", "o"))]
    if len(shapes) < 2 or not result:
        return None
    if found := _DIM_NUMBERS.search(i.extras.replace("\\", "")):
        numbers = json.loads(found[1])
        told = {name: [int(dim) for dim in numbers.get(f"{name}_dimensions", [])] for name in _NUMBERS}
    elif i.opcode == "dot":
        told = {name: [int(d) for d in re.findall(r"\d{1,9}", i.braced(f"{name}_dims") or "")] for name in _NUMBERS}
    else:
        return None
    batch = [f"b{n}" for n in range(len(told["lhs_batch"]))]
    sides, free = list[list[str]](), list[str]()
    for side, shape in zip(("lhs", "rhs"), shapes[:2], strict=True):
        own = dict(zip(told[f"{side}_batch"], batch, strict=False))
        own |= {dim: f"summed{n}" for n, dim in enumerate(told[f"{side}_contracting"])}
        sides.append([own.get(dim, f"{side}{dim}") for dim in range(len(shape.dims))])
        free += [name for dim, name in enumerate(sides[-1]) if dim not in own]
    return [*sides, [*batch, *free]]
