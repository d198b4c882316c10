"""What a combined transfer tells of each of its operands: XLA joins the names of what it combines
(`prefix/(a:b:c)`), keeps one of them, or none; what makes an operand has a name of its own, and where several sums are
packed into one array, what takes one of them out of the result may keep its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from lab.hlo.flops import operand_shapes
from lab.hlo.packing import pieces
from lab.hlo.shapes import arrays
from lab.hlo.text import Computation, Instruction, Module

_AS_IT_IS = frozenset({"bitcast", "reshape", "copy", "transpose", "convert", "broadcast"})
_FARTHEST = 16
_SUM = re.compile(r"/psum\w*$")


def joined_names(op_name: str | None) -> tuple[str, ...]:
    """`p/a` and `p/b` of `p/(a:b)`; () of a name that joins none."""
    if not op_name or not op_name.endswith(")"):
        return ()
    depth, cuts = 0, [len(op_name) - 1]
    for at in range(len(op_name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(op_name[at], 0)
        if op_name[at] == ":" and depth == 1:
            cuts.append(at)
        if depth == 0:
            ends = cuts[::-1]
            starts = [at + 1, *(cut + 1 for cut in ends[:-1])]
            is_joined = len(cuts) > 1 and op_name[:at].endswith("/")
            return tuple(op_name[:at] + op_name[a:b] for a, b in zip(starts, ends, strict=True)) if is_joined else ()
    return ()


def operand_names(module: Module, instruction: Instruction, computation: Computation) -> list[str | None]:
    """For each operand the nearest name of what makes it; for each piece where they are packed into one."""
    return [
        next((i.op_name for i in producers([source], computation, module) if i.op_name), None)
        for source in _sources(module, instruction, computation)
    ]


def names_of_sums(module: Module, instruction: Instruction, computation: Computation) -> list[str | None]:
    """Of sums that are packed into one array, the name that the program gives each, where it is kept; () of others."""
    if len(instruction.operands) != 1:
        return []
    found, end = list[str | None](), 0
    taken = dict(_taken_out(instruction, computation, module))
    for piece in pieces(instruction.operands[0], computation, module):
        start, end = end, end + piece.shape.elements
        found.append(taken.get(f"[{start}:{end}]"))
    return found


def _taken_out(packed: Instruction, computation: Computation, module: Module) -> Iterator[tuple[str, str]]:
    """Each part of a flat array that is taken out as a sum, and the name of that; it may be that of the part in its own
    shape."""
    for user in computation.users.get(packed.name, ()):
        if user.opcode.endswith("-done"):
            yield from _taken_out(user, computation, module)
        called = module.computations.get(user.attribute("calls") or "") if user.opcode == "fusion" else None
        cut = called.root if called is not None and called.root is not None else user
        shaped = [i for i in computation.users.get(user.name, ()) if i.opcode in _AS_IT_IS]
        named = [i.op_name for i in (cut, *shaped) if i.op_name and _SUM.search(i.op_name)]
        if cut.opcode == "slice" and named:
            yield cut.braced("slice") or "", named[0]


def operand_makers(module: Module, instruction: Instruction, computation: Computation) -> list[Instruction | None]:
    """For each operand, or piece, the operation of the program that gives it, numbers included; None where it is an
    argument, a constant, or XLA's own."""
    return [_maker(source, computation, module) for source in _sources(module, instruction, computation)]


def _sources(module: Module, instruction: Instruction, computation: Computation) -> list[str]:
    sources = list(instruction.operands[:1] if instruction.opcode == "send" else instruction.operands)
    if len(sources) == 1:
        sources = [piece.source for piece in pieces(sources[0], computation, module)]
    return sources


def _maker(name: str, computation: Computation, module: Module) -> Instruction | None:
    for _ in range(_FARTHEST):
        source = computation.by_name.get(name)
        if source is None:
            return None
        if inside := _inside_fusion(source, computation, module):
            (name,), computation = inside
        elif source.opcode == "fusion":
            fused = module.computations.get(source.attribute("calls") or "")
            if fused is None or fused.root is None:
                return None
            name, computation = fused.root.name, fused
        elif source.opcode in _AS_IT_IS and source.operands:
            name = source.operands[0]
        else:
            return source if source.opcode != "constant" and "/" in (source.op_name or "") else None
    return None


def producers(names: Iterable[str], computation: Computation, module: Module, limit: int = 16) -> Iterator[Instruction]:
    """The instructions that make these values, nearest first.

    Numbers and constants are no such: XLA shares them, with the name of any user. Nor is what makes several values at
    once, named after one of them: of a fusion the instructions inside it that make this value, of a loop none.
    """
    queue, seen = list(names), set[str]()
    while queue and len(seen) < limit:
        name = queue.pop(0)
        source = computation.by_name.get(name)
        if source is None or name in seen or not _is_made(source, computation):
            continue
        seen.add(name)
        if one_of_several := _inside_fusion(source, computation, module):
            yield from producers(*one_of_several, module, limit - len(seen))
            continue
        yield source
        queue += source.operands


def _inside_fusion(
    element: Instruction, computation: Computation, module: Module
) -> tuple[list[str], Computation] | None:
    """Of an element of a fusion's results, what it is called inside the fusion, and the fused computation."""
    is_element = element.opcode == "get-tuple-element" and element.operands
    source = computation.by_name.get(element.operands[0]) if is_element else None
    fused = module.computations.get(source.attribute("calls") or "") if source and source.opcode == "fusion" else None
    index = element.attribute("index") or ""
    if fused is None or fused.root is None or fused.root.opcode != "tuple" or not index.isdecimal():
        return None
    return list(fused.root.operands[int(index) : int(index) + 1]), fused


def _is_made(source: Instruction, computation: Computation) -> bool:
    """An array that is computed alone: no number, no constant, no number repeated, no one of several."""
    made = arrays(source.shape)
    if (
        source.opcode in ("constant", "iota")
        or not any(shape.dims for shape in made)
        or (source.opcode in ("fusion", "while") and len(made) > 1)
    ):
        return False
    return source.opcode != "broadcast" or any(shape.dims for shape in operand_shapes(source, computation))
