"""Values of 8 bits whose narrow type is lost on the way: they are dequantised first, and sent wide."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from lab.core.units import count, exact
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import SCALES, Place
from lab.diagnosis.program import NarrowValue, Program, Site, largest, sent
from lab.diagnosis.remedy import SendNarrow
from lab.hlo.shapes import arrays, bits

_SMALLEST = 1 << 12
_PARTS = frozenset({"slice", "dynamic-slice"})
_MOVES = ("all_gather", "all_to_all", "collective_permute", "collective_broadcast")
_SUMS = ("all_reduce", "reduce_scatter")
_FARTHEST = 24


def dequantised_before(program: Program) -> Iterator[Finding]:
    """A value is moved in 16 or 32 bits, or summed so, that was made of one of 8 bits by casts and scales alone."""
    found = [(site, value) for site in program.sites if (value := narrow_source(program, site))]
    for is_sum, kinds in ((False, _MOVES), (True, _SUMS)):
        some = [(site, value) for site, value in found if site.kind in kinds]
        sites = [site for site, _ in some]
        now, then = sent(sites), sum((_needed(site, value) for site, value in some), Fraction(0))
        is_known = all(value.scale_bits is not None for _, value in some)
        if now - then < _SMALLEST:
            continue
        most, total = largest(sites), len(sites)
        dtype = next(value.dtype for site, value in some if site is most)
        width = bits(dtype) or 8
        how = (
            f"exchanged by an all_to_all in {width} bits, and summed by the device that keeps the part"
            if is_sum
            else "sent before that, with their scales"
        )
        moved = "summed" if is_sum else "sent"
        be, which, it = ("is", "", "it") if total == 1 else ("are", "the largest is ", "they")
        sentence = (
            f"{count(total, 'array')} of {width}-bit values {be} dequantised and then {moved} wide "
            f"({which}{program.moved(most)}, of {dtype} values, in {most.transfer.dtype}): {how}, {it} would be "
            f"{exact(then)} B a step sent by each device instead of {exact(now)}"
            f"{'' if is_known else ', and the scales'}"
        )
        advice = (
            "exchange the narrow values and their scales (jax.lax.all_to_all), dequantise what arrives, and sum it"
            if is_sum
            else "move the narrow value and its scale, and dequantise what arrives; where the compiler puts the "
            "transfer in, constrain the narrow value to the sharding that it has, then to the one that is asked for, "
            "and dequantise after that"
        )
        remedy = tuple(dict.fromkeys(_sent_narrow(program, site) for site in sites))
        needed = then if is_known else None
        yield program.finding("dequantised_before", sentence, advice, *sites, needed_bytes=needed, remedy=remedy)


def _sent_narrow(program: Program, site: Site) -> SendNarrow:
    """What a constraint moves is pinned to how its argument is split, before that."""
    argument = None if site.is_written else program.argument_behind(site)
    return SendNarrow(site.op_name, argument.dims or () if argument else ())


def _needed(site: Site, value: NarrowValue) -> Fraction:
    """With scales as far as they are known. Of a sum of n numbers each device sends n narrow ones, and of an all-reduce
    its sums besides."""
    now, share = (
        sent([site]),
        ((bits(value.dtype) or 8) + (value.scale_bits or 0)) / Fraction(bits(site.transfer.dtype)),
    )
    others = 1 if site.kind == "collective_permute" else (site.transfer.group_size or 1) - 1
    numbers = value.number_bytes * others * (site.transfer.executions or 1)
    return (now * (1 + share) / 2 if site.kind == "all_reduce" else now * share) + numbers


def narrow_source(program: Program, site: Site) -> NarrowValue | None:
    """The value of 8 bits that a moved or summed value was made of, by the compiled text or by the traced program; None
    where there is none, or a CPU's compiler may have widened it."""
    operand = program.moving(site)
    is_wide = bits(site.transfer.dtype) > 8 and site.kind in (*_MOVES, *_SUMS)
    if program.may_be_cpus or operand is None or not is_wide:
        return None
    if traced := program.narrow(site.op_name, site.result.elements):
        return None if traced.is_cast_before else traced
    for _ in range(_FARTHEST):
        way = list(program.flow.back(*operand, through=_PARTS))
        for place in way:
            if place.instruction.opcode == "convert" and _is_8_bits(dtype := _operand_dtype(place)):
                return NarrowValue(dtype)
        last = way[-1]
        following = _unscaled(program, last) if last.instruction.opcode in SCALES else None
        if following is None:
            return None
        operand = following
    return None


def _operand_dtype(place: Place) -> str:
    source = place.computation.by_name.get(place.instruction.operands[0]) if place.instruction.operands else None
    shapes = arrays(source.shape) if source is not None else []
    return shapes[0].dtype if shapes else ""


def _is_8_bits(dtype: str) -> bool:
    return dtype in ("s8", "u8") or dtype.startswith("f8")


def _unscaled(program: Program, product: Place) -> Place | None:
    """The operand of a product that is not spread from fewer numbers; None where both are, or neither."""
    sides = [side for number in (0, 1) if (side := program.operand(product, number))]
    if product.instruction.opcode == "divide":
        return sides[0] if len(sides) == 2 and _is_spread(program, sides[1]) else None
    full = [side for side in sides if not _is_spread(program, side)]
    return full[0] if len(full) == 1 and len(sides) == 2 else None


def _is_spread(program: Program, side: Place) -> bool:
    way = [place.instruction for place in program.flow.back(*side)]
    return any(i.opcode in ("broadcast", "constant") for i in way)
