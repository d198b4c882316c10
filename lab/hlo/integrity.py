"""Whether a text is whole: that it reads as a program says little, since what is left of a damaged one often does.

Most of it is what XLA's own parser asks for; beyond that a module has a marked entry, since XLA's printer marks it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from lab.hlo.opcodes import LIMITS, UNLIMITED
from lab.hlo.shapes import Shape, arrays
from lab.hlo.text import Computation, Instruction, Module, names_in

_CALLS = {
    "while": ("condition", "body"),
    "fusion": ("calls",),
    "fusion-start": ("calls",),
    "call": ("to_apply",),
    "call-start": ("to_apply",),
    "async-start": ("calls",),
    "select-and-scatter": ("select", "scatter"),
    "conditional": (),
    **dict.fromkeys(
        "all-reduce all-reduce-start reduce-scatter map reduce reduce-window scatter sort".split(), ("to_apply",)
    ),
}
"""The computations that an operation names; it runs no program without them."""
_OF_OPERANDS = frozenset("fusion fusion-start call call-start async-start while".split())
"""Their computations have a parameter for each operand."""
_NO_RULE = (*UNLIMITED, None)
_RULES = {opcode: (*LIMITS.get(opcode, UNLIMITED), _CALLS.get(opcode)) for opcode in LIMITS.keys() | _CALLS.keys()}
"""The fewest and the most operands, and what an operation calls."""
_ARRAY = re.compile(r"[a-z]+\w*\[(?:(?:<=)?\d{1,18}(?:,(?:<=)?\d{1,18})*)?\]")
_LAYOUT = re.compile(r"\{[^{}]*\}|/\*.*?\*/")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_JOINED = re.compile(r"%?[^\s=]+ = \S+ [a-z][\w\-]*\(")
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
    if module.repeated:
        found.add("a computation has the name of another", *module.repeated)
    if wrong := [shape for shape in module.types if not _is_type(shape)]:
        found.add("no type of an array or tuple", *wrong)
    bare = {shape: _without_layouts(shape) for shape in module.types}
    parameters: dict[str, int] = {}
    for computation in module.computations.values():
        own = _check_instructions(computation, parameters, found)
        _check_signature(computation, own, bare, found)
        # Only now: a computation stands above those that run it, so that none can run itself.
        parameters[computation.name] = len(own)
    return found.sentences()


def _check_instructions(computation: Computation, callable: dict[str, int], found: _Found) -> dict[int, Instruction]:
    """That every operand and callee is defined above, and no name twice; the parameters by number."""
    defined: set[str] = set()
    parameters: dict[int, Instruction] = {}
    for i in computation.instructions:
        opcode = i.opcode
        listed, closing, rest = i.tail.partition(")")
        if opcode == "parameter":
            if listed.isdecimal() and len(listed) < 10 and int(listed) not in parameters:
                parameters[int(listed)] = i
            else:
                found.add("a parameter has no number of its own", f"{i.name} of {computation.name}")
        elif opcode != "constant":
            operands: Sequence[str] = listed.split(", ")
            # As XLA prints them; with types, comments or brackets, or without the sign, it takes longer.
            if not defined.issuperset(operands):
                operands, closing, rest = names_in(i.literal), *i.closing
                if missing := [name for name in operands if f"%{name}" not in defined]:
                    found.add("nothing above defines an operand", f"{missing[0] or 'nothing'} of {i.name}")
            least, most, calls = _RULES.get(opcode, _NO_RULE)
            if not least <= len(operands) <= most:
                found.add("an operation has too few or too many operands", f"{opcode} {i.name}")
            if calls is not None:
                _check_calls(i, calls, len(operands), callable, found)
        if (not closing or (rest and rest[0] != ",")) and not _ends(i):
            found.add("an instruction does not end where its line does", i.name)
        if " = " in rest and _JOINED.search(_QUOTED.sub("", rest)):
            found.add("a line has two instructions", i.name)
        defined.add(f"%{i.name}")
    if len(defined) < len(computation.instructions):
        found.add("two instructions of a computation have one name", computation.name)
    if len([i for i in computation.instructions if i.is_root]) > 1:
        found.add("a computation has two roots", computation.name)
    if not computation.instructions:
        found.add("a computation has no instructions", computation.name)
    if parameters and max(parameters) >= len(parameters):
        found.add("a computation lacks one of its parameters", computation.name)
    return parameters


def _check_calls(
    i: Instruction, calls: tuple[str, ...], operands: int, callable: dict[str, int], found: _Found
) -> None:
    """Args: callable: how many parameters each computation above has."""
    if i.opcode == "conditional":
        names = i.callees
        if len(names) != operands - 1:
            found.add("a conditional has other than one operand for each branch", i.name)
    else:
        names = [name for which in calls if (name := _callee(i, which, callable))]
        if len(names) < len(calls):
            found.add(f"{i.opcode} names no computation to run", i.name)
    for name in names:
        if name not in callable:
            found.add("nothing above defines a computation that is run", f"{name} by {i.name}")
        elif i.opcode in _OF_OPERANDS and callable[name] != operands:
            found.add("a computation is run with other operands than it has parameters", i.name)


def _callee(i: Instruction, which: str, callable: dict[str, int]) -> str | None:
    name = i.tail.partition(f", {which}=%")[2].partition(",")[0]
    return name if name in callable else i.attribute(which)


def _check_signature(
    computation: Computation, parameters: dict[int, Instruction], bare: dict[str, str], found: _Found
) -> None:
    """That a computation's first line says what it takes and gives; one in XLA's short form says nothing."""
    takes, arrow, gives = computation.signature.rpartition(" -> ")
    root = computation.root
    if not arrow or root is None:
        return
    taken = [parameters[number] for number in sorted(parameters)]
    if gives == bare[root.shape] and takes[1:-1] == ", ".join([f"{i.name}: {bare[i.shape]}" for i in taken]):
        return
    if arrays(gives) != arrays(root.shape) or arrays(takes) != tuple(s for i in taken for s in arrays(i.shape)):
        found.add("a computation takes or gives another type than its first line says", computation.name)


def _ends(i: Instruction) -> bool:
    """Whether nothing or attributes follow the operands."""
    closing, rest = i.closing
    return closing == ")" and (not rest or rest[0] == ",")


def _without_layouts(text: str) -> str:
    return _LAYOUT.sub("", _LAYOUT.sub("", text)) if "{" in text or "/" in text else text


def _is_type(text: str) -> bool:
    """Arrays of at most 2^63 bytes, in tuples or alone."""
    rest = _ARRAY.sub("", _without_layouts(text))
    return not rest.strip("(), ") and rest.count("(") == rest.count(")") and all(map(_fits, arrays(text)))


def _fits(shape: Shape) -> bool:
    return shape.bytes < _OVERFLOW
