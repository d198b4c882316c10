"""Arrays gathered whole, of which each device then keeps a part only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from math import prod

import numpy as np

from lab.core.dtypes import DTYPES
from lab.core.known import known
from lab.diagnosis.account import Way, by_way
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import Place, Use
from lab.diagnosis.numbers import number_on
from lab.diagnosis.program import Program, Site, shape_text, times
from lab.diagnosis.remarks import Remark
from lab.diagnosis.remedy import FreeUnnamed, PinBefore, Remedy
from lab.diagnosis.slices import ELEMENTWISE, own_slices
from lab.diagnosis.specs import Dims, axes_of_dims, spec_text, split_by, without
from lab.hlo.flops import operand_shapes
from lab.hlo.shapes import Shape, arrays
from lab.meshes.axes import Axes
from lab.redistribution import Array, Placement, plan

_GATHERS = frozenset({"all-gather", "all-gather-start"})


def rebuilt_whole(program: Program) -> Iterator[Finding]:
    """Between two shardings an array is rebuilt whole: all-to-alls would move about a shard."""
    for chain, cut, kept in _cut_again(program):
        shard, rebuilt = _shard(program, chain[0]), chain[-1].result
        if shard.dims != kept.dims:
            remark = _remark(program, chain[0])
            way = _way(program, remark) if remark else f"to keep {shape_text(kept)} of it"
            said = '; XLA warned of it ("Involuntary full rematerialization")' if remark else ""
            sentence = (
                f"{program.moved(chain[0])} is gathered whole on every device, "
                f"{times(rebuilt.elements / shard.elements)} its shard, {way}{said}"
            )
            advice = (
                "reshard it in two steps, one axis at a time (each an all-to-all of about one shard), or give both "
                "ends the same spec"
            )
            remedy, steps = _in_steps(program, chain[0], _ends(program, chain[0], cut, remark))
            yield program.finding(
                "rebuilt_whole",
                sentence,
                advice,
                *chain,
                needed_bytes=None if steps is None else sum(steps.values(), Fraction(0)),
                added_bytes={} if steps is None else _instead(chain, steps),
                remedy=remedy,
            )


def _instead(chain: list[Site], steps: Mapping[str, Fraction]) -> dict[Way, Fraction]:
    """The steps in place of the gathers, by axes and link."""
    now = by_way(site.transfer for site in chain)
    links = dict(now.keys())
    then = {(axes, links.get(axes, str(chain[0].transfer.link or ""))): size for axes, size in steps.items()}
    return {way: then.get(way, Fraction(0)) - now.get(way, Fraction(0)) for way in (*now, *then)}


def constraint_undone(program: Program) -> Iterator[Finding]:
    """A constraint replicates what is split before and after it."""
    for chain, _, kept in _cut_again(program):
        shard = _shard(program, chain[0])
        if shard.dims == kept.dims:
            over = ", ".join(dict.fromkeys(axis for site in chain for axis in site.transfer.axes or ())) or "its axis"
            sentence = (
                f"{program.moved(chain[0])} is gathered over {over} and sliced back to the same shards of "
                f"{shape_text(shard)}: a sharding constraint in between asks for it replicated"
            )
            advice = (
                "None in a PartitionSpec means replicated: write P.UNCONSTRAINED for dims that the constraint is "
                "not about, or drop the constraint"
            )
            yield program.finding(
                "constraint_undone",
                sentence,
                advice,
                *chain,
                needed_bytes=Fraction(0),
                remedy=(FreeUnnamed(chain[0].op_name),),
            )


def _cut_again(program: Program) -> Iterator[tuple[list[Site], Use, Shape]]:
    """Gathers in a row, the compiler's own, of whose result every device only keeps a slice, what takes it, and the
    slice in use."""
    # Along a part of an axis compilers reduce and gather by steps of their own, between slices and inside each.
    gathers = [s for s in program.inserted if s.kind == "all_gather" and (s.op_name or s.transfer.axes is not None)]
    by_place = {site.key: site for site in gathers}
    for site in gathers:
        chain = _chain(program, site, by_place)
        slices = own_slices(program.flow, program.uses(site, ELEMENTWISE))
        if slices:
            yield chain, slices[0], _in_use(program, slices[0])


def _chain(program: Program, last: Site, by_place: dict[tuple[str, str, int | None], Site]) -> list[Site]:
    chain = [last]
    for instruction, computation in program.flow.back(*(program.moving(last) or last.place), through=_GATHERS):
        site = by_place.get((computation.name, instruction.name, last.number))
        if site is not None and site is not last:
            chain.insert(0, site)
    return chain


def _in_use(program: Program, use: Use) -> Shape:
    """A slice in the dims of what uses it: TPUs gather and slice arrays laid out anew."""
    cut = known(use.instruction)
    kept = arrays(cut.shape)[0]
    for user in program.flow.uses(cut, use.computation):
        last = [i for i in (user.instruction, *reversed(user.path)) if i is not None]
        for shape in (arrays(i.shape)[0] for i in last if len(arrays(i.shape)) == 1):
            if shape.elements == kept.elements:
                return shape
    return kept


def _shard(program: Program, site: Site) -> Shape:
    """What one device holds before it is gathered, in the dims of what made it."""
    operand = operand_shapes(site.visit.instruction, site.visit.computation)[site.number or 0]
    made = program.flow.source(*(program.moving(site) or site.place)).instruction
    shapes = arrays(made.shape)
    return shapes[0] if len(shapes) == 1 and shapes[0].elements == operand.elements else operand


def _remark(program: Program, site: Site) -> Remark | None:
    """What the compiler said of the array that a gather rebuilds."""
    operand = program.moving(site)
    names = {site.op_name}
    if operand is not None:
        names |= {i.op_name for i, _ in program.flow.back(*Place(*operand), through=_GATHERS) if i.op_name}
    return next((remark for remark in program.remarks if remark.op_name in names), None)


def _ends(program: Program, site: Site, cut: Use, remark: Remark | None) -> tuple[Dims | None, Dims | None]:
    """How the array is split before it is gathered, and after it is cut: as the compiler said, else by what is split
    before and by where each device cuts."""
    if program.axes is None:
        return None, None
    if remark is not None:
        return axes_of_dims(remark.before, program.axes), axes_of_dims(remark.after, program.axes)
    operand = program.moving(site)
    argument = None if operand is None else program.argument_of(*operand, ELEMENTWISE)
    rank = len(_shard(program, site).dims)
    before = (*(argument.dims or ()), *((),) * rank)[:rank] if argument else None
    return before, _split_as_cut(program, Place(known(cut.instruction), cut.computation), program.axes)


def _split_as_cut(program: Program, cut: Place, axes: Axes) -> Dims | None:
    """The axes that tell devices' slices apart; None where the offsets are not known or are no multiples of a slice."""
    sizes = arrays(cut.instruction.shape)[0].dims
    starts = [program.operand(cut, number) for number in range(1, 1 + len(sizes))]
    found = [
        None if start is None else number_on(program.flow, start, device)
        for device in range(axes.size)
        for start in starts
    ]
    offsets = [offset for offset in found if offset is not None]
    tiles = [divmod(offset, size) for offset, size in zip(offsets, sizes * axes.size, strict=False) if size]
    if len(tiles) != len(found) or any(rest for _, rest in tiles):
        return None
    return split_by(np.array([tile for tile, _ in tiles]).reshape(*axes.sizes, len(sizes)), axes)


