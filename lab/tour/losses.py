"""The small decoder's losses under every layout that the devices allow, here, against those of one CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from lab.decoder_experiments import text
from lab.decoder_experiments.training import Alone, Trained, Training, left, numbers, relative_error, train, train_alone
from lab.suite import Run, runs
from meshes.targets import Target


@dataclass(frozen=True)
class AgainstCpu:
    """A training here, and the losses of one CPU."""

    trained: Trained
    cpu: Alone

    @property
    def worst_relative_error(self) -> float:
        return max(float(relative_error(curve.losses, self.cpu).max()) for curve in self.trained.curves if len(curve.losses))

    def to_json(self) -> dict[str, Any]:
        away = {f"{curve.layout} {curve.style}": left(curve.losses, self.cpu) for curve in self.trained.curves if len(curve.losses)}
        cpu = {"losses": numbers(self.cpu.losses), "worst_relative_error": self.worst_relative_error, "tolerance": self.cpu.tolerance, "away": away}
        return self.trained.to_json() | {"cpu": cpu}


def against_cpu(training: Training, target: Target, watch: Callable[[Sequence[Run]], Iterable[Run]] = iter) -> AgainstCpu:
    """All styles of all layouts."""
    shape = training.parameters
    batches = text.batches(text.standard_library(), shape.steps, shape.batch, shape.length)
    trained = train(training, target, watch(runs(training.layouts, [target])), shape)
    with jax.default_device(jax.devices("cpu")[0]), jax.default_matmul_precision("highest"):
        return AgainstCpu(trained, train_alone(training.layouts[0], shape, batches))
