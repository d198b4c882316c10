"""A run's pipeline in time: the schedule that its parameters name, were all its work equally long."""

from __future__ import annotations

from math import isclose, prod
from typing import TYPE_CHECKING

from lab.book.pipeline import bubble_share
from lab.book.tensor_parallel import divisors
from lab.core.units import share_text
from lab.meshes.axes import CONTEXT, PIPE, TENSOR
from lab.programs.pipelines.orders import named
from lab.programs.pipelines.simulation import Durations, Timeline, simulate

if TYPE_CHECKING:
    from lab.harness.result import Result
    from lab.programs.pipelines.schedule import Schedule

EQUALLY_LONG = "if forward, gradients of inputs and gradients of weights took equally long"
ENOUGH = 4
"""Micro-batches a stage with which a pipeline idles less than a fifth of the time."""


def timeline(result: Result) -> Timeline | None:
    """None of a step without stages."""
    stages, sizes = result.mesh.get(PIPE, 1), result.parameters
    if stages < 2 or not {"schedule", "accumulation", "chunks"} <= set(sizes):
        return None
    return simulate(named(sizes["schedule"], stages, sizes["accumulation"], sizes["chunks"]), Durations(weight=1))


def idle_lines(result: Result) -> list[str]:
    """How long stages wait, and where there are fewer micro-batches than stages, with how many they would less."""
    if (found := timeline(result)) is None:
        return []
    s, whole = found.schedule, found.makespan
    begun, ended = max(row[0].start for row in found.rows), min(row[-1].end for row in found.rows)
    is_books = isclose(found.idle_share, bubble_share(s.stages, s.micro_batches, s.chunks))
    formula = f", (p-1)/({'v ' * (s.chunks > 1)}m+p-1)" if is_books else ""
    parts = {"warm-up": begun / whole, "steady": (ended - begun) / whole, "drain": 1 - ended / whole}
    of_time = ", ".join(f"{part} {share_text(float(share))}" for part, share in parts.items() if share > 0)
    return [
        f"stages of {s.name} wait {share_text(found.idle_share)} of the time{formula} with p={s.stages} and "
        f"m={s.micro_batches}, {EQUALLY_LONG}: {of_time}{_with_more(result, s)}"
    ]


def _with_more(result: Result, schedule: Schedule) -> str:
    """The most micro-batches into which a rank's batch splits, up to `ENOUGH`; of a larger batch if these are few."""
    p, m = schedule.stages, schedule.micro_batches
    if m >= p:
        return ""
    ranks = prod(size for axis, size in result.mesh.items() if axis not in (PIPE, CONTEXT, TENSOR))
    splits = [n for n in divisors(result.parameters["batch"] // ranks) if n <= ENOUGH * p]
    most = max((n for n in splits if schedule.chunks == 1 or n % p == 0), default=1)
    changes = f"--set accumulation={most}"
    if most < p:
        most = ENOUGH * p
        changes = f"--set accumulation={most} --set batch={most * ranks}"
    less = simulate(named(schedule.name, p, most, schedule.chunks), Durations(weight=1)).idle_share
    return f"; {changes} makes it {share_text(less)}"
