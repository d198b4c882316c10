"""The tables of files, functions, lines and stack frames that stand before the computations of a module, and what an
instruction's metadata names of them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from lab.core.frame import Frame, Stack
from lab.core.lazy import lazy
from lab.core.printable import printable

_QUOTED = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"')
_LOCATION = re.compile(r"\{file_name_id=(\d{1,9}) function_name_id=(\d{1,9}) line=(\d{1,9})\b")
_FRAME = re.compile(r"\{file_location_id=(\d{1,9})(?: parent_frame_id=(\d{1,9}))?\b")
_SOURCE = re.compile(r'source_file="([^"\\]*(?:\\.[^"\\]*)*)"(?: source_line=(\d{1,9})\b)?')
_STACK_FRAME = re.compile(r"stack_frame_id=(\d{1,9})\b")
_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]|[\\/]bin[\\/][^\\/.]+$|^<frozen ")
"""Packages, the commands that they install, and Python's own modules."""
_JAX = re.compile(r"[\\/](?:site|dist)-packages[\\/]jax(?:lib)?[\\/]")
_TRACING = f"{Path(__file__).parents[1] / 'compile'}{os.sep}"
"""Where the lab calls the programs that it traces: what lies outside is no part of them."""


class Frames:
    """Reads of the tables what is asked for: a text has thousands of frames, and few of its instructions are looked
    at. Missing tables are empty."""

    def __init__(self, head: str) -> None:
        self._head = head
        self._stacks: dict[int, Stack] = {0: ()}
        self._frames: dict[str, Frame | None] = {}
        self._here = f"{os.getcwd()}{os.sep}"

    def stack(self, extras: str) -> Stack:
        """The frames of an instruction, innermost first, from its metadata; a file below the working directory is
        relative to it. Left out are JAX's own frames, but for the innermost where there are no others, and those of
        packages that run the user's code and that it does not call."""
        at = extras.find("metadata={")
        if at < 0:
            return ()
        frame = _STACK_FRAME.search(extras, at)
        if frame and (stack := self._stack(int(frame[1]))):
            return stack
        source = _SOURCE.search(extras, at)
        return (self._frame(source[1], int(source[2] or 0), ""),) if source else ()

    def _stack(self, number: int) -> Stack:
        if number not in self._stacks:
            found = self._walked(number)
            named = [frame for frame in found if not _JAX.search(frame.file)] or found[:1]
            outermost = max((n for n, frame in enumerate(named, 1) if not frame.is_library), default=len(named))
            self._stacks[number] = tuple(named[:outermost])
        return self._stacks[number]

    def _walked(self, number: int) -> list[Frame]:
        found = []
        while row := _FRAME.match(self._stack_frames.get(str(number), "")):
            frame = self._located(row[1])
            if frame is None:
                break
            found.append(frame)
            # XLA prints the parent's number plus one: frame 1 "has parent 1", which is none.
            parent = int(row[2] or 1) - 1
            if parent >= number:
                break
            number = parent
        return found

    def _located(self, location: str) -> Frame | None:
        """None where the stack of the program ends."""
        if location not in self._frames:
            row = _LOCATION.match(self._locations.get(location, ""))
            self._frames[location] = self._read(row[1], row[2], int(row[3])) if row else None
        return self._frames[location]

    def _read(self, file_number: str, function_number: str, line: int) -> Frame | None:
        file = _QUOTED.match(self._files.get(file_number, ""))
        function = _QUOTED.match(self._functions.get(function_number, ""))
        if file is None or file[1].startswith(_TRACING):
            return None
        return self._frame(file[1], line, function[1] if function else "")

    def _frame(self, file: str, line: int, function: str) -> Frame:
        file = printable(file.removeprefix(self._here))
        return Frame(file, line, printable(function), _INSTALLED.search(file) is not None)

    @lazy
    def _files(self) -> dict[str, str]:
        return _table(self._head, "FileNames")

    @lazy
    def _functions(self) -> dict[str, str]:
        return _table(self._head, "FunctionNames")

    @lazy
    def _locations(self) -> dict[str, str]:
        return _table(self._head, "FileLocations")

    @lazy
    def _stack_frames(self) -> dict[str, str]:
        return _table(self._head, "StackFrames")


def _table(head: str, title: str) -> dict[str, str]:
    """Rows by their numbers, as they are printed."""
    _, is_there, rest = head.partition(f"\n{title}\n")
    rows = rest.partition("\n\n")[0] if is_there else ""
    return {number: row for number, _, row in (line.partition(" ") for line in rows.split("\n"))}
