"""An experiment on the step of a `Configuration`: the mesh gives the degrees, the sizes all else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from jax.sharding import Mesh

from lab.attention.order import ZIGZAG
from lab.core.ledger import Ledger, Transfer
from lab.harness.claim import Claim
from lab.harness.decoder.step import SMALL
from lab.harness.experiment import Experiment, TrainingStep, as_they_come
from lab.harness.result import Composition, Computed
from lab.meshes.axes import AXIS_ORDER, CONTEXT, PIPE, Axes
from lab.meshes.errors import UsageError
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target, parse_target
from lab.programs.composed import step as composed
from lab.programs.composed.configuration import Configuration
from lab.programs.composed.flops import flops
from lab.programs.composed.memory import memory
from lab.programs.memory.saved import offloaded_bytes
from lab.programs.models.decoder import Parameters
from lab.programs.pipelines import program as pipelines
from lab.programs.pipelines.program import PipelineShape
from lab.programs.pipelines.taken import computed_by_stages, sent_by_axes
from lab.programs.strategies import program as strategies
from lab.programs.strategies.program import Program


@dataclass(frozen=True)
class ComposedShape(PipelineShape):
    """Sizes of a model and its batch, and what of a `Configuration` is no degree.

    Attributes:
      zero: 1: master weights and moments are sharded over replicas; 2: gradients too (`Configuration`).
      attention: how queries meet keys along `context`: "zigzag", "ring", "gathered" or "ulysses"; without that axis
        "tiles" makes scores tile by tile, and any other name all at once.
      sequence: between blocks tokens are sharded along `tensor`, where the mesh has it.
    """

    zero: int = 0
    attention: str = "zigzag"
    sequence: bool = True

    CHOICES: ClassVar[tuple[str, ...]] = (
        *PipelineShape.CHOICES,
        "experts",
        "capacity_factor",
        "zero",
        "attention",
        "sequence",
    )


SMALL_SHAPE = ComposedShape(**asdict(replace(SMALL, layers=8, batch=8)))
"""Eight sequences of one micro-batch."""


def configuration(shape: ComposedShape, axes: Axes) -> Configuration:
    """What runs these sizes on this mesh.

    Raises:
      UsageError: an axis that is none of a `Configuration`'s, or as that.
    """
    for name in axes.names:
        if name not in AXIS_ORDER:
            raise UsageError(f"axis {name} of the mesh {axes}: expected some of {', '.join(AXIS_ORDER)}; rename it")
    return Configuration(
        **axes.shape,
        order=(*axes.names, *(name for name in AXIS_ORDER if name not in axes.names)),
        zero=shape.zero,
        attention=shape.attention,
        sequence=shape.sequence,
        micro_batches=shape.accumulation,
        schedule=shape.schedule,
        chunks=shape.chunks,
        stage_layers=shape.stage_layers,
        remat=shape.remat,
        dtype=shape.dtype,
    )


def composed_experiment(
    name: str,
    chapter: int,
    question: str,
    axes: Callable[[Target], Axes],
    claims: Callable[[ComposedShape, Axes, Ledger], tuple[Claim, ...]],
    parameters: ComposedShape,
    targets: tuple[str, ...],
    more_targets: tuple[str, ...] = (),
) -> Experiment:
    """Compiles the step that its sizes and mesh make, written out; three of them are compared with the reference."""
    choices = {name: getattr(parameters, name) for name in ComposedShape.CHOICES}
    return Experiment(
        name=name,
        chapter=chapter,
        question=question,
        parameters=parameters,
        numeric_parameters=SMALL_SHAPE.choosing(**choices),
        axes=axes,
        build=_build,
        predict=_predict,
        composition=_composition,
        claims=claims,
        step=TrainingStep(start, _in_model_order, order=token_order, parts=_parts),
        memory=lambda style, shape, axes, memory_bytes: memory(configuration(shape, axes), style, shape, memory_bytes),
        host_bytes=lambda shape, axes: offloaded_bytes(configuration(shape, axes).strategy, shape, axes),
        state=lambda shape, mesh: _build("explicit", shape, mesh)[1][0],
        targets=targets,
        more_targets=more_targets,
        styles=("explicit",),
    )


def _build(style: str, shape: ComposedShape, mesh: Mesh) -> Program:
    return composed.step(configuration(shape, Axes.of(mesh.shape)), style, shape, mesh)


def _predict(shape: ComposedShape, axes: Axes) -> Ledger:
    return composed.predict(configuration(shape, axes), shape)


def _composition(shape: ComposedShape, axes: Axes, measured: Ledger | None) -> Composition:
    of, here, once = configuration(shape, axes), _predict(shape, axes), tuple[Transfer, ...]()
    if shape.accumulation > 1:  # Of one micro-batch gradients are summed elsewhere.
        twice = _predict(shape.choosing(accumulation=2 * shape.accumulation), axes)
        pairs = zip(here.transfers, twice.transfers, strict=True)
        once = tuple(t for t, other in pairs if t.executions == other.executions)
    sized = composed.sized(of, shape)
    sent = sent_by_axes(of.strategy, sized, axes, here) if isinstance(sized, PipelineShape) else {}
    most_first = dict(sorted(sent.items(), key=lambda item: sum(item[1]), reverse=True))
    by_stages = tuple(sum(each, Fraction(0)) for each in zip(*sent.values(), strict=True))
    return Composition(by_stages, once, computed(shape, axes, measured), most_first)


def computed(shape: ComposedShape, axes: Axes, measured: Ledger | None) -> Computed | None:
    """FLOPs by theory, and of a compiled step; None of experts without slots on a TPU, whose kernels take the rows that
    come."""
    target = parse_target(measured.target) if measured and measured.target else None
    if shape.experts and shape.is_dropless and target and target.platform == Platform.TPU:
        return None
    of = configuration(shape, axes)
    sized = composed.sized(of, shape)
    theory = flops(of, sized)
    by_cause = {str(cause): n for cause, n in theory.stages[theory.busiest].items() if n}
    found = Computed(by_cause, theory.totals, theory.every_branch)
    if measured is None or measured.flops is None:
        return found
    once = measured.flops - sum(measured.flops_added.values())
    compiled = (
        computed_by_stages(of.strategy, sized, axes, measured)
        if isinstance(sized, PipelineShape)
        else (Fraction(once),)
    )
    return replace(found, compiled=once, compiled_by_stages=compiled or ())


def start(shape: ComposedShape, axes: Axes, weights: Parameters) -> Any:
    """What the first step begins with: weights, and moments of zeros."""
    of = configuration(shape, axes)
    sized = composed.sized(of, shape)
    if isinstance(sized, PipelineShape):
        return pipelines.state_of(of.strategy, sized, of.pipe, weights)
    return strategies.state_of(of.strategy, sized, weights)


def _in_model_order(shape: ComposedShape, axes: Axes, weights: Parameters) -> Parameters:
    stages = axes.shape.get(PIPE, 1)
    return pipelines.in_sequence(shape, stages, weights) if stages > 1 else weights


def _parts(shape: ComposedShape, axes: Axes) -> int:
    return axes.shape.get(CONTEXT, 1) if shape.experts else 1


def token_order(shape: ComposedShape, axes: Axes) -> Sequence[int]:
    """In which the step takes the tokens of a sequence."""
    ranks = axes.shape.get(CONTEXT, 1)
    is_zigzag = ranks > 1 and shape.attention == "zigzag"
    return np.asarray(ZIGZAG.whole(shape.length, ranks)).tolist() if is_zigzag else as_they_come(shape, axes)
