"""Configurations that nobody looked at before: experiments, styles, targets and sizes, drawn by a seed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from random import Random
from typing import TYPE_CHECKING, Any

from lab.harness.experiment import Experiment, Run
from lab.meshes.axes import CONTEXT, Axes
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target, parse_target

if TYPE_CHECKING:
    from lab.programs.models.shape import DecoderShape

TARGETS = ("cpu:8", "cpu:8", "gpu:h100:1x4", "gpu:h100:2x8", "gpu:h100:2x8", "tpu:v5e:2x4")
"""Each as often as it stands here."""
FACTORS = (1, 1, 2, 3)


def drawn_runs(experiments: Iterable[Experiment], count: int, seed: int = 0) -> list[Run[Experiment]]:
    """So many runs, no two alike and none of an experiment's own sizes; what an experiment refuses is drawn again, as
    often as runs are asked for. Experiments that say themselves where they run are left out."""
    every, draw = tuple(one for one in experiments if one.place is None), Random(seed)
    runs: dict[Run[Experiment], None] = {}
    for _ in range(count):
        if len(runs) >= count:
            break
        for experiment in draw.sample(every, len(every)):
            target = parse_target(draw.choice(TARGETS))
            style = draw.choice(experiment.styles + experiment.more_styles)
            try:
                axes = experiment.axes(target)
                parameters = _parameters(draw, experiment.parameters, axes, target)
                experiment.predict(parameters, axes)
            except UsageError:
                continue
            if parameters != experiment.parameters:
                runs[Run(replace(experiment, parameters=parameters), target, style)] = None
    return list(runs)[:count]


def _parameters(draw: Random, own: Any, axes: Axes, target: Target) -> Any:
    """Of a decoder every size and choice, but for those that make the experiment; of what else has sizes, multiples of
    them."""
    from lab.programs.models.shape import DecoderShape

    if type(own) is DecoderShape:
        return _shape(draw, own, axes, target)
    sizes = {each.name: getattr(own, each.name) for each in fields(own) if type(getattr(own, each.name)) is int}
    return replace(own, **{name: size * draw.choice(FACTORS) for name, size in sizes.items()})


def _shape(draw: Random, own: DecoderShape, axes: Axes, target: Target) -> DecoderShape:
    from lab.harness.decoder.drawn_sizes import drawn
    from lab.programs.models.shape import DecoderShape

    shape, by_default = drawn(draw, axes), DecoderShape()
    makes_it: dict[str, Any] = {
        name: getattr(own, name)
        for name in ("experts", *DecoderShape.CHOICES)
        if getattr(own, name) != getattr(by_default, name)
    }
    context = axes.shape.get(CONTEXT, 1)
    sizes: dict[str, Any] = {"length": 2 * context * shape.length, "kv_heads": context * shape.kv_heads}
    return replace(shape, **sizes, dtype="f32" if target.platform == "cpu" else "bf16", **makes_it)
