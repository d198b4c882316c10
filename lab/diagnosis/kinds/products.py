"""What the partitioner moves for matrix products, where something else would move less."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import Use
from lab.diagnosis.kinds.together import together
from lab.diagnosis.program import Program, Site, times
from lab.hlo.flops import operand_shapes
from lab.hlo.shapes import arrays
from lab.report.units import exact

# The other way also moves the output, and takes another layout of it: it must be worth that.
_FAR_LESS = 4


def larger_side_gathered(program: Program) -> Iterator[Finding]:
    """A product gathers one operand where gathering the other, and scattering the output, would move far less; in training that is FSDP, and wanted."""
    if program.is_differentiated:
        return
    for sites in together(program, lambda site: site.kind == "all_gather" and site.primitive == "dot_general"):
        gather = sites[0]
        use = next((use for use in program.uses(gather) if _is_product(use)), None)
        if use is None or not use.instruction:
            continue
        other, output = _whole(gather, use)
        if other and gather.transfer.payload_bytes >= _FAR_LESS * (other + output):
            sentence = (
                f"a product gathers {program.moved(gather)}, {exact(gather.transfer.payload_bytes)} B; gathering its other operand, {exact(other)} B, "
                f"would move {times(gather.transfer.payload_bytes / other)} less, and scattering the output {exact(output)} B"
            )
            advice = "keep the large operand split: constrain the small one, and the output, to be replicated over the axis"
            yield program.finding("larger_side_gathered", sentence, advice, *sites)


def _is_product(use: Use) -> bool:
    return use.opcode in ("dot", "convolution") or (use.opcode == "custom-call" and use.number < 2)


def _whole(gather: Site, use: Use) -> tuple[int, int]:
    """Bytes of the product's other operand and of its output, of all devices together."""
    shapes, devices = operand_shapes(use.instruction, use.computation), gather.transfer.group_size or 1
    other = shapes[1 - use.number].bytes if len(shapes) == 2 and use.number < 2 else 0
    return other * devices, arrays(use.instruction.shape)[0].bytes * devices


def experts_gathered(program: Program) -> Iterator[Finding]:
    """Tokens are gathered to split experts, and their outputs summed over the experts' axis, where two all-to-alls would do."""
    for axis in _expert_axes(program):
        over = [site for site in program.inserted if site.transfer.axes == (axis,) and site.primitive == "dot_general"]
        gathers = [site for site in over if site.kind == "all_gather" and program.argument_of(*(program.operand(site.place) or site.place)) not in _experts(program)]
        sums = [site for site in over if site.kind == "all_reduce"]
        if gathers and sums and len({site.transfer.origin for site in gathers + sums}) > 1:
            payload = sum(site.transfer.payload_bytes for site in gathers + sums)
            sentence = (
                f"a constraint on the experts' dim makes XLA gather the tokens over {axis} and sum the outputs, "
                f"{exact(payload)} B, where two all-to-alls exchange a part of it"
            )
            advice = f"constrain the dispatched tokens to their groups over {axis} first, and to their experts after; the outputs in the other order"
            yield program.finding("experts_gathered", sentence, advice, *gathers, *sums)


def _experts(program: Program) -> list:
    return [a for a in program.arguments if a.dims and len(a.dims) >= 3 and a.dims[0] and not any(a.dims[1:]) and _is_batched(program, a)]


def _expert_axes(program: Program) -> list[str]:
    """Axes that split the first dim of a weight [E, D, F], which a product takes as its batch dim."""
    return list(dict.fromkeys(axis for argument in _experts(program) for axis in argument.dims[0]))


def _is_batched(program: Program, argument) -> bool:
    uses = program.flow.uses(*argument.place)
    return any(use.opcode == "dot" and re.search(r"(?:lhs|rhs)_batch_dims=\{\d", use.instruction.attributes) for use in uses)
