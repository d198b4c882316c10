"""Chapter 25: what do data, pipeline, context and tensor parallelism send per step on one mesh?"""

from lab.harness.decoder.composed import ComposedShape, composed_experiment
from lab.harness.decoder.composed_claims import composed_claims
from lab.meshes.attached import device_count
from lab.meshes.axes import CONTEXT, DATA, PIPE, TENSOR, Axes
from lab.meshes.targets import Target


def axes(target: Target) -> Axes:
    """Two ranks of a tensor group, of a ring and of a pipeline each, as far as the devices go; replicas outermost."""
    left, sizes = device_count(target), {}
    for name in (TENSOR, CONTEXT, PIPE):
        sizes[name] = 2 if left % 2 == 0 else 1
        left //= sizes[name]
    return Axes.of({DATA: left} | {name: sizes[name] for name in (PIPE, CONTEXT, TENSOR)})


EXPERIMENT = composed_experiment(
    name="ch25_4d",
    chapter=25,
    question="What do data, pipeline, context and tensor parallelism send per step on one mesh?",
    axes=axes,
    claims=composed_claims,
    parameters=ComposedShape(layers=8, accumulation=4, schedule="eager_1f1b"),
    targets=("gpu:h100:2x8",),
    more_targets=("cpu:8", "cpu:16"),
)
