"""Chapter 24: what do 16,384 GPUs send per step of Llama 3 405B under FSDP x tensor and sequence parallelism?"""

from dataclasses import replace
from math import gcd

from lab.harness.decoder.fsdp_tensor_claims import fsdp_tensor_claims
from lab.harness.decoder.step import decoder_experiment
from lab.meshes.attached import device_count
from lab.meshes.axes import FSDP, TENSOR, Axes
from lab.meshes.targets import Target
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.fsdp_tensor import FSDP_SEQUENCE

LLAMA3_405B = replace(DecoderShape.preset("llama3-405b"), batch=4096)
"""One sequence of 8,192 tokens for each group of GPUs."""


def axes(target: Target) -> Axes:
    """Tensor parallelism in groups of 4 devices, of 2 where 4 are all."""
    devices = device_count(target)
    tensor = gcd(devices, 4 if devices > 4 else 2)
    return Axes.of({FSDP: devices // tensor, TENSOR: tensor})


EXPERIMENT = decoder_experiment(
    name="ch24_llama3_405b",
    chapter=24,
    question="What do 16,384 GPUs send per step of Llama 3 405B under FSDP x tensor and sequence parallelism?",
    strategy=FSDP_SEQUENCE,
    axes=axes,
    claims=fsdp_tensor_claims,
    parameters=LLAMA3_405B,
    targets=("gpu:h100:2048x8",),
    more_styles=("typed",),
    real_size={},
    everyday=(("explicit", "gpu:h100:2048x8"),),
)
