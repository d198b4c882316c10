"""Proofs that a program sends the least that it can: it sends nothing; its results are arguments that take as much to
be laid out anew; or each of its transfers is one that a strategy demands, and none is there twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from lab.book.collectives import all_gather_wire_bytes, all_reduce_wire_bytes, reduce_scatter_wire_bytes
from lab.core.known import known
from lab.core.ledger import Kind, Phase
from lab.core.units import count, exact, listed
from lab.diagnosis.flow import Place
from lab.diagnosis.kinds.accumulation import trips
from lab.diagnosis.program import Argument, Program, Site, sent
from lab.diagnosis.slices import ELEMENTWISE
from lab.hlo.names import phase
from lab.hlo.shapes import Shape, arrays, bits
from lab.meshes.errors import UsageError
from lab.redistribution.bound import least_bytes_together

_TO_RESULTS = ELEMENTWISE | {"dynamic-slice", "dynamic-update-slice", "pad", "all-reduce", "all-reduce-start"}
_WIRE_BYTES = {
    Kind.ALL_REDUCE: all_reduce_wire_bytes,
    Kind.REDUCE_SCATTER: reduce_scatter_wire_bytes,
    Kind.ALL_GATHER: all_gather_wire_bytes,
}
_PARTS = frozenset({"slice", "dynamic-slice"})
_DEEPEST = 8
_PASSES = (Phase.FORWARD, Phase.BACKWARD)


def least(program: Program) -> str | None:
    """Why no program that does the same sends less; None where nothing is proven."""
    ledger = program.ledger
    if not ledger.is_complete or any(t.executions is None or t.conditional or t.upper_bound for t in ledger.transfers):
        return None
    if not ledger.transfers:
        return "it sends nothing, and nothing sends less"
    return _of_changes(program) or _of_strategy(program)


def _of_changes(program: Program) -> str | None:
    """Whatever else it gives, these it has to move."""
    if program.axes is None or not program.changes:
        return None
    moved = [change for change in dict.fromkeys(program.changes) if change.before != change.after]
    if len({change.argument for change in moved}) < len(moved):
        return None  # What one result takes of an argument may serve the other.
    wire = program.ledger.totals().wire_bytes
    try:
        bound = least_bytes_together([(c.before, c.after, c.array) for c in moved], program.axes)
    except UsageError:  # Shards that are padded.
        return None
    if wire != bound:
        return None
    what = "its argument" if len(moved) == 1 else f"its {count(len(moved), 'argument')}"
    way = f" from {moved[0].before} to {moved[0].after}" if len(moved) == 1 else ""
    return f"{exact(wire)} B are the least by which {what} can be laid out anew{way}"


@dataclass(frozen=True)
class _Demand:
    """What a strategy demands of one weight: that it is gathered for a pass or after its update, or else that its
    gradient is summed.

    Attributes:
      is_scattered: the sum, over axes that do not shard the weight: its update is gathered again.
    """

    weight: Argument
    axes: frozenset[str]
    gathered_for: Phase | None
    wire_bytes: Fraction
    is_scattered: bool = False

    @property
    def update(self) -> tuple[frozenset[str], int]:
        """Of weights that are alike."""
        return self.axes, self.weight.local.elements


def _of_strategy(program: Program) -> str | None:
    """Data parallelism, its weights or their optimizer's state sharded or not: each gradient is summed once over each
    axis of the batch; sharded weights are gathered once a pass, updates of which each device makes a part once. All
    else that is sent are numbers, such as a loss."""
    if program.axes is None or not program.is_differentiated:
        return None
    numbers = [site for site in program.sites if site.kind == Kind.ALL_REDUCE and site.result.elements == 1]
    gathers = [site for site in program.sites if site.kind == Kind.ALL_GATHER]
    found = (
        *_gathered(program, gathers),
        *_each_once(program, [s for s in program.sites if s not in numbers + gathers], _gradient),
    )
    demands = [demand for demand in found if demand is not None]
    gathers_of = Counter(demand.weight.number for demand in demands if demand.gathered_for in _PASSES)
    gathered = set(gathers_of)
    updated = Counter(demand.update for demand in demands if demand.gathered_for == Phase.UPDATE)
    if not updated <= Counter(demand.update for demand in demands if demand.is_scattered):
        return None
    summed = {demand.weight.number for demand in demands if not demand.gathered_for}
    demanded = sum((demand.wire_bytes for demand in demands), sent(numbers))
    if not summed or not gathered <= summed or demanded != program.ledger.totals().wire_bytes:
        return None
    axes = [name for name in program.axes.names if any(name in demand.axes for demand in demands)]
    gradients = f"each of {count(len(summed), 'gradient')} is summed once"
    weights = f", each of {count(len(gathered), 'sharded weight')} is gathered once a pass" if gathered else ""
    weights += f", each of {count(updated.total(), 'updated weight')} is gathered once" if updated else ""
    beside = f", beside {count(len(numbers), 'number')} such as a loss" if numbers else ""
    # To keep it, as if nothing sharded it, would send less.
    again = " that keeps no gathered weight for the backward pass" if gathers_of.total() > len(gathered) else ""
    rows = [words for demand in demands if not demand.gathered_for and (words := _fewer_as_rows(program, demand))]
    dense = " that sums whole gradients" if rows else ""
    fewer = "".join(f"; {words}" for words in rows)
    return (
        f"it sends the least of data parallelism over {listed(axes)}{dense}{again}: {gradients}{weights}{beside}{fewer}"
    )


def _fewer_as_rows(program: Program, demand: _Demand) -> str:
    """What the gradient of a table would be, for people, were the rows gathered that each device looks up instead of
    the whole summed; "" where that is no less, or where a pass does anything else with the table."""
    found = _looked_up(program, demand.weight)
    if found is None:
        return ""
    devices = prod(known(program.axes)[name] for name in demand.axes)
    rows = all_gather_wire_bytes(found * devices, devices)
    if rows >= demand.wire_bytes:
        return ""
    whole = f"{exact(rows)} B instead of {exact(demand.wire_bytes)}"
    return (
        f"gathered as the rows that devices look up, and their numbers, that of {demand.weight.name} would be {whole}"
    )


def _looked_up(program: Program, table: Argument) -> int | None:
    """Bytes of the rows that a device takes of a table in a step, and of their numbers; None where lookups are not all
    that a pass does with it. Compilers for GPUs take the same rows once more where they are used again."""
    uses = program.flow.uses(*table.place, through=frozenset({"all-gather", "all-gather-start"}))
    in_pass = [use for use in uses if use.instruction and phase(use.instruction.op_name, True) in _PASSES]
    found = dict[object, int]()
    for use in in_pass:
        i, numbers = known(use.instruction), program.operand(Place(known(use.instruction), use.computation), 1)
        if use.opcode != "gather" or use.number != 0 or numbers is None:
            return None
        often = [trips(program, program.module.computations[body]) for body in program.flow.loops(use.computation)]
        rows = Shape(table.local.dtype, arrays(i.shape)[0].dims)  # TPUs take them narrower, to multiply.
        taken = rows.bytes + arrays(numbers.instruction.shape)[0].bytes
        found[_written(program, numbers), rows] = prod(one or 1 for one in often) * taken
    return sum(found.values()) or None


def _written(program: Program, value: Place, depth: int = 0) -> object:
    """The same of values that are computed alike, element by element, from the same."""
    source = program.flow.source(*value, through=frozenset({"broadcast"}))
    i = source.instruction
    if i.opcode == "constant":
        return i.literal
    if i.opcode not in ELEMENTWISE or depth == _DEEPEST:
        return source.computation.name, i.name
    sides = [program.operand(source, number) for number in range(len(i.operands))]
    return i.opcode, i.attributes, *(side and _written(program, side, depth + 1) for side in sides)


def _gathered(program: Program, sites: list[Site]) -> list[_Demand | None]:
    """Of each sharded argument, for each pass, and of each update; XLA may take an iteration out of a loop, so that
    several sites gather parts of one."""
    weights: dict[tuple[int, Phase | None], tuple[Argument, list[Site]]] = {}
    updates = [site for site in sites if site.phase == Phase.UPDATE]
    for site in (site for site in sites if site not in updates):
        operand = program.moving(site)
        weight = None if operand is None else program.argument_of(*operand, through=_PARTS)
        if weight is None or site.phase not in _PASSES:
            return [None]
        weights.setdefault((weight.number, site.phase), (weight, []))[1].append(site)
    return _each_once(program, updates, _update) + [
        _demand(program, some, weight, purpose) if _axes(some) <= _split(weight) else None
        for (_, purpose), (weight, some) in weights.items()
    ]


def _each_once(
    program: Program, sites: list[Site], demand_of: Callable[[Program, list[Site], Argument], _Demand | None]
) -> list[_Demand | None]:
    """Of each weight, over each axis once: two over an axis that lead to one result are parts of one stack, or one too
    many. Two all-reduces one after the other send more than one over the axes of both."""
    ways: dict[tuple[frozenset[str], frozenset[int]], list[Site]] = {}
    for site in sites:
        results = frozenset(use.number for use in program.uses(site, _TO_RESULTS) if use.opcode is None)
        ways.setdefault((_axes([site]), results), []).append(site)
    weights = [argument for argument in program.arguments if is_weight(program, argument)]
    found: list[_Demand | None] = []
    summed: dict[int, frozenset[str]] = {}
    reached: dict[int, frozenset[str]] = {}
    reduced: set[int] = set()
    for (axes, results), some in ways.items():
        is_again = any(axes & reached.get(result, frozenset()) for result in results)
        is_all_reduced = any(site.transfer.kind == Kind.ALL_REDUCE for site in some)
        is_again |= is_all_reduced and bool(results & reduced)
        alike = [
            demand
            for weight in weights
            if results and not is_again and not axes & summed.get(weight.number, frozenset())
            if (demand := demand_of(program, some, weight)) is not None
        ]
        found.append(alike[0] if alike else None)
        if alike:
            number = alike[0].weight.number
            summed[number] = summed.get(number, frozenset()) | axes
        reduced |= results if is_all_reduced else set()
        reached |= {result: reached.get(result, frozenset()) | axes for result in results}
    return found


def _gradient(program: Program, sites: list[Site], weight: Argument) -> _Demand | None:
    """It may be: of a sum that is scattered over what shards the weight or its state, or given to all that hold the
    same of it."""
    kinds, axes = {site.transfer.kind for site in sites}, _axes(sites)
    is_scattered, is_whole = kinds == {Kind.REDUCE_SCATTER}, not axes & _split(weight)
    is_sum = kinds in ({Kind.REDUCE_SCATTER}, {Kind.ALL_REDUCE}) and not any(s.phase == Phase.FORWARD for s in sites)
    demand = _demand(program, sites, weight, None) if is_sum and (is_scattered or is_whole) else None
    return demand and replace(demand, is_scattered=is_scattered and is_whole)


def _update(program: Program, sites: list[Site], weight: Argument) -> _Demand | None:
    """Of a weight that is whole over the axes."""
    return None if _axes(sites) & _split(weight) else _demand(program, sites, weight, Phase.UPDATE)


def _demand(program: Program, sites: list[Site], weight: Argument, gathered_for: Phase | None) -> _Demand | None:
    """In the dtype of the transfers, where the weight has no narrower one, and of as many elements as it has."""
    (kind, dtype), *others = {(site.transfer.kind, site.transfer.dtype) for site in sites}
    axes, width = _axes(sites), bits(dtype)
    devices = prod(known(program.axes)[name] for name in axes)
    elements = weight.local.elements * (devices if axes <= _split(weight) else 1)
    moved = sum(site.transfer.payload_bytes * known(site.transfer.executions) * 8 for site in sites)
    if others or not axes or not 0 < width <= bits(weight.local.dtype) or moved != elements * width:
        return None
    return _Demand(weight, axes, gathered_for, _WIRE_BYTES[kind](elements * width // 8, devices))


def _axes(sites: list[Site]) -> frozenset[str]:
    return frozenset(axis for site in sites for axis in site.transfer.axes or ())


def _split(argument: Argument) -> frozenset[str]:
    return frozenset(axis for names in argument.dims or () for axis in names)


def is_weight(program: Program, argument: Argument) -> bool:
    """A pass reads it, as it reads no moments."""
    names = [use.instruction.op_name for use in program.flow.uses(*argument.place) if use.instruction]
    return argument.dims is not None and any(phase(name, program.is_differentiated) in _PASSES for name in names)
