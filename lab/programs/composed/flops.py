"""Floating-point operations of a configuration's training step, by stage of its pipeline and by cause: what is more, or
less, than 6 N D (Ch. 24, 27)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from lab.book.data_parallel import training_flops
from lab.programs.composed.configuration import Configuration
from lab.programs.composed.products import Cause, Passes, Work, of_ends, of_layer, several, size, total
from lab.programs.models.shape import DecoderShape
from lab.programs.pipelines.program import LAYERS, PipelineShape, table_for
from lab.programs.pipelines.simulation import Durations, simulate
from lab.programs.pipelines.table import Job, Table
from lab.programs.pipelines.taken import runs_all_room, visits


@dataclass(frozen=True)
class Flops:
    """Of one device's step.

    Attributes:
      stages: of a device of each stage of a pipeline, by cause; of a step without one, its own.
      every_branch: what a compiled text comes to, which does not tell how often a stage takes a branch: as if all were
        taken in every tick.
    """

    stages: tuple[Work, ...]
    every_branch: Fraction

    @property
    def totals(self) -> tuple[Fraction, ...]:
        return tuple(map(size, self.stages))

    @property
    def busiest(self) -> int:
        """The stage, the first of equal ones."""
        return self.totals.index(max(self.totals))


def flops(configuration: Configuration, model: DecoderShape) -> Flops:
    """Experts without slots as compilers of CPUs and GPUs multiply them."""
    if isinstance(model, PipelineShape):
        return _of_stages(configuration, model)
    layers = [(stack.layers, of_layer(configuration, stack)) for stack in model.stacks.values()]
    step = total((model.accumulation, several(*layers, (1, of_ends(configuration, model))).all))
    stages = _explained(configuration, model, [step])
    return Flops(stages, size(stages[0]))


def idle_flops(configuration: Configuration, model: PipelineShape) -> float:
    """What the busiest stage could compute while it waits for others, all work as soon as it can run; in lockstep it
    computes in vain instead."""
    if table_for(configuration.strategy, model, configuration.axes).is_in_lockstep:
        return 0.0
    put_off = _of_chunk(configuration, model)(model.chunk_layers(configuration.pipe), False, False).put_off
    parts = [
        [(one.forward, total((1, one.all), (-1, one.put_off)), put_off) for one in chunks]
        for chunks in _own_chunks(configuration, model)
    ]
    forward, backward, weight = ([[float(size(part[n])) for part in chunks] for chunks in parts] for n in range(3))
    timeline = simulate(model.order(configuration.pipe), Durations(forward, backward, weight))
    return float(timeline.makespan - max(timeline.busy))


def _of_stages(configuration: Configuration, model: PipelineShape) -> Flops:
    table = table_for(configuration.strategy, model, configuration.axes)
    of_chunk, room = _of_chunk(configuration, model), model.chunk_layers(configuration.pipe)
    most = of_chunk(room, True, True)
    every = sum((size(_of_job(job, most)) for job in table.jobs), Fraction(0))
    done = visits(table, model.chunks)
    works = []
    for stage, chunks in enumerate(_own_chunks(configuration, model)):
        parts = []
        for chunk, own in enumerate(chunks):
            parts.append((model.accumulation, own.all))
            parts.append((model.accumulation, {Cause.STAGE_AGAIN: size(own.forward)}))
            is_last = stage == configuration.pipe - 1 and chunk == model.chunks - 1
            parts += _in_vain(model, done[:, chunk, stage], own, of_chunk(room, True, is_last), table)
        works.append(total(*parts))
    return Flops(_explained(configuration, model, works), table.ticks * every)


def _own_chunks(configuration: Configuration, model: PipelineShape) -> list[list[Passes]]:
    """[stages][chunks]: of what each stage has of the model."""
    of_chunk, layers_vP = _of_chunk(configuration, model), model.layers_by_chunk(configuration.pipe)
    last = configuration.pipe - 1, model.chunks - 1
    return [
        [
            of_chunk(int(layers_vP[chunk, stage]), stage == chunk == 0, (stage, chunk) == last)
            for chunk in range(model.chunks)
        ]
        for stage in range(configuration.pipe)
    ]


def _of_chunk(configuration: Configuration, model: PipelineShape) -> Callable[[int, bool, bool], Passes]:
    """Of so many layers, whether it has the dense ones, and whether it is the last."""
    layer = {name: _of_layer(name, configuration, stack) for name, stack in model.stacks.items()}
    ends = of_ends(configuration, model)

    def of_chunk(layers: int, has_dense: bool, is_last: bool) -> Passes:
        counts = {LAYERS: layers, "dense": has_dense * model.dense_layers, "mtp": int(is_last)}
        return several(*((counts[name], of_one) for name, of_one in layer.items()), (int(is_last), ends))

    return of_chunk


def _of_layer(name: str, configuration: Configuration, stack: DecoderShape) -> Passes:
    """Of a layer that only one stage has no gradient is put off."""
    if name == LAYERS:
        return of_layer(configuration, stack)
    return replace(of_layer(replace(configuration, schedule="1f1b"), stack), put_off={})


def _in_vain(
    model: PipelineShape, done_J: np.ndarray, own: Passes, whole: Passes, table: Table
) -> list[tuple[int, Work]]:
    """Of jobs that run as many layers as the longest chunk has, and in lockstep of those that another stage has."""
    found: list[tuple[int, Work]] = []
    for job in table.jobs:
        if job is not Job.IDLE and runs_all_room(job, table):
            mine, most = size(_of_job(job, own)), size(_of_job(job, whole))
            found.append((model.accumulation, {Cause.LAYERS_IN_VAIN: most - mine}))
            found.append((int(done_J[job]) - model.accumulation, {Cause.JOBS_IN_VAIN: most}))
    return found


def _of_job(job: Job, chunk: Passes) -> Work:
    """Going backwards, a stage computes its chunk again first."""
    return {
        Job.IDLE: {},
        Job.FORWARD: chunk.forward,
        Job.BACKWARD: chunk.all,
        Job.INPUT_GRADIENT: total((1, chunk.all), (-1, chunk.put_off)),
        Job.WEIGHT_GRADIENT: chunk.put_off,
    }[job]


def _explained(configuration: Configuration, model: DecoderShape, works: list[Work]) -> tuple[Work, ...]:
    """With 6 N D and what it is not in place of the products with weights."""
    tokens, devices = model.batch * model.length, configuration.devices
    mean = sum((work[Cause.WEIGHTS] for work in works), Fraction(0)) / len(works)
    training, looked_up = (
        Fraction(training_flops(count, tokens)) / devices for count in (_visited(model), _not_multiplied(model))
    )
    return tuple(
        {
            Cause.TRAINING: training,
            Cause.NOT_MULTIPLIED: -looked_up,
            Cause.SHARE: work[Cause.WEIGHTS] - mean,
            **{cause: flops for cause, flops in work.items() if cause is not Cause.WEIGHTS},
        }
        for work in works
    )


def _visited(model: DecoderShape) -> int:
    """Parameters that one token visits."""
    layers = model.expert_layers + (model.mtp if model.experts else 0)
    return model.parameters - layers * (model.experts - model.top_k) * model.mlp_matrices * model.embed * model.mlp


def _not_multiplied(model: DecoderShape) -> int:
    """A table that rows are read of, norms and biases."""
    return (0 if model.tied else model.vocab * model.embed) + model.norms + model.biases
