"""Chapter 20: does ZeRO-2 keep only a shard of the gradients and send no more than data parallelism?"""

from lab.harness.decoder.step import decoder_experiment
from lab.harness.decoder.zero_claims import zero_claims
from lab.harness.experiment import TARGETS, on_one_axis
from lab.meshes.axes import DATA
from lab.programs.strategies.zero1 import ZERO2

EXPERIMENT = decoder_experiment(
    name="ch20_zero2",
    chapter=20,
    question="Does ZeRO-2 keep only a shard of the gradients and send no more than data parallelism?",
    strategy=ZERO2,
    axes=on_one_axis(DATA),
    claims=zero_claims(ZERO2, stage=2),
    targets=TARGETS[:2],
    real_size={},
)
