"""The text of an HLO module as computations of instructions.

Tolerant on purpose: XLA's own parser refuses the text of other versions and cut files. What cannot be read is kept in
`Module.unread`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain

from lab.core.lazy import lazy, share_keys
from lab.hlo.opcodes import BINARY, WITHOUT_OPERANDS

# An instruction as XLA prints it, with the line break before it. Each part ends at the first character that may not
# stand in it, which is by far the fastest; where one runs on into the next line, matches are fewer than line breaks.
_LINE = re.compile(r"\n  (ROOT )?%([^ ]+) = ([^ (][^ ]*|\(.*?\)) ([^(]+)\(([^)]*)(.*)")
_OPCODE = re.compile(r"[a-z][\w\-]*")
_NUMBERS = re.compile(
    r"%([\w.\-]+) (\(([\w.\-]+): ([a-z]\w*\[\]), ([\w.\-]+): \4\) -> \4) \{\n"
    r"  %\3 = \4 parameter\(0\)\n  %\5 = \4 parameter\(1\)\n"
    r"  ROOT %([\w.\-]+) = \4 ([a-z][a-z\-]*)\((?:%\3, %\5|%\5, %\3)\)\n\}\n\n?"
)
"""A whole computation that makes one number of two."""
_INSTRUCTION = re.compile(r"[ \t]+(ROOT )?%?([^\s=]+) = (.*?) ([a-z][\w\-]*)\((.*)")
_NAMES = re.compile(r"%([\w.\-]+(?:, %[\w.\-]+)*)\)")
_END = re.compile(r"\}(?:, execution_thread=.*|\s*)$")
_HEADER = re.compile(r"(ENTRY )?%?([^\s(]+) (\(.*)?\{[ \t]*$")
COMMENT = re.compile(r"/\*.{0,40}?\*/")
# In a list of operands: more than names and commas.
_TYPED = re.compile(r"[\[({/]| (?!%)|,(?! )")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
# Opcodes whose computations run when they do; of an async pair only the start runs it.
RUNS_CALLEE = frozenset(
    """fusion call while conditional async-start fusion-start call-start custom-call custom-call-start""".split()
)
PARAMETER = frozenset({"parameter"})
_ONE_CALLEE = {"fusion": ", calls=%", "call": ", to_apply=%"}
_NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
_PIECE = 1 << 14
_MANY = 100
"""Instructions of a computation that are worth a table."""
_MOST_LINES = 100
"""Of one instruction."""
_AFTER_ATTRIBUTES = (", frontend_attributes={", ", metadata={", ", backend_config=")
_MORE_ATTRIBUTES = re.compile(r"}, (?!frontend_attributes=|metadata=|backend_config=)[a-z_\-]+=")
_QUOTED = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*\\?(?:"|\Z)')
"""Without its end all that follows, so that nothing is looked at twice."""
_MARKS = re.compile(rf"{_QUOTED.pattern}|[{{}}]|, (?:frontend_attributes|metadata|backend_config)=")


@cache
def _attribute(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?:^|[ ,{{]){re.escape(name)}=%?([^\s,{{}}]+)")


@dataclass(eq=False)
class Instruction:
    """One line of a computation. `shape` is the result's type as printed, `tail` all that follows the operands' opening
    parenthesis."""

    name: str
    shape: str
    opcode: str
    is_root: bool
    tail: str

    @property
    def _close(self) -> int:
        end = self.tail.find(")")
        return end if end >= 0 and self.tail.find("(", 0, end) < 0 else closing_parenthesis(self.tail)

    @lazy
    def operands(self) -> tuple[str, ...]:
        """Names of the operands, in order."""
        if self.opcode in WITHOUT_OPERANDS:
            return ()
        found = _NAMES.match(self.tail)  # Most by far.
        return tuple(found[1].split(", %")) if found else names_in(self.literal)

    @property
    def literal(self) -> str:
        """What stands between the parentheses: the value of a constant, the number of a parameter."""
        return self.tail[: self._close]

    @property
    def closing(self) -> tuple[str, str]:
        """The parenthesis after the operands, if there is one, and all that follows it."""
        return self.tail[self._close : self._close + 1], self.extras

    @property
    def extras(self) -> str:
        """All that follows the operands: attributes, metadata and backend configuration."""
        return self.tail[self._close + 1 :]

    @lazy
    def attributes(self) -> str:
        """The attributes alone, without metadata, frontend attributes and backend configuration, in whose strings
        anything may stand."""
        extras = self.extras
        ends = [end for marker in _AFTER_ATTRIBUTES if (end := extras.find(marker)) >= 0]
        if not ends:
            return extras
        own, rest = extras[: min(ends)], extras[min(ends) :]
        return own + _further_attributes(rest) if _MORE_ATTRIBUTES.search(rest) else own

    @lazy
    def wording(self) -> str:
        """The attributes without what is each line's own, its channel and the computation that it applies."""
        before, names_groups, groups = self.attributes.partition(", replica_groups=")
        if not names_groups:
            return before
        groups, applies, callee = groups.partition(", to_apply=%")
        return "".join((before.rstrip("0123456789"), names_groups, groups, applies, *callee.partition(",")[1:]))

    def attribute(self, name: str) -> str | None:
        """The bare value of an attribute such as `body=%region_0.1` or `index=3`."""
        found = _attribute(name).search(self.attributes)
        return found[1] if found else None

    def braced(self, name: str) -> str | None:
        """The inside of an attribute such as `dimensions={0,1}`, nested braces included."""
        return braced(self.attributes, name)

    @lazy
    def callees(self) -> list[str]:
        """Every computation that it names."""
        if "=" not in self.tail:
            return []
        if self.opcode in _ONE_CALLEE:  # Most by far.
            name = self.tail.partition(_ONE_CALLEE[self.opcode])[2].partition(",")[0]
            if name and not name.strip(_NAME):
                return [name]
        if "_computations=" not in self.tail:
            return _CALLED.findall(self.attributes)
        listed = self.braced("branch_computations") or self.braced("called_computations") or ""
        return [*_CALLED.findall(self.attributes), *re.findall(r"%?([\w.\-]+)", listed)]

    @property
    def op_name(self) -> str | None:
        """The name stack that JAX gave it."""
        if "op_name=" not in self.tail:
            return None
        found = re.search(r'metadata=\{[^}]*?op_name="([^"\\]*(?:\\.[^"\\]*)*)"', self.extras)
        return found[1] if found else None


