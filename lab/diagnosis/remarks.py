"""What XLA's partitioner says on stderr while it compiles: that it found no way between two shardings but to rebuild an
array whole.

It speaks past Python, from C++, so that it is caught at the file descriptor. With TF_CPP_MIN_LOG_LEVEL at 2 or above it
says nothing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread

_REMARK = re.compile(
    r"Involuntary full rematerialization.*?from sharding (\{.*?\}) to (\{.*?\}) efficiently for HLO operation (.*?)\. "
    r"As the last resort"
)
_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_WARNING = re.compile(r"^W\d{4} ")
_NOISE = re.compile(
    r"^(E\d{4} .*slow_operation_alarm\.cc|E\d{4} .*input/output arguments .*exceeds the base limit|\*{32}$|"
    r"\[Compiling module .*\] Very slow compile\?)"
)
"""That a compilation takes minutes, and that arguments are more than the chip has: the lab says both itself."""
_STACK = re.compile(r"^(\*\*\* Check failure stack trace: \*\*\*$|    @ +0x[0-9a-f]+ )")
"""Of XLA's own functions; the line before says what it aborts at."""


@dataclass(frozen=True)
class Remark:
    """One array that the partitioner rebuilds whole, since it found no better way.

    Attributes:
      before, after: its shardings as XLA prints them.
      operation: the instruction that made it, as XLA prints it.
    """

    before: str
    after: str
    operation: str

    @property
    def op_name(self) -> str | None:
        found = _NAME.search(self.operation)
        return found[1] if found else None


@contextmanager
def heard(remarks: list[Remark]) -> Iterator[None]:
    """Adds to `remarks` what the compiler says inside; all else but its warnings, stacks and what the lab says itself
    goes on to stderr, line by line, so that a crash is reported."""
    sys.stderr.flush()
    ours, theirs = os.pipe()
    kept = os.dup(2)
    os.dup2(theirs, 2)
    os.close(theirs)
    listener = Thread(target=_listen, args=(ours, kept, remarks), daemon=True)
    listener.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        listener.join()
        os.close(kept)


def _listen(ours: int, kept: int, remarks: list[Remark]) -> None:
    with open(ours, errors="replace") as lines:
        for line in lines:
            remarks += [remark for remark in read_remarks(line) if remark not in remarks]
            if not any(unwanted.match(line) for unwanted in (_WARNING, _NOISE, _STACK)):
                os.write(kept, line.encode())


def read_remarks(text: str) -> list[Remark]:
    """The remarks of a log, each once."""
    return list(dict.fromkeys(Remark(*found) for found in _REMARK.findall(text)))
