"""Chapter 17: does a decoder with sequences sharded over several ranks train like on one device? The small decoder of
ch14_training, its attention over ranks."""

from lab.experiments import (
    ch17_gathered_keys,
    ch17_ring_attention,
    ch17_ulysses,
    ch17_zigzag,
)
from lab.harness.claim import Claim, decided
from lab.harness.decoder.training import Training, TrainingResult, trainee
from lab.harness.decoder.training_shape import SMALL


def claims(trained: TrainingResult) -> tuple[Claim, ...]:
    return (
        decided(
            "ch17.positions",
            trained.is_one_curve,
            trained.evidence,
            statement="a rank's own range, with zigzag two of them, give one device's model",
            structural=True,
        ),
    )


EXPERIMENT = Training(
    name="ch17_training",
    chapter=17,
    question="Does a decoder with sequences sharded over several ranks train like on one device?",
    parameters=SMALL,
    layouts=(
        trainee("ring", ch17_ring_attention.EXPERIMENT),
        trainee("ring in zigzag order", ch17_zigzag.EXPERIMENT),
        trainee("gathered keys", ch17_gathered_keys.EXPERIMENT),
        trainee("Ulysses", ch17_ulysses.EXPERIMENT),
    ),
    claims=claims,
)
