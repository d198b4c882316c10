"""Chapter 20: does ZeRO-1 shard the optimizer state and send no more than data parallelism?"""

from lab.harness.decoder.step import decoder_experiment
from lab.harness.decoder.zero_claims import zero_claims
from lab.harness.experiment import TARGETS, TimedSteps, on_one_axis
from lab.meshes.axes import DATA
from lab.programs.strategies.zero1 import ZERO1

EXPERIMENT = decoder_experiment(
    name="ch20_zero1",
    chapter=20,
    question="Does ZeRO-1 shard the optimizer state and send no more than data parallelism?",
    strategy=ZERO1,
    axes=on_one_axis(DATA),
    claims=zero_claims(ZERO1, stage=1),
    targets=TARGETS[:2],
    real_size={},
    tour=TimedSteps(every_size=True),
)
