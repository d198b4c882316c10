"""Chapter 26: a training loses half of its devices; what becomes of its loss, by batch and learning rate?

A decoder is trained on `save`, its checkpoint restored on `load`, and the training goes on: with the batch of before,
or with as many sequences a device as before, under three rules for the learning rate. Curves are compared after equally
many sequences, and the losses at the end are means over the same last part of the text.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lab.book.reliability import scaled_learning_rate
from lab.harness.claim import Claim, calculated, decided
from lab.harness.question import Question, Row
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.resilience.checkpoints import Snapshot, checkpoints, restore_newest, save
from lab.resilience.training import SMALL, ResumableTraining

RATE = 3e-4
"""Of the lab's optimizer."""
RULES = {"unchanged": 0.0, "square root": 0.5, "linear": 1.0}
"""Exponents of `scaled_learning_rate`."""
ROUNDING = 1e-4
"""Relative difference of losses by which two layouts may differ in float32 after hundreds of steps."""


@dataclass(frozen=True)
class Loses:
    """The meshes before and after, and the training.

    Attributes:
      save, load: axes of the meshes, as text.
      before, after: steps until devices are lost, and then of a training that keeps its batch.
      batch: sequences of a step on all devices.
      learning_rate: of AdamW, before.
    """

    save: str = "fsdp=8"
    load: str = "fsdp=4"
    before: int = 100
    after: int = 100
    batch: int = 32
    learning_rate: float = 3e-3
    target: str = "cpu:8"

    @property
    def smaller(self) -> int:
        """The batch where each device that is left has as many sequences as before."""
        return self.batch * Axes.parse(self.load).size // Axes.parse(self.save).size

    def training(self, mesh: str, batch: int) -> ResumableTraining:
        axes = Axes.parse(mesh)
        return ResumableTraining(SMALL.choosing(batch=batch), make_mesh(parse_target(f"cpu:{axes.size}"), axes))


@dataclass(frozen=True)
class Curves:
    """Losses of the steps after the devices were lost: on all devices as if none were, with the batch of before, and by
    rule with a smaller one."""

    whole: np.ndarray
    kept: np.ndarray
    smaller: dict[str, np.ndarray]

    @property
    def apart(self) -> float:
        """Of the curves with the batch of before, relatively."""
        return float(np.abs(self.kept / self.whole - 1).max())


def at_rate(training: ResumableTraining, snapshot: Snapshot, rate: float) -> Iterator[tuple[Snapshot, float]]:
    """The training's steps with another learning rate than the optimizer's: AdamW's change of the weights, decay and
    all, is in proportion to it, and its moments do not depend on it."""
    scale = rate / RATE
    while True:
        before = jax.tree.map(jnp.copy, snapshot.state.master)
        after, loss = next(training.steps(snapshot))
        master = jax.tree.map(lambda old, new: old + scale * (new - old), before, after.state.master)
        snapshot = after._replace(state=after.state._replace(master=master))
        yield snapshot, loss


def _train(training: ResumableTraining, snapshot: Snapshot, rate: float, steps: int) -> tuple[Snapshot, np.ndarray]:
    made = at_rate(training, snapshot, rate)
    losses = []
    for _ in range(steps):
        snapshot, loss = next(made)
        losses.append(loss)
    return snapshot, np.array(losses)


@lru_cache(maxsize=4)
def measured(assumed: Loses) -> Curves:
    whole = assumed.training(assumed.save, assumed.batch)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lost, _ = _train(whole, whole.start(), assumed.learning_rate, assumed.before)
        with checkpoints(folder) as manager:
            save(manager, lost)
        _, without = _train(whole, lost, assumed.learning_rate, assumed.after)

        def goes_on(batch: int, rate: float) -> np.ndarray:
            training = assumed.training(assumed.load, batch)
            restored: Any = restore_newest(folder, training.like)
            return _train(training, restored, rate, assumed.after * assumed.batch // batch)[1]

        rates = {
            rule: scaled_learning_rate(assumed.learning_rate, assumed.batch, assumed.smaller, exponent)
            for rule, exponent in RULES.items()
        }
        return Curves(
            without,
            goes_on(assumed.batch, assumed.learning_rate),
            {rule: goes_on(assumed.smaller, rate) for rule, rate in rates.items()},
        )


def at_end(losses: np.ndarray) -> float:
    """Mean over the last fifth of the sequences."""
    return float(losses[-max(1, len(losses) // 5) :].mean())


def answer(assumed: Loses) -> tuple[Row, ...]:
    found = measured(assumed)
    end = at_end(found.whole)
    return (
        Row("loss without a failure, last fifth", end, "nats"),
        Row(f"batch {assumed.batch} kept on {assumed.load}", at_end(found.kept), "nats", end),
        Row("largest relative difference of a step's loss", found.apart),
        *(
            Row(f"batch {assumed.smaller}, learning rate {rule}", at_end(losses), "nats", end)
            for rule, losses in found.smaller.items()
        ),
        *(
            Row(f"its swing from step to step, {rule}", float(np.abs(np.diff(losses)).mean()), "nats")
            for rule, losses in found.smaller.items()
        ),
    )


def claims(assumed: Loses) -> tuple[Claim, ...]:
    found = measured(assumed)
    end = at_end(found.whole)
    by_rule = {rule: at_end(losses) - end for rule, losses in found.smaller.items()}
    nearest = min(by_rule, key=lambda rule: abs(by_rule[rule]))
    shown = ", ".join(f"{rule} {away:+.3f}" for rule, away in by_rule.items())
    return (
        decided(
            "ch26.elastic_lr",
            found.apart <= ROUNDING,
            f"{assumed.save} to {assumed.load} with a batch of {assumed.batch}: {len(found.kept)} losses differ from "
            f"those without a failure by {found.apart:.1e}",
            statement="with the batch kept, fewer devices train the same curve",
        ),
        calculated(
            "ch26.elastic_lr",
            f"AdamW, batch {assumed.batch} to {assumed.smaller}, as many sequences: nats from the loss without a "
            f"failure: {shown}; nearest: {nearest}",
            statement="the rule for a smaller batch",
        ),
    )


EXPERIMENT = Question(
    name="ch26_elastic",
    chapter=26,
    question="A training loses half of its devices; what becomes of its loss, by batch and learning rate?",
    parameters=Loses(),
    answer=answer,
    claims=claims,
    is_quick=False,
)
