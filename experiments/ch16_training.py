"""Chapter 16: do pipelines train the same model, whatever the schedule? The small decoder of ch14_training in stages,
its batch in micro-batches."""

from dataclasses import fields, replace
from math import gcd
from typing import Any

from lab.experiments import ch16_pipeline
from lab.harness.claim import Claim, decided
from lab.harness.decoder.training import LayoutUnderTraining, Training, TrainingResult, trainee
from lab.harness.decoder.training_shape import SMALL, TrainingShape
from lab.harness.experiment import with_inner_axis
from lab.meshes.attached import device_count
from lab.meshes.axes import DATA, PIPE, TENSOR, Axes
from lab.meshes.targets import Target
from lab.programs.models.shape import DecoderShape
from lab.programs.pipelines.program import PipelineShape


def two_stages(target: Target) -> Axes:
    """For two chunks each, which 8 layers are enough for."""
    stages = gcd(device_count(target), 2)
    return Axes.of({DATA: device_count(target) // stages, PIPE: stages, TENSOR: 1})


def four_stages(target: Target) -> Axes:
    """As many as there are devices where they are fewer."""
    axes = with_inner_axis(DATA, PIPE)(target)
    return Axes.of({DATA: axes[DATA], PIPE: axes[PIPE], TENSOR: 1})


def in_schedule(name: str, schedule: str, chunks: int = 1, **how: Any) -> LayoutUnderTraining:
    def sized(shape: TrainingShape) -> PipelineShape:
        return PipelineShape(
            **{each.name: getattr(shape, each.name) for each in fields(DecoderShape)}, schedule=schedule, chunks=chunks
        )

    how = {"axes": four_stages, "sized": sized} | how
    return trainee(name, ch16_pipeline.EXPERIMENT, **how)


def claims(trained: TrainingResult) -> tuple[Claim, ...]:
    evidence = (
        f"{trained.evidence}; pipelines process the batch in {trained.parameters.accumulation} micro-batches, one "
        "device processes it at once"
    )
    return (decided("ch16.grad_scaling", trained.is_one_curve, evidence, structural=True),)


EXPERIMENT = Training(
    name="ch16_training",
    chapter=16,
    question="Do pipelines train the same model, whatever the schedule?",
    parameters=replace(SMALL, layers=8, accumulation=4, remat="none"),
    layouts=(
        in_schedule("1F1B", "1f1b"),
        in_schedule("GPipe", "gpipe"),
        in_schedule("ZB-H1", "zb_h1"),
        in_schedule("interleaved 1F1B", "interleaved", chunks=2, axes=two_stages),
        in_schedule("1F1B x tensor", "1f1b", axes=ch16_pipeline.axes),
    ),
    claims=claims,
)
