"""Whether a text is whole: that it reads as a program says little, since what is left of a damaged one often does.

Most of it is what XLA's own parser asks for; beyond that a module has a marked entry, since XLA's printer marks it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from lab.hlo.opcodes import LIMITS, UNLIMITED
from lab.hlo.shapes import Shape, arrays
from lab.hlo.text import Computation, Instruction, Instructions, Module

_OF_ELEMENTS = frozenset("all-reduce all-reduce-start reduce-scatter map reduce reduce-window scatter sort".split())
"""They run a computation for every element."""
_CALLS = {
    "while": ("condition", "body"),
    "fusion": ("calls",),
    "fusion-start": ("calls",),
    "call": ("to_apply",),
    "call-start": ("to_apply",),
    "async-start": ("calls",),
    "select-and-scatter": ("select", "scatter"),
    "conditional": (),
    **dict.fromkeys(_OF_ELEMENTS, ("to_apply",)),
}
"""The computations that an operation names; it runs no program without them."""
_OF_OPERANDS = frozenset("fusion fusion-start call call-start async-start while".split())
"""Their computations have a parameter for each operand."""
_OF_RESULT = frozenset("fusion call".split())
"""They give what their computation gives."""
_DEEPEST = 100
_WITH_DIMENSIONS = frozenset({"broadcast", "transpose"})
"""Without which a product that is written out could not be told."""
_LOOKED_AT = frozenset({"parameter", "get-tuple-element", *_CALLS})
_OF_LITERALS = ("constant", "parameter")
_ENDINGS = frozenset({")", "),"})
"""Of a list of operands: of the line as well, or attributes follow."""
_INDEX = re.compile(r"/\*index=\d+\*/")
_ARRAY = re.compile(
    r"\b(?:pred|token|opaque|[su](?:[1248]|16|32|64)|bf16|f(?:16|32|64|\d+e\d+m\d+[a-z\d]*)|c64|c128)"
    r"\[(?:(?:<=)?\d{1,18}(?:,(?:<=)?\d{1,18})*)?\]"
)
_LAID_OUT = re.compile(r"\b[a-z]\w*\[([^\]]*)\]\{([^{}]*)\}")
_NO_TILE = re.compile(r":.*\((?:\d+,)*0[,)]")
_LAYOUT = re.compile(r"\{[^{}]*\}|/\*.{0,40}?\*/")
_QUOTED = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:(")|\\?\Z)')
"""One that does not end takes all that follows, so that nothing is looked at twice."""
_JOINED = re.compile(r"(?<!\S)%?[^\s=]+ = \S+ [a-z][\w\-]*\(")
_DEVICES = re.compile(r"\b(num_partitions|replica_count)=([^,\s]*)")
_ILL_QUOTED = re.compile(r"''[^\s,:}\])]")
_OVERFLOW = 1 << 63


@dataclass
class _Found:
    """The first case of each kind of damage, and how many there are."""

    cases: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, *cases: str) -> None:
        self.cases.setdefault(kind, []).extend(cases)

    def sentences(self) -> list[str]:
        return [
            f"damaged text: {kind}: {cases[0]}" + f" and {len(cases) - 1:,} more" * (len(cases) > 1)
            for kind, cases in self.cases.items()
        ]


def faults(module: Module) -> list[str]:
    """A sentence for each kind of damage; none for a whole text."""
    found = _Found()
    if cut_short := [name for name, number in _numbers_of_devices(module.first_line) if not _is_index(number)]:
        found.add("no number that devices have", *cut_short)
    if ("\n" + module.head).count("\nHloModule ") > 1:
        found.add("there are two lines HloModule before", next(iter(module.computations)))
    if "HloModule" not in module.head and (len(module.computations) > 1 or module.head.strip()):
        found.add("there is no line HloModule before", next(iter(module.computations)))
    if module.repeated:
        found.add("a computation has the name of another", *module.repeated)
    if wrong := [shape for shape in module.types if not _is_type(shape)]:
        found.add("no type of an array or tuple", *wrong)
    bare = {shape: _without_layouts(shape) for shape in module.types}
    above: dict[str, _Callee] = {}
    for computation in module.computations.values():
        if computation.is_of_numbers:
            above[computation.name] = _of_two_numbers(computation.signature.rpartition(" -> ")[2])
            continue
        parameters, depth = _check_instructions(computation, above, bare, found)
        gives = _check_signature(computation, parameters, bare, found)
        if depth > _DEEPEST:
            found.add(f"a computation is run that runs others in more than {_DEEPEST} levels", computation.name)
        # Only now: a computation stands above those that run it, so that none can run itself.
        above[computation.name] = _Callee(len(parameters), gives, depth)
    return found.sentences()


def _numbers_of_devices(head: str) -> list[tuple[str, str]]:
    return _DEVICES.findall(head) if "num_partitions=" in head or "replica_count=" in head else []


class _Callee(NamedTuple):
    """A computation: how many parameters it has, the type that it gives, how deep it runs others."""

    parameters: int
    gives: str
    depth: int


@lru_cache(maxsize=1 << 6)
def _of_two_numbers(gives: str) -> _Callee:
    return _Callee(2, gives, 0)


def _check_instructions(
    computation: Computation, above: dict[str, _Callee], bare: dict[str, str], found: _Found
) -> tuple[dict[int, Instruction], int]:
    """The parameters by number, and how many levels of computations there are below this one."""
    parameters: dict[int, Instruction] = {}
    depth, lines = 0, computation.instructions
    for number in lines.numbers(_LOOKED_AT):
        opcode, listed, rest = lines.opcodes[number], lines.operands[number], lines.rests[number][1:]
        if opcode == "parameter":
            if _is_index(listed) and int(listed) not in parameters:
                parameters[int(listed)] = lines[number]
            else:
                found.add("a parameter has no number of its own", f"{lines.names[number]} of {computation.name}")
        elif opcode == "get-tuple-element":
            index = rest.removeprefix(", index=").partition(",")[0]
            if not _is_index(index) and not _is_index(lines[number].attribute("index")):
                found.add("an element of a tuple has no number", lines.names[number])
        elif opcode in _OF_ELEMENTS and (callee := above.get(_applied(rest))):
            depth = max(depth, 1 + callee.depth)
        else:
            i = lines[number]
            operands = len(i.operands) if "[" in listed or "(" in listed else _number_of(listed)
            depth = max(depth, 1 + _check_calls(i, _CALLS[opcode], operands, above, bare, found))
    for number in lines.numbers(_WITH_DIMENSIONS):
        if ", dimensions={" not in lines.rests[number]:
            found.add("an operation has no dimensions", f"{lines.opcodes[number]} {lines.names[number]}")
    if not _are_plain(lines):
        _check_each(computation, found)
    if "" in lines.names:
        found.add("an instruction has no name", computation.name)
    if not lines.names:
        found.add("a computation has no instructions", computation.name)
    if computation.is_entry and not any(lines.roots):
        found.add("ENTRY marks no ROOT", computation.name)
    if parameters and max(parameters) >= len(parameters):
        found.add("a computation lacks one of its parameters", computation.name)
    return parameters, depth


def _are_plain(lines: Instructions) -> bool:
    """Whether nothing that `_check_each` looks for can be wrong, several times as fast."""
    rests = set(lines.rests)
    return (
        {rest[:2] for rest in rests} <= _ENDINGS
        and not any(_is_odd(rest) and _is_ill_formed(rest[1:]) for rest in rests)
        and lines.roots.count("") > len(lines) - 2
        and _are_operands_plain(lines)
    )


def _are_operands_plain(lines: Instructions) -> bool:
    """Whether each operation may have as many as it has, all defined above, and no name is there twice."""
    defined, taken = set[str](), set[tuple[str, int]]()
    for name, opcode, listed in zip(lines.names, lines.opcodes, lines.operands, strict=True):
        operands = listed.replace("%", "").split(", ") if listed and opcode not in _OF_LITERALS else []
        if not defined.issuperset(operands) and not defined.issuperset([_INDEX.sub("", one) for one in operands]):
            return False
        taken.add((opcode, len(operands)))
        defined.add(name)
    return len(defined) == len(lines) and all(_may_take(opcode, number) for opcode, number in taken)


def _is_odd(rest: str) -> bool:
    return " = " in rest or rest.count("{") != rest.count("}")


def _may_take(opcode: str, operands: int) -> bool:
    least, most = LIMITS.get(opcode, UNLIMITED)
    return least <= operands <= most


def _number_of(listed: str) -> int:
    return listed.count(", ") + 1 if listed else 0


def _check_each(computation: Computation, found: _Found) -> None:
    """That every operand is defined above, no name twice, and every line is one instruction."""
    defined: set[str] = set()
    for i in computation.instructions:
        closing, rest = i.closing
        if i.opcode not in ("constant", "parameter"):
            operands = i.operands
            if missing := [name for name in operands if name not in defined]:
                found.add("nothing above defines an operand", f"{missing[0] or 'nothing'} of {i.name}")
            if not _may_take(i.opcode, len(operands)):
                found.add("an operation has too few or too many operands", f"{i.opcode} {i.name}")
        if not closing or (rest and rest[0] != ","):
            found.add("an instruction does not end where its line does", i.name)
        if " = " in rest and _JOINED.search(_unquoted(rest, "")):
            found.add("a line has two instructions", i.name)
        if _is_unended(rest):
            found.add("a string or brace does not end", i.name)
        defined.add(i.name)
    if len(defined) < len(computation.instructions):
        found.add("two instructions of a computation have one name", computation.name)
    if len([root for root in computation.instructions.roots if root]) > 1:
        found.add("a computation has two roots", computation.name)


def _is_ill_formed(rest: str) -> bool:
    return _JOINED.search(_unquoted(rest, "")) is not None or _is_unended(rest)


def _unquoted(text: str, instead: str) -> str:
    """Without its strings; of one that does not end its mark stays."""
    return _QUOTED.sub(lambda quoted: instead if quoted[1] else '"', text)


def _is_unended(rest: str) -> bool:
    bare = _unquoted(rest, "''")
    return bare.count("{") != bare.count("}") or '"' in bare or _ILL_QUOTED.search(bare) is not None


def _is_index(text: str | None) -> bool:
    return text is not None and text.isdecimal() and len(text) < 10


def _check_calls(
    i: Instruction,
    calls: tuple[str, ...],
    operands: int,
    above: dict[str, _Callee],
    bare: dict[str, str],
    found: _Found,
) -> int:
    """That the computations are there, with as many parameters, and give what the operation does; their depth."""
    if i.opcode == "conditional":
        names = i.callees
        if len(names) != operands - 1:
            found.add("a conditional has other than one operand for each branch", i.name)
    else:
        names = [name for which in calls if (name := _callee(i, which, above))]
        if len(names) < len(calls):
            found.add(f"{i.opcode} names no computation to run", i.name)
    depth = 0
    for name in names:
        if (callee := above.get(name)) is None:
            found.add("nothing above defines a computation that is run", f"{name} by {i.name}")
            continue
        depth = max(depth, callee.depth)
        if i.opcode in _OF_OPERANDS and callee.parameters != operands:
            found.add("a computation is run with other operands than it has parameters", i.name)
        gives = bare[i.shape]
        if i.opcode in _OF_RESULT and gives != callee.gives and arrays(gives) != arrays(callee.gives):
            found.add("an operation gives another type than its computation", i.name)
    return depth


def _applied(rest: str) -> str:
    return rest.partition(", to_apply=%")[2].partition(",")[0]


def _callee(i: Instruction, which: str, above: dict[str, _Callee]) -> str | None:
    name = i.tail.partition(f", {which}=%")[2].partition(",")[0]
    return name if name in above else i.attribute(which)


def _check_signature(
    computation: Computation, parameters: dict[int, Instruction], bare: dict[str, str], found: _Found
) -> str:
    """That a computation's first line says what it takes and gives, in XLA's long form; the type of its root."""
    root = computation.root
    if root is None:
        return ""
    result = bare[root.shape]
    taken = [parameters[number] for number in sorted(parameters)]
    said = computation.signature
    if said and said != f"({', '.join([f'{i.name}: {bare[i.shape]}' for i in taken])}) -> {result}":
        takes, arrow, gives = said.rpartition(" -> ")
        if arrow and (
            arrays(gives) != arrays(result) or arrays(takes) != tuple(s for i in taken for s in arrays(i.shape))
        ):
            found.add("a computation takes or gives another type than its first line says", computation.name)
    return result


def _without_layouts(text: str) -> str:
    return _LAYOUT.sub("", _LAYOUT.sub("", text)) if "{" in text or "/" in text else text


@lru_cache(maxsize=1 << 10)
def _is_type(text: str) -> bool:
    """Arrays of at most 2^63 bytes, in tuples or alone."""
    rest = _ARRAY.sub("", _without_layouts(text))
    if not all(_is_layout(*array.groups()) for array in _LAID_OUT.finditer(text)):
        return False
    return not rest.strip("(), ") and rest.count("(") == rest.count(")") and all(map(_fits, arrays(text)))


def _is_layout(dims: str, layout: str) -> bool:
    """Whether it orders the dims of its array, with tiles of some size."""
    order = layout.partition(":")[0]
    rank = dims.count(",") + 1 if dims else 0
    is_order = not order or sorted(order.split(",")) == sorted(map(str, range(rank)))
    return is_order and not _NO_TILE.search(layout)


def _fits(shape: Shape) -> bool:
    return shape.bytes < _OVERFLOW
