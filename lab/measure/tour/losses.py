"""The small decoder's losses under every layout that the devices allow, here, against those of one CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax
import numpy as np

from lab.harness.decoder import text
from lab.harness.decoder.reference_run import (
    Batches,
    ReferenceRun,
    RoutingTie,
    first_divergence,
    relative_error,
    replayed_with_same_routing,
    train_reference,
)
from lab.harness.decoder.training import (
    Curve,
    LayoutUnderTraining,
    Training,
    TrainingResult,
    number,
    numbers,
    train,
)
from lab.harness.decoder.training_shape import TrainingShape
from lab.harness.experiment import Run
from lab.harness.schemas import RoutingTieJson, RunResultJson
from lab.harness.suite import runs
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target
from lab.settle import Verdict

Watch = Callable[[Sequence[Run[LayoutUnderTraining]]], Iterable[Run[LayoutUnderTraining]]]


@dataclass(frozen=True)
class FromCpu:
    """How far a curve is from one CPU's that chose at `ties` as its layout did; `away`: where it leaves that all the
    same, in a sentence."""

    worst_relative_error: float
    ties: tuple[RoutingTie, ...]
    away: str | None


@dataclass(frozen=True)
class AgainstCpu:
    """A training here, the losses of one CPU, and each curve's distance from them by its layout and style."""

    trained: TrainingResult
    cpu: ReferenceRun
    curves: Mapping[str, FromCpu]

    @property
    def worst_relative_error(self) -> float:
        return max(curve.worst_relative_error for curve in self.curves.values())

    @property
    def failures(self) -> tuple[str, ...]:
        """What failed here, whose ledger is refuted, and which curve is not one CPU's."""
        refuted = (
            f"{curve.layout} {curve.style}: the ledger is refuted"
            for curve in self.trained.curves
            if curve.verdict is Verdict.REFUTED
        )
        return (
            *self.trained.failures,
            *refuted,
            *(f"{name}: compared with one CPU, {curve.away}" for name, curve in self.curves.items() if curve.away),
        )

    def json_object(self) -> AgainstCpuJson:
        cpu = CpuJson(
            losses=numbers(self.cpu.losses),
            worst_relative_error=number(self.worst_relative_error),
            tolerance=self.cpu.tolerance,
            away={name: curve.away for name, curve in self.curves.items()},
            ties={
                name: tuple(RoutingTieJson(tie.step, tie.size) for tie in curve.ties)
                for name, curve in self.curves.items()
            },
        )
        return AgainstCpuJson(**vars(self.trained.json_object()), cpu=cpu)


@dataclass(frozen=True)
class CpuJson:
    """One CPU's losses; by layout and style where a curve leaves them, and the ties at which the CPU chose as it
    did."""

    losses: tuple[float | None, ...]
    worst_relative_error: float | None
    tolerance: float
    away: Mapping[str, str | None]
    ties: Mapping[str, tuple[RoutingTieJson, ...]]


@dataclass(frozen=True)
class AgainstCpuJson(RunResultJson):
    """A training here, against one CPU's losses."""

    cpu: CpuJson = field(kw_only=True)


def losses(
    trainings: Iterable[Training], target: Target, watch: Watch = iter
) -> tuple[tuple[AgainstCpu, ...], tuple[str, ...]]:
    """All styles of all layouts; and those that these devices do not allow, each with the reason."""
    parts = {training: fitting(training, target) for training in trainings}
    compared = tuple(against_cpu(training, target, fits, watch) for training, (fits, _) in parts.items() if fits)
    return compared, tuple(reason for _, reasons in parts.values() for reason in reasons)


def fitting(training: Training, target: Target) -> tuple[list[Run[LayoutUnderTraining]], list[str]]:
    fits, left_out = [], []
    for run in runs(training.layouts, [target]):
        layout = run.experiment
        try:
            axes = layout.axes(target)
            make_mesh(target, axes)
            layout.predict(layout.sized(training.parameters), axes)
            fits.append(run)
        except UsageError as refusal:
            left_out.append(f"{training.name} {run}: {refusal}")
    return fits, left_out


def against_cpu(
    training: Training, target: Target, some: Sequence[Run[LayoutUnderTraining]], watch: Watch = iter
) -> AgainstCpu:
    shape = training.parameters
    trained = train(training, target, watch(some), shape)
    with jax.default_device(jax.devices("cpu")[0]), jax.default_matmul_precision("highest"):
        batches = text.batches(text.standard_library(), shape.steps, shape.batch, shape.length)
        return held_against(trained, train_reference(shape, batches), batches)


def held_against(trained: TrainingResult, cpu: ReferenceRun, batches: Batches) -> AgainstCpu:
    """By what float32 moves on this CPU or there."""
    cpu = replace(cpu, moved=np.maximum(cpu.moved, trained.reference.moved))
    curves = {
        f"{curve.layout} {curve.style}": from_cpu(curve, cpu, trained.parameters, batches)
        for curve in trained.curves
        if len(curve.losses)
    }
    return AgainstCpu(trained, cpu, curves)


def from_cpu(curve: Curve, cpu: ReferenceRun, shape: TrainingShape, batches: Batches) -> FromCpu:
    expected, ties = replayed_with_same_routing(curve.losses, cpu, shape, batches)
    return FromCpu(
        float(relative_error(curve.losses, expected.losses).max()), ties, first_divergence(curve.losses, expected)
    )
