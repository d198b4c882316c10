"""Chapter 35: does node-limited routing train the same model as one device?

The small decoder of ch18_training with DeepSeek-V3's router: sigmoids, a bias that moves towards balance, and experts
of 2 of 4 nodes for each token. On 4 devices or more several ranks are nodes; on two all nodes lie on each.
"""

from dataclasses import replace

from lab.experiments import ch18_expert_parallel, ch18_training, ch35_node_limit
from lab.harness.claim import Claim, decided
from lab.harness.decoder.training import Training, TrainingResult, trainee


def claims(trained: TrainingResult) -> tuple[Claim, ...]:
    return (
        decided(
            "A41",
            trained.is_one_curve,
            trained.evidence,
            statement="a token that goes to each of its nodes once trains them as one device does",
            structural=True,
        ),
    )


EXPERIMENT = Training(
    name="ch35_training",
    chapter=35,
    question="Does node-limited routing train the same model as one device?",
    parameters=replace(ch18_training.EXPERIMENT.parameters, router="sigmoid_bias", top_k=4, nodes=4, node_limit=2),
    layouts=(
        trainee("a copy a node", ch35_node_limit.EXPERIMENT),
        trainee("a copy an expert", ch18_expert_parallel.EXPERIMENT),
    ),
    claims=claims,
)
