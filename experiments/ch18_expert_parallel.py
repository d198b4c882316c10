"""Chapter 18: what do experts on other ranks cost a training step, and whose gradients are summed where?"""

from dataclasses import replace

from lab.decoder_experiments.step import SMALL, decoder_experiment
from lab.experiment import Claim, beside
from lab.ledger import Ledger
from lab.models.shape import DecoderShape
from lab.strategies.data_parallel import DATA_PARALLEL
from lab.strategies.expert_parallel import EXPERT_PARALLEL
from meshes.axes import DATA, EXPERT, Axes


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    return ()


EXPERIMENT = decoder_experiment(
    name="ch18_expert_parallel",
    chapter=18,
    question="What do experts on other ranks cost a training step, and whose gradients are summed where?",
    strategy=DATA_PARALLEL | EXPERT_PARALLEL,
    axes=beside(DATA, EXPERT),
    claims=claims,
    parameters=DecoderShape(mlp=1408, experts=16),
    small=replace(SMALL, mlp=24, experts=8),
)
