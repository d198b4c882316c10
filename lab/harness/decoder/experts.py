"""Experiments on a step with 32 experts in a layer, the ranks that share them inside a host; all but the question, the
strategy and the claims is the same."""

from dataclasses import replace
from functools import partial

from lab.harness.decoder.step import SMALL, decoder_experiment
from lab.harness.experiment import with_inner_axis
from lab.meshes.axes import DATA, EXPERT
from lab.programs.models.shape import DecoderShape

SHAPE = DecoderShape(mlp=1408, experts=32)
SMALL_SHAPE = replace(SMALL, mlp=24, experts=16)

expert_experiment = partial(
    decoder_experiment,
    axes=with_inner_axis(DATA, EXPERT),
    parameters=SHAPE,
    targets=("gpu:h100:2x8",),
    more_targets=("cpu:8", "tpu:v5p:2x2x4"),
    small=SMALL_SHAPE,
)
"""`decoder_experiment` with these sizes."""


def tokens_on_rank(shape: DecoderShape, ranks: int) -> int:
    """Of one micro-batch."""
    return shape.micro_batch * shape.length // ranks
