"""Chapter 29: what do replicas send that average their weights every h steps?"""

from lab.core.ledger import Ledger
from lab.harness.claim import Claim
from lab.harness.decoder.round_claims import no_transfer_inside, volume
from lab.harness.decoder.rounds import TARGETS, round_experiment
from lab.meshes.axes import REPLICA, Axes
from lab.programs.transforms.local_sgd import LOCAL_SGD, RoundShape

ID = "ch29.local_sgd"


def claims(shape: RoundShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if axes[REPLICA] == 1:
        return ()
    return no_transfer_inside(ID, shape, axes, measured), volume(ID, shape, axes, measured)


EXPERIMENT = round_experiment(
    name="ch29_local_sgd",
    question="What do replicas send that average their weights every h steps?",
    rounds=LOCAL_SGD,
    parameters=RoundShape(batch=256),
    claims=claims,
    everyday=TARGETS[:1],
)
