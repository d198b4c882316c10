"""Every compiler behaviour, what the predictable ones make of a transfer, and what else is known of compilers."""

from __future__ import annotations

from dataclasses import replace

from lab.core.ledger import Transfer
from lab.meshes.platforms import Platform
from lab.settle.behaviours import cpu, every_compiler, gpu, tpu
from lab.settle.behaviours.behaviour import Behaviour, CompilerNote, Context

CATALOGUE: tuple[Behaviour, ...] = (
    *every_compiler.BEHAVIOURS,
    *cpu.BEHAVIOURS,
    *gpu.BEHAVIOURS,
    *tpu.BEHAVIOURS,
)
"""In the order in which they act: what the partitioner of every compiler does comes first."""
NOTES: tuple[CompilerNote, ...] = (*every_compiler.NOTES, *cpu.NOTES, *gpu.NOTES, *tpu.NOTES)
"""Explain no term; `lab explain` has a page of each."""


def named_refusal(error: str, platform: Platform) -> str:
    """A compiler's error with the note that it is known by, where there is one."""
    known = (n for n in NOTES if n.refusal and n.refusal in error and n.platform in (None, platform))
    return next((f"{n.id}: {n.effect}; {n.remedy}. XLA: {error}" for n in known), error)


def emitted(transfer: Transfer, context: Context) -> tuple[tuple[Transfer, ...], tuple[Behaviour, ...]]:
    """What the compiler is predicted to emit for a transfer, and the behaviours that make the difference."""
    found: tuple[Transfer, ...] = (transfer,)
    applied: list[Behaviour] = []
    for behaviour in CATALOGUE:
        if behaviour.rewrite is None or behaviour.platform not in (None, context.platform):
            continue
        changed = tuple(new for old in found for new in behaviour.rewrite(old, context))
        applied += [behaviour] if changed != found else []
        found = changed
    # What one moves into a loop, another may move out again.
    is_unchanged = tuple(replace(new, provenance=transfer.provenance) for new in found) == (transfer,)
    return found, () if is_unchanged else tuple(applied)
