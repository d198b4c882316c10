"""A data-parallel step whose gradients are exchanged in fewer bits, by the name of the method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, Self

from jax.sharding import Mesh

from lab.core.ledger import Ledger
from lab.harness.claim import Claim
from lab.harness.experiment import Experiment, TrainingStep, on_one_axis
from lab.meshes.axes import DATA, Axes
from lab.meshes.errors import UsageError
from lab.programs.models.decoder import Parameters
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies import program
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.strategy import Strategy
from lab.programs.transforms.methods import LOSSLESS_IN_FULL, method


@dataclass(frozen=True)
class CompressedShape(DecoderShape):
    """A decoder, its batch, and how ranks exchange its gradients.

    Attributes:
      method: by its name.
      rank: of the factors of PowerSGD.
      share: of the numbers that top-k and random-k send.
    Raises:
      UsageError: as `DecoderShape`; no such method, or a rank or a share that sends nothing.
    """

    method: str = "power_sgd"
    rank: int = 4
    share: float = 0.01

    CHOICES: ClassVar[tuple[str, ...]] = (*DecoderShape.CHOICES, "method")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank < 1 or not 0 < self.share <= 1:
            raise UsageError(
                f"rank={self.rank}, share={self.share:g}: expected a rank of 1 or more and a share above 0, at most 1"
            )
        _strategy(self.method, self.rank, self.share)

    @property
    def strategy(self) -> Strategy:
        return _strategy(self.method, self.rank, self.share)

    def choosing(self, **choices: Any) -> Self:
        """Raises UsageError for a method that always rounds, so that its step equals no other."""
        chosen = super().choosing(**choices)
        if chosen.method not in LOSSLESS_IN_FULL:
            raise UsageError(f"numbers are not compared: {chosen.method} rounds all that it sends")
        return chosen


@cache
def _strategy(name: str, rank: int, share: float) -> Strategy:
    return DATA_PARALLEL | method(name, rank, share)


SMALL = CompressedShape(rank=1 << 20, share=1.0).shrunk(layers=3)
"""Of a rank and a share that lose nothing, so that its steps are those of one device."""


def predict(shape: CompressedShape, axes: Axes) -> Ledger:
    return shape.strategy.predict(shape, axes)


def build(style: str, shape: CompressedShape, mesh: Mesh) -> program.Program:
    return program.step(shape.strategy, style, shape, mesh)


def start(shape: CompressedShape, axes: Axes, weights: Parameters) -> program.TrainState:
    return program.with_exchange(shape.strategy, axes, program.state_of(shape.strategy, shape, weights))


def in_method(name: str, share: float, shape: DecoderShape) -> CompressedShape:
    """The sizes of a training with this method."""
    sizes = {each.name: getattr(shape, each.name) for each in fields(DecoderShape)}
    return CompressedShape(**sizes, method=name, share=share)


def go_on(shape: CompressedShape, axes: Axes, state: program.TrainState) -> program.TrainState:
    """After steps in full."""
    return program.with_exchange(shape.strategy, axes, state)


def state(shape: CompressedShape, mesh: Mesh) -> Any:
    return program.arguments(program.PlacedStrategy(shape.strategy, shape, mesh))[0]


def compressed_experiment(
    name: str, question: str, claims: Callable[[Any, Axes, Ledger], tuple[Claim, ...]]
) -> Experiment:
    return Experiment(
        name=name,
        chapter=28,
        question=question,
        parameters=CompressedShape(),
        numeric_parameters=SMALL,
        axes=on_one_axis(DATA),
        build=build,
        predict=predict,
        claims=claims,
        step=TrainingStep(start),
        state=state,
        styles=("explicit",),
    )
