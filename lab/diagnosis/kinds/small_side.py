"""Large values that are cut for a small operand, and gathered again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from lab.core.units import exact
from lab.diagnosis.finding import Finding
from lab.diagnosis.kinds.together import together
from lab.diagnosis.program import Argument, Program, Site
from lab.diagnosis.remedy import ShardArgument
from lab.diagnosis.slices import ELEMENTWISE, is_cut
from lab.diagnosis.specs import without

_FAR_SMALLER = 16
_MOST = 100
_SMALLEST = 1024


def cut_for_small(program: Program) -> Iterator[Finding]:
    """Each device has a value whole, cuts its part to match a small split argument, such as a norm's scale, and the
    result is gathered."""
    for sites in together(program, lambda site: site.kind == "all_gather" and _small_side(program, site) is not None):
        small, gathered = _small_side(program, sites[0]), sum(site.transfer.payload_bytes for site in sites)
        if small is not None and gathered >= _SMALLEST:
            sentence = (
                f"{program.moved(sites[0])}, {exact(gathered)} B, is gathered over {sites[0].transfer.span} only since "
                f"{program.named(small)} is split: each device has all else that it is made of whole, and cuts it"
            )
            advice = (
                f"do not shard {small.name} over {sites[0].transfer.span}: whole it is "
                f"{exact(_whole_bytes(program, small))} B on each device, and nothing is gathered here"
            )
            if program.is_differentiated:
                advice += "; its gradient is then summed by one all-reduce, as many bytes as a scatter and a gather"
            whole = without(small.dims or (), sites[0].transfer.axes or ())
            yield program.finding(
                "cut_for_small",
                sentence,
                advice,
                *sites,
                needed_bytes=Fraction(0),
                remedy=(ShardArgument(small.name, whole),),
            )


def _whole_bytes(program: Program, argument: Argument) -> int:
    whole = argument.whole(program.axes) if program.axes else argument.local.dims
    return replace(argument.local, dims=whole).bytes


def _small_side(program: Program, site: Site) -> Argument | None:
    """The split argument, far smaller than what is gathered, beside which there are only own cuts of whole values."""
    operand = program.moving(site)
    pending = [] if operand is None else [operand]
    small: list[Argument] = []
    cuts = steps = 0
    while pending:
        steps += 1
        place = program.flow.source(*pending.pop())
        argument = program.argument_at(place)
        if argument is not None:
            small.append(argument)
        elif place.instruction.opcode in ELEMENTWISE or place.instruction.opcode == "broadcast":
            sides = [program.operand(place, number) for number in range(len(place.instruction.operands))]
            pending += [side for side in sides if side is not None]
        elif is_cut(program.flow, place):
            cuts += 1
        elif place.instruction.opcode != "constant" or steps > _MOST:
            return None
    bytes_of_small = sum(argument.local.bytes for argument in small)
    is_small = bool(small) and _FAR_SMALLER * bytes_of_small <= site.result.bytes // (site.transfer.group_size or 1)
    over = set(site.transfer.axes or ())
    split = [one for one in small if over and over <= {axis for names in one.dims or () for axis in names}]
    return max(split, key=lambda one: one.local.bytes, default=None) if cuts and is_small else None
