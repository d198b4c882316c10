"""What theory puts on one device at the fullest moment of a configuration's training step."""

from __future__ import annotations

from lab.programs.composed.configuration import Configuration
from lab.programs.composed.step import sized
from lab.programs.memory.peak import peak_terms
from lab.programs.memory.terms import Terms
from lab.programs.models.shape import DecoderShape
from lab.programs.pipelines import memory as of_pipelines
from lab.programs.pipelines.program import PipelineShape


def memory(configuration: Configuration, style: str, model: DecoderShape, memory_bytes: int | None = None) -> Terms:
    """Bytes by term; their sum is the peak.

    Args:
      memory_bytes: of the chip, where a step without room is to be planned as XLA's GPU compiler does (G10).
    Raises:
      UsageError: as `predict`.
    """
    shape, strategy, axes = sized(configuration, model), configuration.strategy, configuration.axes
    if isinstance(shape, PipelineShape):
        return of_pipelines.peak_terms(strategy, shape, axes, memory_bytes)
    strategy.check(shape, axes)
    return peak_terms(strategy, style, shape, axes, memory_bytes)
