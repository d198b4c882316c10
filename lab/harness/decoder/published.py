"""An experiment on a training run that somebody published: the lab's step with its model, batch and mesh, on its
machine or on more or fewer of the same devices."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any, ClassVar, Self

from lab.harness.decoder.composed import SMALL_SHAPE, ComposedShape, composed_experiment
from lab.harness.decoder.composed_claims import composed_claims
from lab.harness.experiment import Experiment
from lab.meshes.attached import device_count
from lab.meshes.axes import DATA, FSDP, Axes
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target, parse_target
from lab.programs.models.shape import DecoderShape
from lab.zoo import published_run

AT_SIZE = ("accumulation", "schedule", "chunks", "stage_layers")
"""Choices that small sizes do without."""


@dataclass(frozen=True)
class PublishedShape(ComposedShape):
    """The sizes of a published run.

    Attributes:
      row: of the table of runs (`lab/zoo/runs.toml`), which sets all else.
      devices: how many there are; 0: as many as published. More or fewer change the data-parallel degree; the batch
        stays.
    """

    row: str = ""
    devices: int = 0

    NAMED_BY: ClassVar[str] = "row"

    @classmethod
    def preset(cls, name: str) -> Self:
        """A run of the zoo.

        Raises:
          UsageError: no such run, or a model that the decoder is not.
        """
        run, model = published_run(name), DecoderShape.preset(published_run(name).model)
        sizes: dict[str, Any] = {each.name: getattr(model, each.name) for each in fields(DecoderShape)}
        how = ("schedule", "chunks", "stage_layers", "zero", "remat", "attention", "mtp")
        chosen = ("batch", "length", "accumulation", *how)
        stated = {each: getattr(run, each) for each in chosen} | ({"vocab": run.vocab} if run.vocab else {})
        return cls(**sizes | stated, row=name)


def published_experiment(name: str, chapter: int, question: str, row: str) -> Experiment:
    """Compiles the step of a row of the table of runs; `--set row=` takes another."""
    parameters = PublishedShape.preset(row)
    experiment = composed_experiment(
        name=name,
        chapter=chapter,
        question=question,
        axes=lambda target: placed(parameters, target)[2],
        claims=composed_claims,
        parameters=parameters,
        targets=(published_run(row).target,),
    )
    # Of its own schedule and micro-batches a reference on one device would take hours.
    choices = {name: getattr(parameters, name) for name in ComposedShape.CHOICES if name not in AT_SIZE}
    return replace(
        experiment,
        place=placed,
        published=lambda parameters: published_run(parameters.row),
        numeric_parameters=SMALL_SHAPE.choosing(**choices),
    )


def placed(parameters: PublishedShape, target: Target | None) -> tuple[PublishedShape, Target, Axes]:
    """The run with as many micro-batches as its devices leave, its machine and its mesh.

    Args:
      target: to use instead of the machine of the row, with its number of devices.
    Raises:
      UsageError: no data-parallel degree makes that number of devices, or does not divide the batch.
    """
    row = published_run(parameters.row)
    published, axes = parse_target(row.target), Axes.parse(row.mesh)
    if target is None:
        target = _resized(published, parameters.devices or axes.size)
    devices, grows = device_count(target), next(name for name in (DATA, FSDP) if name in axes.names)
    others = axes.size // axes[grows]
    if devices % others:
        raise UsageError(
            f"{parameters.row} on {devices} devices: expected a multiple of {others}, the other axes of {axes}"
        )
    mesh = Axes.of(axes.shape | {grows: devices // others})
    # Each rank goes on with as many sequences at once.
    of_one = row.batch // row.accumulation // axes[grows]
    if parameters.batch % (of_one * mesh[grows]):
        raise UsageError(
            f"{parameters.row}: batch={parameters.batch} does not divide over {grows}={mesh[grows]} with "
            f"{of_one} sequences at once; make it a multiple of {of_one * mesh[grows]}"
        )
    accumulation = parameters.batch // (of_one * mesh[grows])
    return replace(parameters, accumulation=accumulation, devices=devices), target, mesh


def _resized(target: Target, devices: int) -> Target:
    """More or fewer hosts of the same GPUs."""
    if devices == target.devices:
        return target
    if target.platform != "gpu" or devices % target.per_host:
        raise UsageError(
            f"devices={devices}: expected {target.devices}, or of GPUs a multiple of those of a host; name another "
            "machine with --target"
        )
    return replace(target, shape=(devices // prod(target.shape[1:]), *target.shape[1:]))