class Instructions:
    """Those of a computation, in columns as they are printed: a text has tens of thousands, and `Instruction`s are made
    of those alone that are asked for.

    Attributes:
      roots: what marks a root, or nothing.
      operands: what stands before the first closing parenthesis.
      rests: from there on.
    """

    __slots__ = ("_by_opcode", "_made", "names", "opcodes", "operands", "rests", "roots", "shapes")

    def __init__(self, columns: Sequence[Sequence[str]]) -> None:
        self.roots, self.names, self.shapes, self.opcodes, self.operands, self.rests = columns or [()] * 6
        self._made: list[Instruction | None] = [None] * len(self.names)
        self._by_opcode: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: int) -> Instruction:
        made = self._made[number]
        if made is None:
            made = self._made[number] = Instruction(
                self.names[number],
                self.shapes[number],
                self.opcodes[number],
                bool(self.roots[number]),
                self.operands[number] + self.rests[number],
            )
        return made

    def __iter__(self) -> Iterator[Instruction]:
        return map(self.__getitem__, range(len(self)))

    def having(self, opcodes: frozenset[str], mention: str = "") -> list[Instruction]:
        """Those of these opcodes that mention something in what follows their operands."""
        return [self[number] for number in self.numbers(opcodes) if mention in self.rests[number]]

    def numbers(self, opcodes: frozenset[str]) -> list[int]:
        """Which are of these opcodes."""
        if len(self) < _MANY:
            return [number for number, opcode in enumerate(self.opcodes) if opcode in opcodes]
        if not self._by_opcode:
            self._by_opcode = {opcode: [] for opcode in set(self.opcodes)}
            for number, opcode in enumerate(self.opcodes):
                self._by_opcode[opcode].append(number)
        return sorted(chain.from_iterable([self._by_opcode[opcode] for opcode in opcodes & self._by_opcode.keys()]))


