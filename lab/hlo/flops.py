"""Floating-point operations of matrix products and convolutions, as one device runs them; a multiply-add counts 2."""

from __future__ import annotations

import json
import math
import re

from lab.hlo.shapes import Shape, arrays
from lab.hlo.text import Computation, Instruction

OPCODES = frozenset({"dot", "convolution", "custom-call", "custom-call-start", "ragged-dot"})
_MATMUL_TARGETS = re.compile(r"cublas|matmul|gemm|cutlass|onednn.*dot", re.IGNORECASE)
_CONVOLUTION_TARGETS = re.compile(r"cudnn\$conv|onednn\$convolution", re.IGNORECASE)
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_DIM_NUMBERS = re.compile(r'"dot_dimension_numbers":(\{[^{}]*\})')


def flops(instruction: Instruction, computation: Computation) -> int | None:
    """FLOPs of one execution; None where the text does not decide them (an operand's type is missing)."""
    operands = operand_shapes(instruction, computation)
    result = arrays(instruction.shape)
    if instruction.opcode.startswith("custom-call"):
        target = _TARGET.search(instruction.extras)
        return _custom_call(target[1] if target else "", instruction, operands, result)
    if len(operands) < 2 or not result:
        return None
    if instruction.opcode == "convolution":
        return _convolution(instruction.attributes, operands[0], operands[1], result[0])
    return _product(operands[0], _dims(instruction.braced("lhs_contracting_dims")), result[0])


def operand_shapes(instruction: Instruction, computation: Computation) -> tuple[Shape, ...]:
    """Types of the operands: as printed with them, else from the instructions that define them."""
    literal = instruction.literal
    if "[" in literal:
        return arrays(literal)
    defined = (computation.by_name.get(name) for name in instruction.operands)
    return tuple(shape for operand in defined if operand is not None for shape in arrays(operand.shape))


def _custom_call(
    target: str, instruction: Instruction, operands: tuple[Shape, ...], result: tuple[Shape, ...]
) -> int | None:
    """Matrix products that a backend hands to a library; other custom calls count as none."""
    if _CONVOLUTION_TARGETS.search(target):
        return (
            _convolution(instruction.attributes, operands[0], operands[1], result[0])
            if len(operands) > 1 and result
            else None
        )
    if not _MATMUL_TARGETS.search(target):
        return 0
    numbers = _DIM_NUMBERS.search(instruction.extras.replace("\\", ""))
    if numbers is None or not operands or not result:
        return None
    return _product(
        operands[0], [int(dim) for dim in json.loads(numbers[1]).get("lhs_contracting_dimensions", [])], result[0]
    )


def _product(lhs: Shape, contracted: list[int], result: Shape) -> int | None:
    if any(dim >= len(lhs.dims) for dim in contracted):
        return None
    return 2 * result.elements * math.prod(lhs.dims[dim] for dim in contracted)


def _convolution(attributes: str, lhs: Shape, rhs: Shape, result: Shape) -> int | None:
    """Counts, along each spatial dim, the pairs of output and kernel positions that meet an input element and no
    padding or hole."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", attributes)
    if labels is None:
        return None
    inputs, kernel, outputs = map(str, labels.groups())
    size = dict(zip(kernel, rhs.dims, strict=False))
    out = dict(zip(outputs, result.dims, strict=False))
    seen = dict(zip(inputs, lhs.dims, strict=False))
    window = _window(attributes, len([d for d in kernel if d.isdigit()]))
    spatial = math.prod(_valid_taps(seen[str(d)], size[str(d)], out[str(d)], *window[d]) for d in range(len(window)))
    batch_groups = int(found[1]) if (found := re.search(r"batch_group_count=(\d+)", attributes)) else 1
    return 2 * out["b"] * out["f"] * size["i"] * spatial // batch_groups


def _window(attributes: str, dims: int) -> list[tuple[int, int, int, int]]:
    """(stride, low padding, input dilation, kernel dilation) of every spatial dim."""
    found = re.search(r"window=\{([^}]*)\}", attributes)
    fields = dict(re.findall(r"(\w+)=([\dx_\-]+)", found[1])) if found else {}

    def numbers(name: str, default: int) -> list[int]:
        return [int(item.split("_")[0]) for item in fields[name].split("x")] if name in fields else [default] * dims

    return list(
        zip(numbers("stride", 1), numbers("pad", 0), numbers("lhs_dilate", 1), numbers("rhs_dilate", 1), strict=True)
    )


def _valid_taps(extent: int, kernel: int, outputs: int, stride: int, low: int, hole: int, spread: int) -> int:
    """Pairs (output, kernel position) whose input position holds an element, along one dim."""
    if stride == hole == spread == 1 and low == 0 and outputs + kernel - 1 == extent:
        return outputs * kernel
    reach = (extent - 1) * hole
    return sum(
        1
        for out in range(outputs)
        for tap in range(kernel)
        if 0 <= (at := out * stride + tap * spread - low) <= reach and at % hole == 0
    )


def _dims(text: str | None) -> list[int]:
    return [int(dim) for dim in re.findall(r"\d+", text or "")]
