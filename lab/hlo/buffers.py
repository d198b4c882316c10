"""XLA's buffer assignment: where every value of a program lies on a device, and when; from the `.hlo.pb` of an XLA
dump.

Fields are those of `xla/service/hlo.proto`; colour 0 is a chip's main memory, 5 its host's, others are on the chip.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter

from lab.core.ledger import Memory

MODULE, ASSIGNMENT = 1, 3
COMPUTATION, INSTRUCTION, METADATA, OP_NAME, ID = 3, 2, 7, 2, 35
BUFFER, ALLOCATION, TRACE = 1, 3, 4
DEFINED_AT, DEFINED_BY, COLOR = 3, 4, 4
EVENT, FREED, SHARED = 1, 1, 2
MAIN, HOST = 0, 5
_VARINT, _EIGHT_BYTES, _SIZED, _FOUR_BYTES = 0, 1, 2, 5


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
    assignment = next(_parts(memoryview(proto), ASSIGNMENT), None)
    if assignment is None:
        raise ValueError("no buffer assignment in this module: it was dumped before buffers were assigned")
    buffers = {fields.get(1, 0): part for part in _parts(assignment, BUFFER) for fields in [_numbers(part)]}
    sizes = {number: _numbers(part).get(2, 0) for number, part in buffers.items()}
    allocations = tuple(map(_allocation, map(_numbers, _parts(assignment, ALLOCATION))))
    # The number of an allocation that a trace gives is not the one that the allocation ends with on TPUs.
    traces = [(*_peak(trace, sizes), _color(trace, buffers)) for trace in _parts(assignment, TRACE)]
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
    event = next(map(_numbers, _parts(trace, EVENT)), {})
    return _numbers(buffers[event.get(2, 0)]).get(COLOR, MAIN) if event else MAIN


def _made_by(buffer: memoryview) -> int:
    """The id of the instruction that makes a buffer."""
    return next((_numbers(place).get(DEFINED_BY, 0) for place in _parts(buffer, DEFINED_AT)), 0)


def _op_names(proto: memoryview) -> dict[int, str]:
    """By an instruction's id."""
    found = {}
    for module in _parts(proto, MODULE):
        for computation in _parts(module, COMPUTATION):
            for instruction in _parts(computation, INSTRUCTION):
                for metadata in _parts(instruction, METADATA):
                    name = b"".join(map(bytes, _parts(metadata, OP_NAME)))
                    found[_numbers(instruction).get(ID, 0)] = name.decode(errors="replace")
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
    for event in map(_numbers, _parts(trace, EVENT)):
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


def _numbers(message: memoryview) -> dict[int, int]:
    """The fields that are numbers."""
    return {number: value for number, value in _fields(message) if isinstance(value, int)}


def _parts(message: memoryview, number: int) -> Iterator[memoryview]:
    """Every message that stands in the field of this number."""
    return (value for found, value in _fields(message) if found == number and isinstance(value, memoryview))


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Field numbers and values of one message in protobuf's wire format."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        if key & 7 == _VARINT:
            value, place = _varint(message, place)
            yield key >> 3, value
        else:
            length, place = _length(message, place, key & 7)
            yield key >> 3, message[place : place + length]
            place += length


def _length(message: memoryview, place: int, wire: int) -> tuple[int, int]:
    return _varint(message, place) if wire == _SIZED else ({_EIGHT_BYTES: 8, _FOUR_BYTES: 4}[wire], place)


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
