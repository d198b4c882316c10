"""A tour as text."""

from __future__ import annotations

from statistics import median

from lab.core.units import count
from lab.measure.tour.profile import Spent
from lab.measure.tour.programs import Compared
from lab.measure.tour.times import TimedStep
from lab.measure.tour.tour import FAR, Tour
from lab.report.bench import bench_text
from lab.report.fitted import Column
from lab.report.tables import columns_text


def tour_text(tour: Tour) -> str:
    machine = tour.machine
    under = "".join(
        f", {name} {version}" for name, version in (("driver", machine.driver), ("NCCL", machine.nccl)) if version
    )
    parts = [f"{tour.devices} x {machine.card}, jax {machine.jax}{under}, {tour.date}"]
    if tour.collectives:
        parts += [bench_text(tour.collectives)]
    if tour.times:
        parts += [columns_text(_times(tour)), _errors(tour)]
    if tour.programs:
        parts += [columns_text(_programs(tour)), _sameness(tour)]
    parts += [
        (
            f"losses of {entry.trained.training.name} against one CPU: worst relative error "
            f"{entry.worst_relative_error:.1e}"
        )
        for entry in tour.losses
    ]
    parts += [f"left out: {'; '.join(tour.left_out)}"] if tour.left_out else []
    parts += [f"{len(tour.failures)} failed: {'; '.join(tour.failures)}"] if tour.failures else ["nothing failed"]
    return "\n\n".join(parts)


def _times(tour: Tour) -> list[Column]:
    terms = ("products", "memory", "communication", "exposed", "slowed")
    return [
        Column("step", tuple(str(step.setting) for step in tour.times)),
        Column("measured ms", tuple(f"{step.measured * 1e3:.2f}" for step in tour.times), is_number=True),
        Column("predicted ms", tuple(f"{step.predicted * 1e3:.2f}" for step in tour.times), is_number=True),
        Column("off", tuple(f"{step.error:+.1%}" for step in tour.times), is_number=True),
        Column(
            "ahead of time",
            tuple("" if step.error_ahead is None else f"{step.error_ahead:+.1%}" for step in tour.times),
            is_number=True,
        ),
        *(
            Column(f"{term} ms", tuple(f"{step.terms[term] * 1e3:.2f}" for step in tour.times), is_number=True)
            for term in terms
        ),
        *(
            Column(f"{what} seen ms", tuple(_seen(step, what) for step in tour.times), is_number=True)
            for what in Spent._fields
        ),
    ]


def _seen(step: TimedStep, what: str) -> str:
    return f"{getattr(step.spent, what) * 1e3:.2f}" if step.spent else ""


def _errors(tour: Tour) -> str:
    worst = sorted(tour.times, key=lambda step: -abs(step.error))[:3]
    told = "; ".join(f"{step.setting} {step.error:+.1%}" for step in worst)
    ahead = [abs(step.error_ahead) for step in tour.times if step.error_ahead is not None]
    from_ahead = (
        (
            f"; from texts compiled ahead of time, median error {median(ahead):.1%}, "
            f"{sum(error > FAR for error in ahead)} so far off"
        )
        if ahead
        else ""
    )
    return (
        f"{len(tour.times)} steps: median error {tour.median_error:.1%}, {len(tour.far_off)} off by more than "
        f"{FAR:.0%}; worst: {told}{from_ahead}"
    )


def _programs(tour: Tour) -> list[Column]:
    return [
        Column("verdict", tuple(str(entry.result.verdict) for entry in tour.programs)),
        Column("program", tuple(str(entry.run) for entry in tour.programs)),
        Column("ahead of time", tuple(_sameness_of(entry) for entry in tour.programs)),
    ]


def _sameness_of(entry: Compared) -> str:
    if entry.is_same or entry.failure:
        return entry.failure or "same"
    peaks = [
        ledger.memory.peak if ledger and ledger.memory else None for ledger in (entry.ahead, entry.result.measured)
    ]
    changed = count(len(entry.changes), "changed transfer")
    differs = f"{changed}, peak {peaks[0]} B ahead of time and {peaks[1]} B here"
    return f"same without autotuning: {differs}" if entry.is_same_untuned else differs


def _sameness(tour: Tour) -> str:
    same = sum(entry.is_same for entry in tour.programs)
    untuned = sum(entry.is_same_untuned and not entry.is_same for entry in tour.programs)
    return (
        f"{same} of {len(tour.programs)} programs have the same transfers and peak memory ahead of time and here, "
        f"{untuned} more where autotuning is off here"
    )
