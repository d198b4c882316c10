"""Chapter 29: what does DiLoCo send between slices or hosts a step, and at most at once?"""

from lab.core.ledger import Ledger
from lab.harness.claim import Claim
from lab.harness.decoder.round_claims import no_transfer_inside, peak, state, volume
from lab.harness.decoder.rounds import TARGETS, round_experiment
from lab.meshes.axes import REPLICA, Axes
from lab.programs.transforms.local_sgd import DILOCO, RoundShape

ID = "ch29.diloco"


def claims(shape: RoundShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if axes[REPLICA] == 1:
        return ()
    return (
        no_transfer_inside(ID, shape, axes, measured),
        volume(ID, shape, axes, measured),
        *peak(ID, shape, axes, measured),
        *state(ID, shape, axes, measured),
    )


EXPERIMENT = round_experiment(
    name="ch29_diloco",
    question="What does DiLoCo send between slices or hosts a step, and at most at once?",
    rounds=DILOCO,
    parameters=RoundShape(layers=8, batch=256, every=500),
    claims=claims,
    everyday=TARGETS[1:],
)
