"""Chapter 24: what does each axis of FSDP x tensor parallelism carry?"""

from lab.decoder_experiments.fsdp_tensor_claims import fsdp_tensor_claims
from lab.decoder_experiments.step import WITH_TYPES, decoder_experiment
from lab.experiment import TARGETS, beside_tensor
from lab.strategies.fsdp_tensor import FSDP_TENSOR
from meshes.axes import FSDP

EXPERIMENT = decoder_experiment(
    name="ch24_fsdp_tensor_parallel",
    chapter=24,
    question="What does each axis of FSDP x tensor parallelism carry?",
    strategy=FSDP_TENSOR,
    axes=beside_tensor(FSDP),
    claims=fsdp_tensor_claims,
    styles=WITH_TYPES,
    targets=TARGETS[:2],
)
