"""Which line of a stack tells one transfer from another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from lab.core.frame import Frame, Stack

_Function = tuple[str, str]
_PACKAGES_MOST = 4


@dataclass(frozen=True)
class Origins:
    """What the stacks of a whole ledger say of their functions, so that each transfer is shown by a line of its own.

    The innermost line of the user's code says it best, unless it stands in a wrapper that everybody calls: a helper
    around einsum, a shared constraint. A function is a wrapper where it is called from more lines than it has
    itself. From the innermost line outwards, a wrapper is left for the line that calls it, and so is a function that
    only one line calls, if a wrapper is around it: the shown line is the first outside. It is shown only where it
    tells something: where transfers of the same innermost line then have different ones.

    Frames of installed packages do not count, unless the program itself is installed: its innermost lines are then
    theirs, at least four for each that is not.

    Attributes:
      callers: lines that call a function, by its file and name.
      lines: those of its lines that stand in some stack.
      is_installed: frames of installed packages count.
      shown: for each innermost line, the lines that stand for it.
      files: of all lines that count.
    """

    callers: dict[_Function, set[str]]
    lines: dict[_Function, set[str]]
    is_installed: bool
    shown: dict[str, set[str]]
    files: frozenset[str]

    @classmethod
    def of(cls, stacks: Iterable[Stack]) -> Origins:
        whole = set({id(stack): stack for stack in stacks if stack}.values())  # Most are the same objects.
        own = {_own(stack) for stack in whole}
        is_installed = _PACKAGES_MOST * _innermost(own) <= _innermost({s for s in whole if s[0].is_library})
        counted = whole if is_installed else own - {()}
        callers, lines = defaultdict[_Function, set[str]](set), defaultdict[_Function, set[str]](set)
        for stack in counted:
            for frame, caller in pairwise(stack):
                if _function(frame) != _function(caller):
                    callers[_function(frame)].add(caller.place)
            for frame in stack:
                lines[_function(frame)].add(frame.place)
        files = frozenset(frame.file for stack in counted for frame in stack)
        found = cls(dict(callers), dict(lines), is_installed, {}, files)
        for stack in counted:
            found.shown.setdefault(stack[0].place, set()).add(stack[found._outside(stack)].place)
        return found

    def shown_line(self, stack: Stack) -> tuple[str | None, str]:
        """`model.py:88`, or `attentions.py:839 Attention.out_projection via linears.py:110`, the innermost line last;
        in a program of one file `model.py:88 via line 5`. And the function of the first line, for people."""
        if not stack:
            return None, ""
        counted = self._counted(stack)
        inner, shown = counted[0], counted[self._at(counted)]
        if shown.place == inner.place:
            return shown.place, shown.name
        name = shown.name if len(self.files) > 1 else ""
        via = f"line {inner.line}" if inner.file == shown.file else inner.place
        return " ".join(filter(None, (shown.place, name, "via", via))), shown.name

    def _counted(self, stack: Stack) -> Stack:
        return stack if self.is_installed else _own(stack) or stack

    def _at(self, counted: Stack) -> int:
        return self._outside(counted) if len(self.shown.get(counted[0].place, ())) > 1 else 0

    def _outside(self, counted: Stack) -> int:
        """Number of the first frame outside of wrappers; 0 where there is none around the innermost."""
        found = 0
        for number, frame in enumerate(counted[:-1]):
            callers = len(self.callers.get(_function(frame), ()))
            if callers > len(self.lines.get(_function(frame), ())):
                found = number + 1
            elif found or callers > 1:
                break
        return found


def _innermost(stacks: set[Stack]) -> int:
    return len({stack[0].place for stack in stacks if stack})


def _own(stack: Stack) -> Stack:
    return tuple(frame for frame in stack if not frame.is_library)


def _function(frame: Frame) -> _Function:
    return frame.file, frame.function
