"""Sums that gather: each device adds its own part of a value to zeros (TPUs)."""

from __future__ import annotations

from lab.hlo.text import Computation, Instruction, Module

_AS_THEY_ARE = frozenset({"bitcast", "copy", "copy-done", "copy-start"})
MAY_BE_PADDED = _AS_THEY_ARE | {"fusion", "dynamic-update-slice"}
"""No other instruction gives zeros but for a slice."""
_ZEROS = frozenset({"0", "-0", "0.0"})


def is_zero_padded_shard(value: Instruction, computation: Computation, module: Module) -> bool:
    """Whether it is zeros but for a slice, as `dynamic-update-slice` makes it, alone or at the end of a fusion."""
    if value.opcode in _AS_THEY_ARE:
        value = _source(value, computation)
    if value.opcode != "fusion":
        return value.opcode == "dynamic-update-slice" and _is_zeros(_defined(value, 0, computation), computation)
    fused = module.computations.get(value.attribute("calls") or "")
    if fused is None or fused.root is None or (written := _source(fused.root, fused)).opcode != "dynamic-update-slice":
        return False
    into = _defined(written, 0, fused)
    if into is not None and into.opcode == "parameter":
        return _is_zeros(_defined(value, fused.parameters.get(into.name, 0), computation), computation)
    return _is_zeros(into, fused)


def _source(value: Instruction, computation: Computation) -> Instruction:
    """The value itself, wherever it was copied to."""
    seen = {value.name}  # In a damaged text copies may be of each other.
    while value.opcode in _AS_THEY_ARE and (source := _defined(value, 0, computation)) and source.name not in seen:
        value = source
        seen.add(value.name)
    return value


def _defined(value: Instruction, number: int, computation: Computation) -> Instruction | None:
    """What defines an operand; None where the text, damaged, lacks it."""
    operands = value.operands
    return computation.by_name.get(operands[number]) if number < len(operands) else None


def _is_zeros(broadcast: Instruction | None, computation: Computation) -> bool:
    if broadcast is None or broadcast.opcode != "broadcast":
        return False
    constant = _defined(broadcast, 0, computation)
    return constant is not None and constant.opcode == "constant" and constant.literal in _ZEROS
