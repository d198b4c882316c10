"""Sums that gather: each device adds its own part of a value to zeros (TPUs)."""

from __future__ import annotations

from lab.hlo.text import Computation, Instruction, Module

_AS_THEY_ARE = frozenset({"bitcast", "copy", "copy-done", "copy-start"})
_ZEROS = frozenset({"0", "-0", "0.0"})


def is_zero_padded_shard(value: Instruction, computation: Computation, module: Module) -> bool:
    """Whether it is zeros but for a slice, as `dynamic-update-slice` makes it, alone or at the end of a fusion."""
    value = _source(value, computation)
    if value.opcode != "fusion":
        return value.opcode == "dynamic-update-slice" and _is_zeros(value.operands[0], computation)
    fused = module.computations.get(value.attribute("calls") or "")
    if fused is None or fused.root is None or (written := _source(fused.root, fused)).opcode != "dynamic-update-slice":
        return False
    into = fused.by_name.get(written.operands[0])
    if into is not None and into.opcode == "parameter":
        return _is_zeros(value.operands[int(into.literal)], computation)
    return _is_zeros(written.operands[0], fused)


def _source(value: Instruction, computation: Computation) -> Instruction:
    """The value itself, wherever it was copied to."""
    while value.opcode in _AS_THEY_ARE and (source := computation.by_name.get(value.operands[0])) is not None:
        value = source
    return value


def _is_zeros(name: str, computation: Computation) -> bool:
    broadcast = computation.by_name.get(name)
    if broadcast is None or broadcast.opcode != "broadcast":
        return False
    constant = computation.by_name.get(broadcast.operands[0])
    return constant is not None and constant.opcode == "constant" and constant.literal in _ZEROS
