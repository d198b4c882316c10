"""What an op_name and a stack frame tell: phase, the user's named scopes, file and line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from lab.core.ledger import Phase

_WRAPPER = re.compile(r"^(?:jvp|transpose|vmap|remat|checkpoint|custom_jvp|custom_vjp|rematted_computation)\((.*)\)$")
_STRUCTURE = frozenset(
    """while body cond closed_call core_call checkpoint remat remat2 rematted_computation shard_map smap pjit
    xla_call custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr custom_lin eval_jaxpr scan jit main xla_pmap
    named_call run_state call_exported""".split()
)
# `->` stands in the equations of einsum, which JAX puts among the names.
_BRANCH = re.compile(r"^branch_\d+_fun$|^cond_branch_\d+$")
_MERGED = re.compile(r"^(.*)/\(([^()]*:[^()]*)\)$")
_FILE = re.compile(r'^(\d{1,9}) "([^"\\]*(?:\\.[^"\\]*)*)"$', re.MULTILINE)
_LOCATION = re.compile(r"^(\d{1,9}) \{file_name_id=(\d{1,9}) function_name_id=\d+ line=(\d{1,9})\b", re.MULTILINE)
_FRAME = re.compile(r"^(\d{1,9}) \{file_location_id=(\d{1,9})(?: parent_frame_id=(\d{1,9}))?\b", re.MULTILINE)
_DEEPEST = 50
"""Transformations in each other."""
_LIBRARY = re.compile(r"[\\/](?:site|dist)-packages[\\/]")


def phase(op_name: str | None, differentiated: bool) -> Phase | None:
    """By what JAX's transformations put into the name.

    Args:
      differentiated: some operation of the program lies in a backward pass; what lies in neither pass is then the
        update.
    """
    if op_name is None:
        return None
    if "transpose(" in op_name:
        return Phase.BACKWARD
    if "jvp(" in op_name or not differentiated:
        return Phase.FORWARD
    return Phase.UPDATE


@lru_cache(maxsize=1 << 12)
def scope(op_name: str | None) -> str:
    """The user's named scopes, joined by `/`: JAX's own levels and the final primitive are left out."""
    if not op_name:
        return ""
    op_name = op_name.partition(";")[0]  # Of several names that a GPU fusion joins, the first.
    merged = _MERGED.match(op_name)
    levels = _levels(merged[1]) if merged else _levels(op_name)[:-1]
    return "/".join(level for raw in _once(levels) for level in _user_levels(raw))


@lru_cache(maxsize=1 << 12)
def within(op_name: str, loops: tuple[str, ...]) -> str:
    """The name of an operation as the loops around it have it: a body that JAX lowers once for several loops has the
    names of the first.

    Args:
      loops: their op_names, outermost first.
    """
    around: list[str] = []
    for loop in loops:
        if (levels := _levels(loop))[-1] == "while":
            around = _moved_into(around, levels)
    return "/".join(_moved_into(around, _levels(op_name))) if around else op_name


def _moved_into(around: list[str], levels: list[str]) -> list[str]:
    ends = [at for at, level in enumerate(levels) if level == "while"]
    depth = around.count("while")
    return around + levels[ends[depth - 1] + 1 :] if 0 < depth <= len(ends) else levels


def _once(levels: list[str]) -> list[str]:
    """JAX names the backward pass of a checkpoint by its scopes, and by the same again."""
    for at in (i for i, level in enumerate(levels) if level == "checkpoint"):
        for n in range(at // 2, 0, -1):
            if levels[at - n : at] == levels[at - 2 * n : at - n]:
                return levels[: at - n] + _once(levels[at:])
    return levels


def _levels(op_name: str) -> list[str]:
    """Splits at slashes outside parentheses: `jvp(a/b)/c` has two levels."""
    levels, depth, start = [], 0, 0
    for at, mark in enumerate(op_name):
        if mark == "(":
            depth += 1
        elif mark == ")":
            depth -= 1
        elif mark == "/" and depth == 0:
            levels.append(op_name[start:at])
            start = at + 1
    return [*levels, op_name[start:]]


def _user_levels(level: str, depth: int = 0) -> list[str]:
    if depth < _DEEPEST and (inside := _WRAPPER.match(level)):
        return [name for raw in _levels(inside[1]) for name in _user_levels(raw, depth + 1)]
    if not level or level in _STRUCTURE or "->" in level or _BRANCH.match(level) or level.startswith(("jit(", "pjit(")):
        return []
    return [level]


@dataclass(frozen=True)
class Frames:
    """The tables of files, locations and stack frames that stand before the computations."""

    files: Mapping[int, str]
    locations: Mapping[int, tuple[int, int]]
    frames: Mapping[int, tuple[int, int]]

    def origin(self, frame: int) -> str | None:
        """`model.py:88`: the innermost frame outside installed packages, else the innermost."""
        stack = list(self._stack(frame))
        own = [place for place in stack if not _LIBRARY.search(place)]
        return next(iter(own or stack), None)

    def _stack(self, frame: int) -> Iterator[str]:
        while frame in self.frames:
            location, parent = self.frames[frame]
            file, line = self.locations.get(location, (0, 0))
            if file in self.files:
                yield f"{self.files[file]}:{line}"
            if parent >= frame:
                return
            frame = parent


def read_frames(head: str) -> Frames:
    """Reads the tables `FileNames`, `FileLocations` and `StackFrames`; missing ones are empty."""
    files = _section(head, "FileNames")
    return Frames(
        files={int(number): name for number, name in _FILE.findall(files)},
        locations={
            int(number): (int(file), int(line))
            for number, file, line in _LOCATION.findall(_section(head, "FileLocations"))
        },
        # XLA prints the parent's number plus one: frame 1 "has parent 1", which is none.
        frames={
            int(n): (int(location), int(above or 1) - 1)
            for n, location, above in _FRAME.findall(_section(head, "StackFrames"))
        },
    )


_SOURCE = re.compile(r'source_file="([^"\\]*(?:\\.[^"\\]*)*)"(?: source_line=(\d+))?')
_STACK_FRAME = re.compile(r"stack_frame_id=(\d{1,9})\b")


def origin(extras: str, frames: Frames) -> str | None:
    """File and line of an instruction, from its metadata; a file below the working directory relative to it."""
    place = _place(extras, frames)
    return place and place.removeprefix(f"{os.getcwd()}{os.sep}")


def _place(extras: str, frames: Frames) -> str | None:
    metadata = extras[extras.find("metadata={") :] if "metadata={" in extras else ""
    if source := _SOURCE.search(metadata):
        return f"{source[1]}:{source[2] or 0}"
    frame = _STACK_FRAME.search(metadata)
    return frames.origin(int(frame[1])) if frame else None


def _section(head: str, title: str) -> str:
    start = head.find(f"\n{title}\n")
    if start < 0:
        return ""
    end = head.find("\n\n", start)
    return head[start : end if end >= 0 else len(head)]
