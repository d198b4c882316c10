"""How often each stage of a pipeline takes a branch, and what its devices really send and compute: a compiled text
tells the most that a device can, the schedule tells the rest (Ch. 16)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from lab.core.known import known
from lab.core.ledger import Ledger, Transfer
from lab.meshes.axes import PIPE, Axes
from lab.programs.pipelines.program import LAYERS, PipelineShape, table_for
from lab.programs.pipelines.table import Job, Table
from lab.programs.strategies.strategy import Strategy

EMBEDDING = "embedding"
"""Scope of what the first chunk begins with; what else is no layer's ends the last one."""


def sent_by_axes(
    strategy: Strategy, shape: PipelineShape, axes: Axes, predicted: Ledger
) -> dict[str, tuple[Fraction, ...]]:
    """[stages], by the axes that they go along: wire bytes that a device of each stage sends a step.

    Args:
      predicted: the ledger of the whole step, in which branches run every time.
    """
    table = table_for(strategy, shape, axes)
    done = visits(table, shape.chunks)
    sent: dict[str, tuple[Fraction, ...]] = {}
    for t in predicted.transfers:
        most = known(t.executions) * Fraction(known(t.wire_bytes))
        before, shares = sent.get(t.span, (Fraction(0),) * axes[PIPE]), _shares(t, done, shape, table)
        sent[t.span] = tuple(so_far + most * share for so_far, share in zip(before, shares, strict=True))
    return sent


def sent_by_stages(strategy: Strategy, shape: PipelineShape, axes: Axes, predicted: Ledger) -> tuple[Fraction, ...]:
    """The same along all axes together."""
    sent = sent_by_axes(strategy, shape, axes, predicted).values()
    return tuple(sum(each, Fraction(0)) for each in zip([Fraction(0)] * axes[PIPE], *sent, strict=True))


def computed_by_stages(
    strategy: Strategy, shape: PipelineShape, axes: Axes, measured: Ledger
) -> tuple[Fraction, ...] | None:
    """[stages]: FLOPs of a device's step, of those that a compiled text has, without what XLA adds to them; None
    where it does not name all that stands in branches."""
    table = table_for(strategy, shape, axes)
    done = visits(table, shape.chunks)
    branches, added = measured.flops_in_branches, measured.flops_added
    once = {scope: most - added.get(scope, 0) for scope, most in branches.items()}
    outside = Fraction(known(measured.flops) - sum(added.values()) - sum(once.values()))
    computed = [outside] * axes[PIPE]
    for scope, most in once.items():
        if (shares := _of_branch(scope, done, shape, table)) is None:
            return None
        computed = [so_far + most * share for so_far, share in zip(computed, shares, strict=True)]
    return tuple(computed)


def runs_all_room(job: Job, table: Table) -> bool:
    """A chunk runs as many layers as the longest, some of them in vain: in lockstep, and where it multiplies what the
    first half of a backward kept of each."""
    return table.is_in_lockstep or job is Job.WEIGHT_GRADIENT


def visits(table: Table, chunks: int) -> np.ndarray:
    """[jobs, chunks, stages]: in how many ticks a stage does a job with a chunk; in lockstep also those in vain."""
    job_TP = np.asarray(table.rows.job)
    if table.is_in_lockstep:
        job_TP = np.broadcast_to(job_TP.max(1, keepdims=True), job_TP.shape)
    return np.array(
        [[((job_TP == job) & (table.rows.chunk == chunk)).sum(0) for chunk in range(chunks)] for job in Job]
    )


def _shares(t: Transfer, done: np.ndarray, shape: PipelineShape, table: Table) -> list[Fraction]:
    """[stages]: of its executions, how many a stage's devices take part in."""
    stages = done.shape[-1]
    if not t.conditional:
        return _of_messages(t, stages, has_ring=shape.chunks > 1)
    is_at_both_ends = known(t.executions) == 2 * table.ticks
    return known(_of_branch(t.scope, done, shape, table, is_at_both_ends))


def _of_branch(
    scope: str, done: np.ndarray, shape: PipelineShape, table: Table, is_at_both_ends: bool = False
) -> list[Fraction] | None:
    """The same of what stands in a branch; None where its scope begins with no job."""
    stages = done.shape[-1]
    name, _, inner = scope.partition("/")
    job = next((job for job in Job if job.scope == name), None)
    if job is None:
        return None
    of_job = done[job]
    first, last = (Fraction(int(of_job[chunk, stage]), table.ticks) for chunk, stage in ((0, 0), (-1, -1)))
    if inner.startswith(LAYERS):
        layers_vP = shape.layers_by_chunk(stages)
        done_vP = np.full_like(layers_vP, layers_vP.max()) if runs_all_room(job, table) else layers_vP
        return [Fraction(int(n), table.ticks * int(layers_vP.max())) for n in (of_job * done_vP).sum(0)]
    if inner.startswith("dense"):
        done_vP = of_job if table.is_in_lockstep else of_job[:1] * (np.arange(stages) == 0)
        return [Fraction(int(n), table.ticks) for n in done_vP.sum(0)]
    # What uses the table at both ends moves it for each.
    if inner == EMBEDDING and is_at_both_ends:
        first, last = first / 2, last / 2
    elif inner.startswith(EMBEDDING):
        last = Fraction(0)
    else:
        first = Fraction(0)
    return [first * (stage == 0) + last * (stage == stages - 1) for stage in range(stages)]


def _of_messages(t: Transfer, stages: int, has_ring: bool) -> list[Fraction]:
    """Without a ring the last stage hands nothing on, and the first nothing back."""
    ends = {} if has_ring else {"forth": stages - 1, "back": 0}
    return [Fraction(ends.get(t.scope) != stage) for stage in range(stages)]
