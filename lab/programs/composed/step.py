"""The training step of a configuration, and the ledger that theory asks for."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from jax.sharding import Mesh

from lab.core.ledger import Ledger
from lab.programs.composed.configuration import Configuration
from lab.programs.models.shape import DecoderShape
from lab.programs.pipelines import prediction as of_pipelines
from lab.programs.pipelines import program as pipelines
from lab.programs.pipelines.program import PipelineShape
from lab.programs.strategies import program as strategies
from lab.programs.strategies.program import Program


def sized(configuration: Configuration, model: DecoderShape) -> DecoderShape:
    """The model's sizes with what the configuration chooses; `model.batch` is that of the whole step."""
    chosen: dict[str, Any] = {
        "accumulation": configuration.micro_batches,
        "remat": configuration.remat,
        "dtype": configuration.dtype,
    }
    sizes = {each.name: getattr(model, each.name) for each in fields(DecoderShape)} | chosen
    if configuration.pipe == 1:
        return DecoderShape(**sizes)
    return PipelineShape(
        **sizes,
        schedule=configuration.schedule,
        chunks=configuration.chunks,
        stage_layers=configuration.stage_layers,
    )


def step(configuration: Configuration, style: str, model: DecoderShape, mesh: Mesh) -> Program:
    """One training step, jitted, and its arguments as shapes with shardings.

    Args:
      mesh: with the configuration's axes.
    Raises:
      UsageError: a dim does not split over its axes, or a part of the strategy lacks the style; a pipeline is written
        in the explicit style alone.
    """
    shape = sized(configuration, model)
    if isinstance(shape, PipelineShape):
        return pipelines.step(configuration.strategy, shape, mesh)
    return strategies.step(configuration.strategy, style, shape, mesh)


def predict(configuration: Configuration, model: DecoderShape) -> Ledger:
    """Raises UsageError as `step`."""
    shape = sized(configuration, model)
    if isinstance(shape, PipelineShape):
        return of_pipelines.predict(configuration.strategy, shape, configuration.axes)
    return configuration.strategy.predict(shape, configuration.axes)
