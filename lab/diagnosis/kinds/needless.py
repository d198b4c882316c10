"""Sums that need not be sums: of one part and zeros, or of what is only added up over calls."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import prod

from lab.core.known import known
from lab.core.units import exact, listed
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import SCALES, Place, Use
from lab.diagnosis.numbers import is_rising, number_on
from lab.diagnosis.program import Argument, Program, Site, sent
from lab.diagnosis.remedy import Gather
from lab.diagnosis.specs import spec_text
from lab.hlo.shapes import arrays

_SMALLEST = 1024
_SHOWN = 3
_ZEROS = frozenset({"0", "-0", "0.0", "false"})


def summed_to_gather(program: Program) -> Iterator[Finding]:
    """A psum of the user's to which each device adds its own part, and zeros where the others have theirs."""
    for site in program.sites:
        is_sum = site.kind == "all_reduce" and site.is_written and site.transfer.payload_bytes >= _SMALLEST
        if is_sum and _is_own_part(program, site):
            now = sent([site])
            sentence = (
                f"a sum over {site.transfer.span} gathers: each device adds its own part and zeros for the others, "
                f"{exact(site.transfer.payload_bytes)} B; an all-gather would send {exact(now / 2)} B instead of "
                f"{exact(now)}"
            )
            advice = (
                "use jax.lax.all_gather(x, axis, tiled=True); where its result must count as the same on all "
                "devices, in a jax.shard_map with check_vma=False"
            )
            yield program.finding(
                "summed_to_gather", sentence, advice, site, needed_bytes=now / 2, remedy=(Gather(site.op_name),)
            )


def _is_own_part(program: Program, site: Site) -> bool:
    """An update of zeros by a part that lies further on on each next device of a group, and all parts fill it."""
    operand, groups = program.moving(site), program.members(site)
    written = None if operand is None else program.flow.source(*operand)
    if written is None or groups is None or written.instruction.opcode != "dynamic-update-slice":
        return False
    operands = [program.operand(written, number) for number in range(max(2, len(written.instruction.operands)))]
    into, part, *starts = operands
    if into is None or part is None or not _is_zeros(program, into):
        return False
    sizes, whole = arrays(part.instruction.shape)[0].dims, arrays(written.instruction.shape)[0].dims
    parts = prod(sizes) * (site.transfer.group_size or 0)
    tiles = [[_tile(program, starts, device, sizes, whole) for device in row] for row in groups.members]
    # A gather puts the parts one after the other, by rank.
    return parts == site.result.elements and all(None not in row and is_rising(row) for row in tiles)


def _tile(
    program: Program, starts: list[Place | None], device: int, sizes: tuple[int, ...], whole: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Which part a device writes, of those side by side; None where it writes over the edge of two, as overlapping
    windows do."""
    found = [None if start is None else number_on(program.flow, start, device) for start in starts]
    numbers = [number for number in found if number is not None]
    if len(numbers) < len(found) or len(numbers) != len(sizes) or 0 in sizes:
        return None
    is_aligned = all(
        at % size == 0 and 0 <= at <= full - size for at, size, full in zip(numbers, sizes, whole, strict=True)
    )
    return tuple(at // size for at, size in zip(numbers, sizes, strict=True)) if is_aligned else None


def _is_zeros(program: Program, place: Place) -> bool:
    made = program.flow.source(*place, through=frozenset({"broadcast"})).instruction
    return made.opcode == "constant" and made.literal in _ZEROS


def summed_across_calls(program: Program) -> Iterator[Finding]:
    """A sum over devices that is only added to an argument which is given up for the result: the next call adds
    another."""
    found = [(site, total) for site in program.inserted if (total := _accumulator(program, site)) is not None]
    if found:
        sites = [site for site, _ in found]
        names = [program.named(total) for _, total in found]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        sentence = (
            f"every call reduces over {listed(site.transfer.span for site in sites)} what it only adds to "
            f"{names[0]}{more}, which is donated: added up on each device, and reduced when it is used, a call would "
            f"send {exact(sent(sites))} B less"
        )
        advice = (
            "let each device keep its own sums: an accumulator with a dim that the axis shards, in jax.shard_map; or "
            "parameters that are `reduced` over it on an Explicit mesh, whose gradients are then `unreduced`"
        )
        yield program.finding(
            "summed_across_calls",
            sentence,
            advice,
            *sites,
            needed_bytes=Fraction(0),
            value=names[0],
            write=_kept_apart(found),
        )


def _kept_apart(found: list[tuple[Site, Argument]]) -> str:
    """The accumulators, each with a dim for the devices."""
    each = [
        f"{spec_text((site.transfer.axes, *total.dims))} of {total.name}"
        for site, total in found
        if site.transfer.axes and total.dims is not None
    ]
    shown = [*each[:_SHOWN], *[f"{len(each) - _SHOWN} more like these"] * (len(each) > _SHOWN)]
    size = found[0][0].transfer.group_size
    return f"in_shardings and out_shardings {listed(shown)}, with a first dim of {size}" if each else ""


def _accumulator(program: Program, site: Site) -> Argument | None:
    """The donated argument that a sum is added to, if nothing else is done with either, nor with the result."""
    is_sum = site.kind in ("all_reduce", "reduce_scatter") and site.transfer.payload_bytes >= _SMALLEST
    uses = program.uses(site, frozenset(SCALES)) if is_sum else []
    if len(uses) != 1 or uses[0].opcode != "add":
        return None
    added = Place(known(uses[0].instruction), uses[0].computation)
    other = program.operand(added, 1 - uses[0].number)
    argument = None if other is None else program.argument_of(*other)
    if argument is None or argument.number not in program.aliased:
        return None
    is_only_added_to = [use.instruction for use in program.flow.uses(*argument.place)] == [added.instruction]
    return argument if is_only_added_to and _is_given_back(program.flow.uses(*added)) else None


def _is_given_back(uses: list[Use]) -> bool:
    return bool(uses) and all(use.opcode is None for use in uses)
