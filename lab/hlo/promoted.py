"""Floats of 16 bits that a compiler moves as float32: it names the reduction so, or widens the operand just before."""

from __future__ import annotations

from lab.hlo.shapes import arrays
from lab.hlo.text import Computation, Instruction, Module

_NARROW = ("bf16", "f16")
_SHAPES = frozenset(
    "bitcast copy reshape transpose slice dynamic-slice broadcast get-tuple-element tuple select pad concatenate "
    "dynamic-update-slice".split()
)
"""What moves elements, and computes none."""
_MOST = 64


def are_widened(instruction: Instruction, computation: Computation, module: Module, is_reduction: bool) -> list[bool]:
    """For each operand, whether the text shows that it was widened.

    A program may widen what it reduces itself; a reduction is the compiler's only if that names it so, or combined it
    with another one whose operand was widened, since the name is then lost.
    """
    operands = instruction.operands
    widened = (is_widened(name, computation, module) for name in operands)
    if not is_reduction:
        return list(widened)
    is_named = "_promoted" in instruction.attributes or (len(operands) > 1 and any(widened))
    return [is_named] * len(operands)


def is_widened(name: str, computation: Computation, module: Module) -> bool:
    """By the `convert` that makes a value, before what only moves its elements."""
    queue, seen = [(name, computation)], set[tuple[str, str]]()
    while queue and len(seen) < _MOST:
        name, where = queue.pop(0)
        value = where.by_name.get(name)
        if value is None or (where.name, name) in seen:
            continue
        seen.add((where.name, name))
        if value.opcode == "convert":
            if _is_of_16_bits(value, where):
                return True
        elif value.opcode == "fusion":
            called = module.computations.get(value.attribute("calls") or "")
            queue += [(called.root.name, called)] if called and called.root else []
            queue += [(operand, where) for operand in value.operands if _is_passed_through(called)]
        elif value.opcode in _SHAPES:
            queue += [(operand, where) for operand in value.operands]
    return False


def _is_of_16_bits(convert: Instruction, computation: Computation) -> bool:
    source = computation.by_name.get(convert.operands[0]) if convert.operands else None
    return source is not None and any(shape.dtype in _NARROW for shape in arrays(source.shape))


def _is_passed_through(fused: Computation | None) -> bool:
    """The fusion computes nothing itself."""
    return fused is not None and all(
        i.opcode in _SHAPES or i.opcode in ("parameter", "constant") for i in fused.instructions
    )
