"""Chapter 18: does expert parallelism train the same model when some tokens are dropped?

The small decoder of ch14_training with 8 experts in a layer, and slots for as many tokens as balance would send. One
device drops the same tokens: slots are of a sequence, and no layout splits one. Sooner or later a token's choice hangs
on the last bit of a sum: a layout that chooses otherwise than one device is held against one device that chooses so,
and a change of the router's weights by no more than rounding has moved must make it.
"""

from dataclasses import replace

from lab.experiments import ch18_expert_parallel, ch18_fsdp_experts, ch18_hierarchical
from lab.harness.claim import Claim, decided
from lab.harness.decoder.training import Training, TrainingResult, trainee
from lab.harness.decoder.training_shape import SMALL


def claims(trained: TrainingResult) -> tuple[Claim, ...]:
    statement = "experts' gradients are summed over data, all others over both axes"
    return (decided("ch18.ep_dp", trained.is_one_curve, trained.evidence, statement=statement, structural=True),)


EXPERIMENT = Training(
    name="ch18_training",
    chapter=18,
    question="Does expert parallelism train the same model when some tokens are dropped?",
    parameters=replace(SMALL, mlp=88, experts=8, top_k=2, capacity_factor=1.0),
    layouts=(
        trainee("experts", ch18_expert_parallel.EXPERIMENT),
        trainee("FSDP x experts", ch18_fsdp_experts.EXPERIMENT),
        trainee("experts over two levels", ch18_hierarchical.EXPERIMENT),
    ),
    claims=claims,
)
