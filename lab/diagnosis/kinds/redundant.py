"""Work that all devices of an axis do alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod

from lab.core.known import known
from lab.core.units import bytes_text, exact, scaled
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import Place
from lab.diagnosis.program import Program, operation, times
from lab.diagnosis.remedy import Remedy, ShardArgument, ShardResult
from lab.diagnosis.slices import ELEMENTWISE
from lab.diagnosis.splitting import Plan, cheapest, link_along
from lab.hlo.flops import Work, operand_shapes
from lab.hlo.shapes import arrays
from lab.hlo.text import Instruction
from lab.hlo.walk import Visit

# Splitting takes a message more, some microseconds. 1e8 FLOPs take one at 1e14 a second, a MiB is read in less: below
# these splitting saves nothing.
_SMALLEST_FLOPS, _SMALLEST_BYTES = 10**8, 2**20
# A tenth of a step's products is worth a change of its layout; routers and other small products that a layout repeats
# by design stay below.
_SHARE = 0.1
_FARTHEST = 300


def computed_redundantly(program: Program) -> Iterator[Finding]:
    """Products that all devices along an axis repeat, and that take longer than what a split of them sends."""
    if program.axes is None or program.axes.size == 1 or (program.ledger.devices or 1) == 1:
        return
    found = _repeated_products(program)
    for axes, visits in found.items():
        work = sum((product.flops or 0) * (visit.executions or 1) for visit, product in visits)
        smallest = max(_SMALLEST_FLOPS, _SHARE * (program.ledger.flops or 0))
        plan = cheapest(program, axes, visits) if work >= smallest else None
        if plan is not None:
            yield _finding(program, axes, f"matrix products, {scaled(work, 'FLOP')} a step,", visits, plan)
    if not found and not program.ledger.flops and not program.sites:
        yield from _everything(program)


def _repeated_products(program: Program) -> dict[tuple[str, ...], list[tuple[Visit, Work]]]:
    """By the axes along which nothing of them varies."""
    found: dict[tuple[str, ...], list[tuple[Visit, Work]]] = {}
    for visit, product in program.reading.products:
        varies = program.variation.along(visit)
        alike = tuple(axis for axis in known(program.axes).names if axis in program.variation.everything - varies)
        if alike and product.flops:
            found.setdefault(alike, []).append((visit, product))
    return found


def _everything(program: Program) -> Iterator[Finding]:
    """No argument and no instruction differs between devices, and there is something to do."""
    alike = program.variation.everything - program.variation.anywhere
    held = sum(argument.local.bytes for argument in program.arguments)
    if alike == program.variation.everything and held >= _SMALLEST_BYTES:
        axes = tuple(axis for axis in known(program.axes).names if axis in alike)
        yield _finding(program, axes, f"all operations, on {bytes_text(held)} of arguments,", accessed_bytes=held)


def _finding(
    program: Program,
    axes: tuple[str, ...],
    what: str,
    products: Sequence[tuple[Visit, Work]] = (),
    plan: Plan | None = None,
    accessed_bytes: int = 0,
) -> Finding:
    devices = prod(known(program.axes)[axis] for axis in axes)
    sentence = (
        f"{what} are repeated by all devices along {', '.join(axes)}, over which nothing in them is sharded: "
        f"{times(devices)} the work needed"
    )
    if plan is not None and plan.sent:
        sentence += f"; split, each device would send at least {exact(plan.sent)} B"
    advice = f"shard a dim of an operand over {', '.join(axes)}, by in_shardings or jax.lax.with_sharding_constraint"
    remedy = _split(program, axes, [visit for visit, _ in products])
    products = sorted(products, key=lambda each: -(each[1].flops or 0) * (each[0].executions or 1))
    added = {} if plan is None else {("+".join(axes), str(link_along(program, axes) or "")): plan.sent}
    return program.finding(
        "computed_redundantly",
        sentence,
        advice,
        origin=_line(program, products),
        value=_operand(program, remedy, products),
        added_bytes=added,
        flops={} if plan is None else plan.spared,
        accessed_bytes=accessed_bytes - accessed_bytes // devices,
        remedy=remedy,
    )


def _operand(program: Program, remedy: Remedy, products: Sequence[tuple[Visit, Work]]) -> str:
    """An argument that could be split, where one alone is enough, else what could be."""
    names = {change.name for change in remedy if isinstance(change, ShardArgument)}
    split = next((a for a in program.arguments if a.name in names or not products), None)
    return program.named(split) if split else f"the operands of {operation(products[0][0].instruction.op_name) or 'it'}"


def _split(program: Program, axes: tuple[str, ...], visits: list[Visit]) -> Remedy:
    """Of each product of arguments alone the first even dim that it keeps, of the argument with most rows, and of the
    result where that is given back."""
    products = {(visit.computation.name, visit.instruction.name) for visit in visits}
    first = [visit for visit in visits if not _follows(program, visit, products)]
    found = [change for visit in first for change in _split_product(program, axes, visit)]
    return tuple(dict.fromkeys(found))


def _follows(program: Program, visit: Visit, products: set[tuple[str, str]]) -> bool:
    """It multiplies what another product gave: it is split as that is."""
    place = Place(visit.instruction, visit.computation)
    pending, seen = _operands(program, place), set[tuple[str, str]]()
    while pending and len(seen) < _FARTHEST:
        place = program.flow.source(*pending.pop())
        key = place.computation.name, place.instruction.name
        if key in products:
            return True
        if key not in seen:
            seen.add(key)
            pending += _operands(program, place)
    return False


def _operands(program: Program, place: Place) -> list[Place]:
    sides = [program.operand(place, number) for number in range(len(place.instruction.operands))]
    return [side for side in sides if side is not None]


def _split_product(program: Program, axes: tuple[str, ...], visit: Visit) -> Iterator[ShardArgument | ShardResult]:
    product, parts = Place(visit.instruction, visit.computation), prod(known(program.axes)[axis] for axis in axes)
    if visit.instruction.opcode != "dot":
        return
    batch, kept = _kept_dims(visit.instruction, "lhs"), [_free_dims(product, side) for side in (0, 1)]
    for side in (0, 1):
        place = program.operand(product, side)
        argument = None if place is None else program.argument_of(*place)
        if argument is None or argument.dims is None or place is None or argument.place != program.flow.source(*place):
            continue
        if argument.local.dims != arrays(place.instruction.shape)[0].dims:
            continue
        even = [dim for dim in kept[side] if argument.local.dims[dim] % parts == 0]
        if not even:
            continue
        rank = len(argument.local.dims)
        dims = (*argument.dims, *((),) * rank)[:rank]
        yield ShardArgument(
            argument.name, tuple((*names, *axes) if d == even[0] else names for d, names in enumerate(dims))
        )
        at = len(batch) + kept[side].index(even[0]) + (len(kept[0]) if side else 0)
        for use in program.flow.uses(*product, ELEMENTWISE):
            if use.instruction is None:
                yield ShardResult(use.number, (*((),) * at, axes))
        return


def _kept_dims(product: Instruction, side: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d{1,9}", product.braced(f"{side}_batch_dims") or "")]


def _free_dims(product: Place, side: int) -> list[int]:
    """Dims of an operand that are neither summed over nor shared with the other."""
    name = ("lhs", "rhs")[side]
    summed = re.findall(r"\d{1,9}", product.instruction.braced(f"{name}_contracting_dims") or "")
    shapes = operand_shapes(*product)
    taken = {*map(int, summed), *_kept_dims(product.instruction, name)}
    return [dim for dim in range(len(shapes[side].dims)) if dim not in taken] if side < len(shapes) else []


def _line(program: Program, products: Sequence[tuple[Visit, Work]]) -> str | None:
    entry = program.module.entry
    instructions = [visit.instruction for visit, _ in products] or (entry.instructions if entry else [])
    return next((place for i in instructions if (place := program.origin(i))), None)
