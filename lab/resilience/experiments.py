"""Steps of the lab's own experiments on other meshes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

from lab.compile.other_process import Stage
from lab.harness import registry
from lab.harness.run import program_of
from lab.measure.tour.times import branches_by_trip
from lab.meshes.axes import DATA, FSDP, Axes
from lab.meshes.backends import prepare
from lab.meshes.targets import Target
from lab.programs.models.shape import DecoderShape
from lab.resilience.survey import Survey, surveyed


def surveyed_by_name(stage: Stage, name: str, style: str, parameters: Any, axes: Axes, target: Target) -> Survey:
    """Of an experiment by its name, as another process is asked to."""
    prepare([target])
    with stage(f"compiling {name} for {target}: {axes}"):
        program = program_of(registry.experiment(name), style, parameters, target, axes)
        return surveyed(program, branches_by_trip(parameters, axes.shape))


def resized(parameters: Any, before: Axes, after: Axes) -> Any:
    """The sizes with more micro-batches where the batch divides into them; else with fewer sequences, each rank taking
    as many at once as before."""
    if not isinstance(parameters, DecoderShape):
        return parameters
    ranks = [prod(axes.shape.get(name, 1) for name in (DATA, FSDP)) for axes in (before, after)]
    at_once = Fraction(parameters.batch * ranks[1], parameters.accumulation * ranks[0])
    if at_once.denominator > 1:
        return parameters
    runs = max(1, round(parameters.batch / at_once))
    return replace(parameters, accumulation=runs, batch=runs * int(at_once))