class _ByName(Mapping[str, Instruction]):
    """The instructions of a computation by name, and what can be told of them without making them."""

    __slots__ = ("_instructions", "_numbers")

    def __init__(self, instructions: Instructions) -> None:
        self._instructions = instructions
        self._numbers = dict(zip(instructions.names, range(len(instructions)), strict=True))

    def __getitem__(self, name: str) -> Instruction:
        return self._instructions[self._numbers[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def opcode(self, name: str) -> str:
        """Of what has this name; nothing where there is none."""
        number = self._numbers.get(name)
        return "" if number is None else self._instructions.opcodes[number]

    def shapes(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The types of those of these names that there are."""
        shapes, numbers = self._instructions.shapes, self._numbers
        return tuple([shapes[numbers[name]] for name in names if name in numbers])


@dataclass
class Computation:
    """One that makes one number of two and is printed as XLA does, so that nothing in it can be damaged, is kept as it
    is printed: most are such, of reductions, and few are asked for.

    Attributes:
      signature: what its first line has between name and brace: `(x: f32[2], y: f32[]) -> f32[2]`, or nothing.
      read: its instructions, None until one asks for those of one that is kept as it is `printed`.
    """

    name: str
    is_entry: bool
    signature: str
    read: Instructions | None = None
    printed: str = ""

    @property
    def is_of_numbers(self) -> bool:
        return bool(self.printed)

    @property
    def instructions(self) -> Instructions:
        if self.read is None:
            self.read, _ = _line_by_line(self.printed, _end_of_line(self.printed, 0) + 1, Module())
        return self.read

    @lazy
    def by_name(self) -> _ByName:
        return _ByName(self.instructions)

    @lazy
    def parameters(self) -> dict[str, int]:
        """Number of each parameter, by name."""
        return {
            i.name: int(i.literal)
            for i in self.instructions.having(PARAMETER)
            if i.literal.isdecimal() and len(i.literal) < 10
        }

    @lazy
    def users(self) -> dict[str, list[Instruction]]:
        """The instructions that each one feeds, by name."""
        found: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            for operand in instruction.operands:
                found.setdefault(operand, []).append(instruction)
        return found

    @lazy
    def root(self) -> Instruction | None:
        roots = self.instructions.roots
        last = next((number for number in range(len(roots) - 1, -1, -1) if roots[number]), len(roots) - 1)
        return self.instructions[last] if roots else None


share_keys(Instruction("", "", "", False, ""))
share_keys(Computation("", False, ""))


@dataclass
class Module:
    """A parsed text.

    Attributes:
      computations: by name, in the text's order.
      unread: lines before, among and between the computations that are no instruction.
      is_cut: the text ends inside a computation.
      repeated: names that two computations have.
      types, opcodes: of all instructions, as printed, each with itself: one copy of each, since lines repeat them.
    """

    head_lines: list[str] = field(default_factory=list)
    computations: dict[str, Computation] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    is_cut: bool = False
    repeated: list[str] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    opcodes: dict[str, str] = field(default_factory=dict)

    def add(self, computation: Computation) -> None:
        if computation.name in self.computations:
            self.repeated.append(computation.name)
        self.computations[computation.name] = computation

    @lazy
    def head(self) -> str:
        """What stands before the first computation: the module's line and the tables of files and stack frames."""
        return "\n".join(self.head_lines)

    @lazy
    def first_line(self) -> str:
        """The module's own, without the tables of files and frames: a path may read like an attribute."""
        return self.head.partition("\nFileNames\n")[0]

    def having(self, opcodes: frozenset[str], mention: str = "") -> list[tuple[Instruction, Computation]]:
        """Each instruction of these opcodes with its computation, in the text's order; none of the computations that
        make one number of two."""
        key = opcodes, mention
        if key not in self._having:
            self._having[key] = [(i, c) for c in self._larger for i in c.instructions.having(opcodes, mention)]
        return self._having[key]

    @lazy
    def _larger(self) -> list[Computation]:
        return [c for c in self.computations.values() if not c.is_of_numbers]

    @lazy
    def _having(self) -> dict[tuple[frozenset[str], str], list[tuple[Instruction, Computation]]]:
        return {}

    @lazy
    def calls(self) -> dict[str, list[str]]:
        """The computations that each computation runs, by name, of those that run any. Those of a reduction or a sort,
        which run an element, are left out."""
        found: dict[str, list[str]] = {}
        for i, computation in self.having(RUNS_CALLEE):
            found.setdefault(computation.name, []).extend(i.callees)
        return found

    @lazy
    def times_called(self) -> Counter[str]:
        """How many instructions run each computation, by its name."""
        return Counter(chain.from_iterable(self.calls.values()))

    def called(self, caller: Computation, name: str | None) -> Computation | None:
        """The computation of that name, None where there is none or where the call would lead back to a running one."""
        return None if name is None or self.is_circle(caller.name, name) else self.computations.get(name)

    def is_circle(self, caller: str, callee: str) -> bool:
        """Whether this call leads back to a computation that is still running."""
        return (caller, callee) in self._circles

    @lazy
    def _circles(self) -> frozenset[tuple[str, str]]:
        """Calls that lead back to a computation which is still running: only a damaged text has them."""
        found: set[tuple[str, str]] = set()
        done: set[str] = set()
        for start in self.calls:
            if start in done:
                continue
            path, pending = {start: None}, [iter(self.calls[start])]
            while path:
                callee = next(pending[-1], None)
                if callee is None:
                    done.add(path.popitem()[0])
                    pending.pop()
                elif callee in path:
                    found.add((next(reversed(path)), callee))
                elif callee not in done:
                    path[callee] = None
                    pending.append(iter(self.calls.get(callee, ())))
        return frozenset(found)

    @property
    def entry(self) -> Computation | None:
        """The marked entry, or the only computation of a text by hand: XLA's printer begins with `HloModule`, and marks
        the entry."""
        marked = [c for c in self.computations.values() if c.is_entry]
        if marked:
            return marked[-1]
        is_by_hand = len(self.computations) == 1 and not self.is_cut and "HloModule" not in self.head
        return next(iter(self.computations.values())) if is_by_hand else None


def parse(text: str) -> Module:
    """Reads the text of one module; never fails on text it does not understand."""
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    text = text.removeprefix("\ufeff")
    module, start = Module(), 0
    while start <= len(text):
        start = _of_numbers(text, start, module) or _computation(text, start, module) or _outside(text, start, module)
    if text.count("/*") > text.count("/*index="):  # Those that XLA prints; what others enclose may go on for lines.
        module.unread += [line.strip() for line in text.split("\n") if "/*" in line and _leaves_comment_open(line)]
    return module


# Each of these reads what begins at `start` and gives where the text goes on, None where something else stands there.


def _of_numbers(text: str, start: int, module: Module) -> int | None:
    """A computation that makes one number of two."""
    found = _NUMBERS.match(text, start)
    if found is None:
        return None
    name, signature, left, shape, right, result, opcode = found.groups()
    if opcode not in BINARY or left == right or result in (left, right):
        return None
    module.types.setdefault(shape, shape)
    module.opcodes.setdefault("parameter", "parameter")
    module.opcodes.setdefault(opcode, opcode)
    module.add(Computation(name, False, signature, printed=found[0]))
    return found.end()


def _computation(text: str, start: int, module: Module) -> int | None:
    """Any other one."""
    end = _end_of_line(text, start)
    header = _HEADER.match(text[start:end])
    if header is None:
        return None
    instructions, start = _block(text, end, module) or _line_by_line(text, end + 1, module)
    module.add(Computation(header[2], header[1] is not None, (header[3] or "").rstrip(), instructions))
    return start


def _outside(text: str, start: int, module: Module) -> int:
    """A line that stands in no computation."""
    end = _end_of_line(text, start)
    line = text[start:end]
    if not module.computations and not _is_misplaced(line):
        module.head_lines.append(line)
    elif line.strip():
        module.unread.append(line.strip())
    return end + 1


def _end_of_line(text: str, start: int) -> int:
    end = text.find("\n", start)
    return end if end >= 0 else len(text)


def _block(text: str, start: int, module: Module) -> tuple[Instructions, int] | None:
    """The instructions of a computation whose first line ends at `start`, and where the text goes on; None where any
    line has another form than most."""
    stop = text.find("\n}", start)
    end = _end_of_line(text, stop + 1)
    if stop < 0 or not _END.match(text[stop + 1 : end]):
        return None
    instructions = _usual(text, start, stop, module.types, module.opcodes)
    return None if instructions is None else (instructions, end + 1)


def _usual(text: str, start: int, stop: int, types: dict[str, str], opcodes: dict[str, str]) -> Instructions | None:
    """Lines that all have the form that most have. Several times as fast as line by line."""
    columns: list[list[str]] = [[], [], [], [], [], []]
    while start < stop:  # Piece by piece, so that little is held twice.
        cut = text.find("\n", start + _PIECE, stop)
        cut = cut if cut >= 0 else stop
        rows = _LINE.findall(text, start, cut)
        if len(rows) != text.count("\n", start, cut):
            return None
        roots, names, shapes, codes, operands, rests = zip(*rows, strict=True)
        if not all(map(_OPCODE.fullmatch, set(codes) - opcodes.keys())):
            return None
        kept_shapes, kept_codes = map(types.setdefault, shapes, shapes), map(opcodes.setdefault, codes, codes)
        for column, more in zip(columns, (roots, names, kept_shapes, kept_codes, operands, rests), strict=True):
            column.extend(more)
        start = cut
    return Instructions(list(map(tuple, columns)))


def _line_by_line(text: str, start: int, module: Module) -> tuple[Instructions, int]:
    """As `_block`, of lines of any form; those that are no instruction are kept in `module.unread`."""
    rows: list[tuple[str, str, str, str, str]] = []
    types, opcodes = module.types, module.opcodes
    open_line: _OpenLine | None = None
    while start <= len(text):
        end = _end_of_line(text, start)
        line, start = text[start:end], end + 1
        # Most lines: no ROOT and no tuple. Several times as fast as the pattern.
        left, _, right = line.partition(" = ")
        shape, _, call = right.partition(" ")
        opcode, opens, tail = call.partition("(")
        name = left[3:] if left.startswith("  %") else left.strip().lstrip("%")
        if (
            opens
            and " " not in name
            and shape[0] != "("
            and line[0].isspace()
            and (known := opcodes.get(opcode) or _opcode(opcode, opcodes))
        ):
            rows.append(("", name, types.setdefault(shape, shape), known, tail))
            open_line = None
        elif _END.match(line):
            return _in_columns(rows), start
        elif found := _INSTRUCTION.match(line):
            root, name, shape, opcode, tail = found.groups()
            rows.append((root or "", name, types.setdefault(shape, shape), opcodes.setdefault(opcode, opcode), tail))
            open_line = None
        elif rows and line and not line[0].isspace():
            open_line = open_line or _OpenLine(rows[-1][-1])
            if open_line.takes(line):
                rows[-1] = (*rows[-1][:-1], rows[-1][-1] + line)
            else:
                module.unread.append(line.strip())
        elif line.strip():
            module.unread.append(line.strip())
    module.is_cut = True
    return _in_columns(rows), start


def _in_columns(rows: list[tuple[str, str, str, str, str]]) -> Instructions:
    tails = [tail.partition(")") for *_, tail in rows]
    table = [(*row[:4], operands, end + rest) for row, (operands, end, rest) in zip(rows, tails, strict=True)]
    return Instructions(list(zip(*table, strict=True)))


def _opcode(text: str, known: dict[str, str]) -> str | None:
    return known.setdefault(text, text) if text.replace("-", "").isalnum() else None


class _OpenLine:
    """An instruction whose configuration has line breaks, such as a kernel's metadata: it goes on while a string or
    brace is open."""

    def __init__(self, tail: str) -> None:
        self._lines = self._braces = self._quotes = 0
        self._count(tail)

    def takes(self, line: str) -> bool:
        if (self._braces <= 0 and self._quotes % 2 == 0) or self._lines == _MOST_LINES:
            return False
        self._count(line)
        return True

    def _count(self, part: str) -> None:
        self._lines += 1
        self._braces += part.count("{") - part.count("}")
        self._quotes += part.count('"') - part.count('\\"')


def _leaves_comment_open(line: str) -> bool:
    bare = _QUOTED.sub("", line)
    return bare.rfind("/*") > bare.rfind("*/")


def _further_attributes(rest: str) -> str:
    """What stands between and after metadata, frontend attributes and configuration: XLA prints nothing there, but
    reads it."""
    found, start, depth, is_inside = list[str](), 0, 0, False
    for mark in _MARKS.finditer(rest):
        if mark[0].startswith(", "):
            if not is_inside:
                found.append(rest[start : mark.start()])
                is_inside = True
        elif is_inside:
            depth += {"{": 1, "}": -1}.get(mark[0], 0)
            if depth <= 0:
                start, depth, is_inside = mark.end(), 0, False
    return "".join(found if is_inside else [*found, rest[start:]])


def _is_misplaced(line: str) -> bool:
    """Whether a line before the first computation belongs inside one."""
    return (line[:1].isspace() and bool(_INSTRUCTION.match(line))) or line.startswith("}")


def names_in(listed: str) -> tuple[str, ...]:
    """The names of a list of operands, which may have types and comments."""
    if not _TYPED.search(listed):
        return tuple(listed.replace("%", "").split(", ")) if listed else ()
    listed = COMMENT.sub("", listed)
    return tuple(words[-1].lstrip("%") for item in split_outside_brackets(listed) if (words := item.rsplit(None, 1)))


def braced(attributes: str, name: str) -> str | None:
    """The inside of `name={...}`, nested braces included."""
    start = attributes.find(f"{name}={{")
    if start < 0:
        return None
    start += len(name) + 2
    return attributes[start : start + closing_brace(attributes[start:])]


def closing_parenthesis(text: str) -> int:
    """Where the parenthesis closes that stands open before `text`."""
    end = text.find(")")
    if end < 0:
        return len(text)
    depth = text.count("(", 0, end)
    while depth:
        following = text.find(")", end + 1)
        if following < 0:
            return len(text)
        depth += text.count("(", end + 1, following) - 1
        end = following
    return end


def closing_brace(text: str) -> int:
    """Where the brace closes that stands open before `text`."""
    end = text.find("}")
    if end >= 0 and text.find("{", 0, end) < 0:
        return end
    depth = 1
    for found in re.finditer(r"[{}]", text):
        depth += 1 if found[0] == "{" else -1
        if not depth:
            return found.start()
    return len(text)


def split_outside_brackets(text: str) -> list[str]:
    """Splits at commas that stand in no bracket: the operands of a list, the elements of a tuple type."""
    if "(" not in text and "[" not in text and "{" not in text:
        return text.split(",")
    items, depth, start = [], 0, 0
    for found in re.finditer(r"[()\[\]{},]", text):
        mark = found[0]
        if mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth -= 1
        elif not depth:
            items.append(text[start : found.start()])
            start = found.end()
    return [*items, text[start:]]
