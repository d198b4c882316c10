"""Chapter 18: do dropless experts train the same model as experts with a slot for every token?

The small decoder of ch18_training, none of whose tokens is dropped: one device and "no slots" send as many rows as
there are, "slots for all" have room for a whole sequence at each expert. Where the backend has a ragged all-to-all,
`--set dispatch=ragged`.
"""

from dataclasses import replace

from lab.experiments import ch18_expert_parallel, ch18_training
from lab.harness.claim import Claim, decided
from lab.harness.decoder.training import Training, TrainingResult, trainee
from lab.harness.decoder.training_shape import TrainingShape


def in_slots(shape: TrainingShape) -> TrainingShape:
    return replace(shape, dispatch="slots", capacity_factor=shape.experts / shape.top_k)


def claims(trained: TrainingResult) -> tuple[Claim, ...]:
    return (
        decided(
            "A39",
            trained.is_one_curve,
            trained.evidence,
            statement="what is sent without slots is what none of enough slots drops",
            structural=True,
        ),
    )


EXPERIMENT = Training(
    name="ch18_dropless_training",
    chapter=18,
    question="Do dropless experts train the same model as experts with a slot for every token?",
    parameters=replace(ch18_training.EXPERIMENT.parameters, dispatch="padded"),
    layouts=(
        trainee("no slots", ch18_expert_parallel.EXPERIMENT, styles=("explicit",)),
        trainee("slots for all", ch18_expert_parallel.EXPERIMENT, sized=in_slots),
    ),
    claims=claims,
)
