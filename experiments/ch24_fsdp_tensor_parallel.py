"""Chapter 24: what does each axis of FSDP x tensor parallelism carry?"""

from lab.harness.decoder.fsdp_tensor_claims import fsdp_tensor_claims
from lab.harness.decoder.step import decoder_experiment
from lab.harness.experiment import TARGETS, TimedSteps, on_two_axes
from lab.meshes.axes import FSDP, TENSOR
from lab.programs.strategies.fsdp_tensor import FSDP_TENSOR

EXPERIMENT = decoder_experiment(
    name="ch24_fsdp_tensor_parallel",
    chapter=24,
    question="What does each axis of FSDP x tensor parallelism carry?",
    strategy=FSDP_TENSOR,
    axes=on_two_axes(FSDP, TENSOR),
    claims=fsdp_tensor_claims,
    targets=TARGETS[:2],
    real_size={},
    tour=TimedSteps(min_devices=4),
    everyday=(("declared", "gpu:h100:2x8"),),
)
