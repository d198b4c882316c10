"""What an op_name tells: phase and the user's named scopes."""

from __future__ import annotations

import re
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
_DEEPEST = 50
"""Transformations in each other."""


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
      loops: their op_names, outermost first; empty of those without one.
    """
    around: list[str] = []
    for outside, loop in enumerate(loops):
        if loop and (levels := _levels(loop))[-1] == "while":
            around = [*_moved_into(around, levels[:-1], outside), "while"]
    return "/".join(_moved_into(around, _levels(op_name), len(loops))) if around else op_name


def _moved_into(around: list[str], levels: list[str], loops: int) -> list[str]:
    """Of loops in loops in loops XLA loses levels: a name with fewer of them than are around it stays, and so does one
    whose loop has scopes of its own where the loop around it has none."""
    ends = [at for at, level in enumerate(levels) if level == "while"]
    depth = around.count("while")
    if not 0 < depth <= len(ends) >= loops:
        return levels
    end = ends[depth - 1] + 1
    is_another = _scopes_of_loop(levels[:end]) and not _scopes_of_loop(around)
    return levels if is_another else around + levels[end:]


def _scopes_of_loop(levels: list[str]) -> list[str]:
    """What a loop's name adds to that of the loop around it, but for JAX's own levels; its whole name where there is
    none around it."""
    before = levels[:-1]
    at = len(before) - before[::-1].index("while") if "while" in before else 0
    return [level for level in before[at:] if level not in _STRUCTURE]


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
