"""Pipelines of stages that lie along a split dim."""

from __future__ import annotations

from collections.abc import Iterator

from lab.core.units import exact
from lab.diagnosis.finding import Finding
from lab.diagnosis.kinds.together import together
from lab.diagnosis.program import Program, Site
from lab.diagnosis.slices import depends_on_device
from lab.diagnosis.specs import spec_text
from lab.hlo.shapes import bits

_PICKS = ("squeeze", "slice", "dynamic_slice", "gather")
_PUT_BEFORE = ("concatenate", "pad", "roll", "reshape", "dynamic_update_slice")
_MASKS = frozenset({"select", "slice", "dynamic-slice", "broadcast"})
_REPEATS = frozenset({"broadcast"})
_SMALLEST = 1024
_MOST_SELECTS = 8


def last_stage_broadcast(program: Program) -> Iterator[Finding]:
    """Taking one stage's output sends it to all stages: a sum over the stages in which all but one add zeros."""
    handed_on = {(site.transfer.axes, _elements(site)) for site in program.sites if _is_shift(site)}
    over = [
        site
        for site in program.sites
        if (site.transfer.axes, _elements(site)) in handed_on
        and site.transfer.payload_bytes >= _SMALLEST
        and not _is_lookup(program, site)
    ]
    for sites in together(
        program, lambda site: site in over and (site.primitive in _PICKS or _is_masked(program, site))
    ):
        sums = [site for site in sites if site.kind == "all_reduce"]
        if sums:
            yield _finding(program, sums, sites)
    for site in over:
        if site.is_written and site.transfer.executions != 1 and _is_masked(program, site):
            yield _finding(program, [site], [site])


def _is_shift(site: Site) -> bool:
    """What stages hand on in every tick; an exchange is one where it puts a stage's input before the others."""
    is_moved = site.kind == "collective_permute" or (site.kind == "all_to_all" and site.primitive in _PUT_BEFORE)
    return is_moved and site.transfer.executions != 1 and site.primitive not in _PICKS


def _elements(site: Site) -> int:
    """How many numbers move: CPUs sum in wider ones than they send."""
    return site.transfer.payload_bytes * 8 // (bits(site.transfer.dtype) or 8)


def _is_lookup(program: Program, site: Site) -> bool:
    """It sums rows of a split table, which an argument holds; a stage's output was made by the program."""
    operand = program.moving(site)
    pending = [] if operand is None else [operand]
    for _ in range(_MOST_SELECTS):
        if not pending:
            break
        made = program.flow.source(*pending.pop())
        if made.instruction.opcode == "gather":
            return True
        if made.instruction.opcode == "select":
            pending += [side for number in (1, 2) if (side := program.operand(made, number))]
    return False


def _is_masked(program: Program, site: Site) -> bool:
    """A sum to which every device but some adds zeros."""
    operand = program.moving(site) if site.kind == "all_reduce" else None
    made = None if operand is None else program.flow.source(*operand)
    if made is None or made.instruction.opcode != "select":
        return False
    sides = [
        program.flow.source(*side, through=_REPEATS).instruction.opcode
        for number in (1, 2)
        if (side := program.operand(made, number))
    ]
    return "constant" in sides and depends_on_device(program.flow, made.computation, made.instruction.operands[0])


def _feeds(program: Program, permute: Site, total: Site) -> bool:
    """It brings the stage's output to where the sum masks the others."""
    uses = program.uses(permute, _MASKS) if permute.kind == "collective_permute" else []
    return any(use.instruction is total.visit.instruction for use in uses)


def _finding(program: Program, sums: list[Site], sites: list[Site]) -> Finding:
    axis, transfer = ", ".join(sums[0].transfer.axes or ()), sums[0].transfer
    often = "in every tick" if transfer.executions != 1 else "once"
    beside = [
        site
        for site in program.inserted
        if site.transfer.axes == transfer.axes and site not in sites and _feeds(program, site, sums[0])
    ]
    sentence = (
        f"the output of one pipeline stage is sent to all stages along {axis} {often}, "
        f"{exact(transfer.payload_bytes)} B each time (what stages hand to the next one is not meant)"
    )
    advice = (
        f"keep the outputs on the last stage: compute the loss there and psum a scalar over {axis}, or "
        "collect them in the loop's state and send them once, after the loop"
    )
    spec = spec_text((transfer.axes or (),))
    write = f"{spec} of the outputs of all stages [stages, ..], in a constraint or as out_specs"
    return program.finding("last_stage_broadcast", sentence, advice, *sites, *beside, write=write)
