"""The small decoder's losses under every layout that the devices allow, here, against those of one CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from lab.decoder_experiments import text
from lab.decoder_experiments.training import Alone, Trained, Training, left, numbers, relative_error, train, train_alone
from lab.suite import Run, runs
from meshes.errors import Unusable
from meshes.targets import Target, make_mesh

Watch = Callable[[Sequence[Run]], Iterable[Run]]


@dataclass(frozen=True)
class AgainstCpu:
    """A training here, and the losses of one CPU."""

    trained: Trained
    cpu: Alone

    @property
    def expected(self) -> Alone:
        """Of one CPU, from which what float32 moves there or here may part a curve."""
        return replace(self.cpu, moved=np.maximum(self.cpu.moved, self.trained.alone.moved))

    @property
    def worst_relative_error(self) -> float:
        return max(float(relative_error(curve.losses, self.cpu).max()) for curve in self.trained.curves if len(curve.losses))

    def to_json(self) -> dict[str, Any]:
        away = {f"{curve.layout} {curve.style}": left(curve.losses, self.expected) for curve in self.trained.curves if len(curve.losses)}
        cpu = {"losses": numbers(self.cpu.losses), "worst_relative_error": self.worst_relative_error, "tolerance": self.expected.tolerance, "away": away}
        return self.trained.to_json() | {"cpu": cpu}


def losses(trainings: Iterable[Training], target: Target, watch: Watch = iter) -> tuple[tuple[AgainstCpu, ...], tuple[str, ...]]:
    """All styles of all layouts; and those that these devices do not allow, each with the reason."""
    parts = {training: fitting(training, target) for training in trainings}
    compared = tuple(against_cpu(training, target, fits, watch) for training, (fits, _) in parts.items() if fits)
    return compared, tuple(reason for _, reasons in parts.values() for reason in reasons)


def fitting(training: Training, target: Target) -> tuple[list[Run], list[str]]:
    fits, left_out = [], []
    for run in runs(training.layouts, [target]):
        layout = run.experiment
        try:
            axes = layout.axes(target)
            make_mesh(target, axes)
            layout.predict(layout.sized(training.parameters), axes)
            fits.append(run)
        except Unusable as refusal:
            left_out.append(f"{training.name} {run}: {refusal}")
    return fits, left_out


def against_cpu(training: Training, target: Target, some: Sequence[Run], watch: Watch = iter) -> AgainstCpu:
    shape = training.parameters
    trained = train(training, target, watch(some), shape)
    with jax.default_device(jax.devices("cpu")[0]), jax.default_matmul_precision("highest"):
        return AgainstCpu(trained, train_alone(shape, text.batches(text.standard_library(), shape.steps, shape.batch, shape.length)))
