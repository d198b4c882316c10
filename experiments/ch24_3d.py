"""Chapter 24: what do data, pipeline and tensor parallelism send per step on one mesh?"""

from lab.harness.decoder.composed import ComposedShape, composed_experiment
from lab.harness.decoder.composed_claims import composed_claims
from lab.meshes.attached import device_count
from lab.meshes.axes import DATA, PIPE, TENSOR, Axes
from lab.meshes.targets import Target


def axes(target: Target) -> Axes:
    """Tensor groups of 4, of 2 where there are 8 devices or fewer; two stages; replicas outermost."""
    devices = device_count(target)
    tensor = next(t for t in (4 if devices > 8 else 2, 2, 1) if devices % t == 0)
    pipe = 2 if devices // tensor % 2 == 0 else 1
    return Axes.of({DATA: devices // tensor // pipe, PIPE: pipe, TENSOR: tensor})


EXPERIMENT = composed_experiment(
    name="ch24_3d",
    chapter=24,
    question="What do data, pipeline and tensor parallelism send per step on one mesh?",
    axes=axes,
    claims=composed_claims,
    parameters=ComposedShape(layers=8, accumulation=8, remat="none"),
    targets=("gpu:h100:2x8",),
    more_targets=("cpu:8", "tpu:v5p:2x2x4"),
)
