"""XLA's own parser of HLO text, the referee of ours; it refuses texts of other versions and cut ones."""

import re
from typing import Any, NamedTuple


class Read(NamedTuple):
    """What both parsers must agree on; `shape` without layouts."""

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]


def parsed_by_xla(text: str) -> Any:
    """An `HloModule`; raises JaxRuntimeError where XLA refuses the text."""
    from jaxlib import _hlo  # Private, but nothing public parses HLO text.

    return _hlo.hlo_module_from_text(text)


def read_by_xla(text: str) -> dict[str, list[Read]]:
    """Instructions of every computation."""
    return {
        c.name: [_read(instruction) for instruction in c.instructions()] for c in parsed_by_xla(text).computations()
    }


def _read(instruction: Any) -> Read:
    shape, opcode = _shape_and_opcode(instruction.to_string())
    return Read(
        instruction.name, opcode, without_layouts(shape), tuple(operand.name for operand in instruction.operands())
    )


def _shape_and_opcode(printed: str) -> tuple[str, str]:
    """Of `%name = (f32[2], u32[]) opcode(...`: the shape ends at the first blank outside brackets."""
    _, _, definition = printed.partition(" = ")
    depth = 0
    for at, mark in enumerate(definition):
        depth += (mark in "([{") - (mark in ")]}")
        if mark == " " and depth == 0:
            return definition[:at], definition[at + 1 :].partition("(")[0]
    raise ValueError(f"no opcode in {printed!r}")


def without_layouts(shape: str) -> str:
    return re.sub(r"/\*.*?\*/|\{[^{}]*\}| ", "", shape)
