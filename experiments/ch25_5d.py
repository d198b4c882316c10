"""Chapter 25: what do five parallelisms on one mesh send per step, and which ranks sum which gradient?"""

from lab.harness.decoder.composed import ComposedShape, composed_experiment
from lab.harness.decoder.composed_claims import composed_claims
from lab.meshes.attached import device_count
from lab.meshes.axes import CONTEXT, DATA, EXPERT, PIPE, TENSOR, Axes
from lab.meshes.targets import Target

SHAPE = ComposedShape(
    layers=8, mlp=1408, experts=8, capacity_factor=1.0, accumulation=4, schedule="eager_1f1b", balance=0.0
)


def axes(target: Target) -> Axes:
    """Tensor innermost, replicas outermost; two ranks an axis, in this order as far as the devices go, and the rest
    along `data`."""
    left, sizes = device_count(target), {}
    for name in (TENSOR, EXPERT, PIPE, CONTEXT):
        sizes[name] = 2 if left % 2 == 0 else 1
        left //= sizes[name]
    return Axes.of({DATA: left} | {name: sizes[name] for name in (PIPE, CONTEXT, EXPERT, TENSOR)})


EXPERIMENT = composed_experiment(
    name="ch25_5d",
    chapter=25,
    question="What do five parallelisms on one mesh send per step, and which ranks sum which gradient?",
    axes=axes,
    claims=composed_claims,
    parameters=SHAPE,
    targets=("gpu:h100:4x8",),
    more_targets=("cpu:8", "cpu:32"),
)