def _in_steps(
    program: Program, site: Site, ends: tuple[Dims | None, Dims | None]
) -> tuple[Remedy, dict[str, Fraction] | None]:
    """One axis at a time, those first that come first in the dim that they go to; and what these steps send."""
    before, after = ends
    if program.axes is None or not before or not after or len(before) != len(after):
        return (), None
    steps, held = [], before
    for at, names in enumerate(after):
        for name in names:
            held = tuple((*kept, name) if dim == at else kept for dim, kept in enumerate(without(held, (name,))))
            steps.append(held)
    moved = [step for step in steps if step not in (before, after)]
    remedy = (PinBefore(site.op_name, tuple(moved)),) if moved else ()
    return remedy, _sent_in_steps(program.axes, site, _shard(program, site), [before, *moved, after])


def _sent_in_steps(axes: Axes, site: Site, shard: Shape, steps: Sequence[Dims]) -> dict[str, Fraction] | None:
    """By the cheapest way from each placement to the next, by axes."""
    if shard.dtype not in DTYPES or len(shard.dims) != len(steps[0]):
        return None
    whole = tuple(size * prod(axes[name] for name in names) for size, names in zip(shard.dims, steps[0], strict=True))
    array, placed = Array(whole, shard.dtype), [Placement.of(*step) for step in steps]
    if not all(each.fits(array, axes) for each in placed):
        return None
    often = 1 if site.transfer.executions is None else site.transfer.executions
    moves = [transfer for ends in pairwise(placed) for transfer in plan(*ends, array, axes).transfers]
    return {over: often * size for (over, _), size in by_way(moves).items()}


def _way(program: Program, remark: Remark) -> str:
    ends = [
        axes_of_dims(sharding, program.axes) if program.axes else None for sharding in (remark.before, remark.after)
    ]
    before, after = (
        raw if dims is None else spec_text(dims) for raw, dims in zip((remark.before, remark.after), ends, strict=True)
    )
    return f"to reshard it from {before} to {after}"
