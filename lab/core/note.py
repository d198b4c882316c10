"""Notes of a ledger: sentences, each of a kind with an id."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum, auto
from typing import Self

from lab.core.printable import printable


class NoteKind(StrEnum):
    """What could not be read or was assumed; from `GRADIENTS_SUMMED_NARROW` on what is no fault, and worth knowing."""

    TEXT_CUT = auto()
    TEXT_DAMAGED = auto()
    LINES_NOT_READ = auto()
    NOT_PARTITIONED = auto()
    ONE_DEVICE = auto()
    NO_ENTRY = auto()
    DEVICES_ASSUMED = auto()
    UNKNOWN_TRIP_COUNT = auto()
    UNREACHED_COLLECTIVES = auto()
    UNKNOWN_COLLECTIVE = auto()
    UNKNOWN_OPERATION = auto()
    UNKNOWN_ATTRIBUTE = auto()
    UNKNOWN_GROUPS = auto()
    GROUPS_ASSUMED = auto()
    GROUPS_OF_NO_AXES = auto()
    HOST_TRANSFER = auto()
    NO_MEMORY_KINDS = auto()
    COMPILED_AGAIN = auto()
    KERNEL_TRANSFERS = auto()
    FOREIGN_CALLS = auto()
    UNKNOWN_FLOPS = auto()
    RAGGED_PRODUCTS = auto()
    MASKED_FLOPS = auto()
    STATED_FLOPS = auto()
    FLOPS_IN_BRANCHES = auto()
    PROMOTED_REDUCTIONS = auto()
    REMATERIALIZED_TRANSFERS = auto()
    WIDENED_BY_CPU = auto()
    NOT_SCATTERED_BY_CPU = auto()
    GRADIENTS_SUMMED_NARROW = auto()
    SUMMED_IN_8_BITS = auto()
    WEIGHTS_GATHERED_AGAIN = auto()
    SLOW_LINKS = auto()
    LOOPS_COUNTED_ONCE = auto()
    UNUSED_AXES = auto()


class Note(str):
    """A sentence; its kind is None in a ledger that was saved before notes had one."""

    kind: str | None

    def __new__(cls, kind: str | None, sentence: str) -> Self:
        note = super().__new__(cls, printable(sentence))
        note.kind = kind
        return note

    def __getnewargs__(self) -> tuple[str | None, str]:  # type: ignore[override]
        return self.kind, str(self)


def note_kinds(notes: Iterable[str]) -> tuple[str | None, ...]:
    return tuple(note.kind if isinstance(note, Note) else None for note in notes)
