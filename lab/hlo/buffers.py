"""XLA's buffer assignment: where every value of a program lies on a device, and when; from the `.hlo.pb` of an XLA
dump.

Fields are those of `xla/service/hlo.proto`; colour 0 is a chip's main memory, 5 its host's, others are on the chip.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from operator import itemgetter

from lab.core.ledger import Memory
from lab.hlo.protobuf import numbers, parts

MODULE, ASSIGNMENT = 1, 3
COMPUTATION, INSTRUCTION, METADATA, OP_NAME, ID = 3, 2, 7, 2, 35
BUFFER, ALLOCATION, TRACE = 1, 3, 4
DEFINED_AT, DEFINED_BY, COLOR = 3, 4, 4
EVENT, FREED, SHARED = 1, 1, 2
MAIN, HOST = 0, 5


@dataclass(frozen=True)
class Allocation:
    """One stretch of memory, with `size` in bytes; what an entry takes and gives back may be the same."""

    size: int
    color: int
    is_thread_local: bool
    is_argument: bool
    is_output: bool
    is_constant: bool

    @property
    def is_temporary(self) -> bool:
        return not (self.is_argument or self.is_output or self.is_constant)


@dataclass(frozen=True)
class LiveBuffer:
    """A temporary that is held at the fullest moment: its bytes, and the `op_name` of what makes it."""

    size: int
    op_name: str


@dataclass(frozen=True)
class Buffers:
    """What a program holds.

    Attributes:
      allocations: in main memory.
      on_host: in the host's.
      at_peak: the temporaries of `temporaries_peak`.
      temporaries_peak: the most bytes that temporaries fill at once in the memory where that is most: the on-chip one
        in a small program, as XLA has it.
      on_chip: of these, what lies in on-chip memory: all or nothing.
    """

    allocations: tuple[Allocation, ...]
    temporaries_peak: int
    at_peak: tuple[LiveBuffer, ...] = ()
    on_host: tuple[Allocation, ...] = ()
    on_chip: int = 0

    @property
    def arguments(self) -> int:
        return sum(a.size for a in self.allocations if a.is_argument)

    @property
    def outputs(self) -> int:
        return sum(a.size for a in self.allocations if a.is_output)

    @property
    def aliased(self) -> int:
        return sum(a.size for a in self.allocations if a.is_argument and a.is_output)

    @property
    def temporaries(self) -> int:
        return sum(a.size for a in self.allocations if a.is_temporary)

    def memory(self, padding: int) -> Memory:
        """As the ledger has it; `padding` is the arguments'."""
        host = Buffers(self.on_host, 0)
        return Memory(
            self.arguments,
            self.outputs,
            self.temporaries,
            self.aliased,
            self.peak,
            padding,
            host.arguments,
            host.outputs,
            host.temporaries,
            self.on_chip,
        )

    @property
    def peak(self) -> int:
        """XLA's own `peak_memory_in_bytes`: allocations that stay, and temporaries as they come and go."""
        return sum(a.size for a in self.allocations if not a.is_temporary) + self.temporaries_peak


def read_buffers(proto: bytes) -> Buffers:
    """Reads a serialized `HloProto`.

    Raises:
      ValueError: it holds no buffer assignment.
    """
    assignment = next(parts(memoryview(proto), ASSIGNMENT), None)
    if assignment is None:
        raise ValueError("no buffer assignment in this module: it was dumped before buffers were assigned")
    buffers = {fields.get(1, 0): part for part in parts(assignment, BUFFER) for fields in [numbers(part)]}
    sizes = {number: numbers(part).get(2, 0) for number, part in buffers.items()}
    allocations = tuple(map(_allocation, map(numbers, parts(assignment, ALLOCATION))))
    # The number of an allocation that a trace gives is not the one that the allocation ends with on TPUs.
    traces = [(*_peak(trace, sizes), _color(trace, buffers)) for trace in parts(assignment, TRACE)]
    on_device = [trace for trace in traces if trace[-1] != HOST]
    peak, live, color = max(on_device, default=(0, frozenset(), MAIN), key=itemgetter(0))
    names = _op_names(memoryview(proto)) if live else {}
    at_peak = (LiveBuffer(sizes[number], names.get(_made_by(buffers[number]), "")) for number in live)
    held, on_host = (
        tuple(a for a in allocations if a.color == color and not a.is_thread_local) for color in (MAIN, HOST)
    )
    return Buffers(
        held, peak, tuple(sorted(at_peak, key=lambda buffer: -buffer.size)), on_host, peak if color != MAIN else 0
    )


def _color(trace: memoryview, buffers: dict[int, memoryview]) -> int:
    """Of the memory that a trace is of, which its buffers say."""
    event = next(map(numbers, parts(trace, EVENT)), {})
    return numbers(buffers[event.get(2, 0)]).get(COLOR, MAIN) if event else MAIN


def _made_by(buffer: memoryview) -> int:
    """The id of the instruction that makes a buffer."""
    return next((numbers(place).get(DEFINED_BY, 0) for place in parts(buffer, DEFINED_AT)), 0)


def _op_names(proto: memoryview) -> dict[int, str]:
    """By an instruction's id."""
    found = {}
    for module in parts(proto, MODULE):
        for computation in parts(module, COMPUTATION):
            for instruction in parts(computation, INSTRUCTION):
                for metadata in parts(instruction, METADATA):
                    name = b"".join(map(bytes, parts(metadata, OP_NAME)))
                    found[numbers(instruction).get(ID, 0)] = name.decode(errors="replace")
    return found


def _allocation(fields: dict[int, int]) -> Allocation:
    size, color, *flags = (fields.get(number, 0) for number in (2, 8, 3, 5, 7, 12))
    return Allocation(size, color, *map(bool, flags))


def _peak(trace: memoryview, sizes: dict[int, int]) -> tuple[int, frozenset[int]]:
    """The most that is live at once, and whose places are taken then: a place that buffers share is taken while any of
    them is."""
    place: dict[int, int] = {}
    users: Counter[int] = Counter()
    live = peak = at = 0
    taken: list[tuple[int, bool]] = []
    for event in map(numbers, parts(trace, EVENT)):
        kind, buffer = event.get(1, 0), event.get(2, 0)
        if kind != FREED:
            place[buffer] = place[event.get(5, 0)] if kind == SHARED else buffer
        owner = place[buffer]
        before = users[owner]
        users[owner] += -1 if kind == FREED else 1
        if bool(users[owner]) != bool(before):
            taken.append((owner, bool(users[owner])))
            live += sizes[owner] if users[owner] else -sizes[owner]
        if live > peak:
            peak, at = live, len(taken)
    last = dict(taken[:at])
    return peak, frozenset(owner for owner, is_taken in last.items() if is_taken)
