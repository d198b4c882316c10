"""An experiment on a round of h training steps: local SGD and DiLoCo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial

from lab.core.ledger import Ledger
from lab.harness.claim import Claim
from lab.harness.decoder.round_numerics import compare_rounds
from lab.harness.decoder.step import SMALL
from lab.harness.experiment import Experiment
from lab.meshes.attached import device_count, resolve_attached
from lab.meshes.axes import FSDP, REPLICA, Axes
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target
from lab.programs.transforms import local_sgd
from lab.programs.transforms.local_sgd import Rounds, RoundShape

TARGETS = ("cpu:8", "gpu:h100:2x8", "tpu:v5p:2x2x2*2")
SMALL_ROUND = RoundShape(**asdict(replace(SMALL, layers=4)), every=4)


def replicas_apart(target: Target) -> Axes:
    """A replica a slice of TPUs or a host of GPUs, two elsewhere, and sharded data parallelism inside."""
    place, devices = resolve_attached(target), device_count(target)
    apart = place.slices if place.platform == Platform.TPU else place.hosts if place.platform == Platform.GPU else 1
    replicas = apart if apart > 1 else min(2, devices)
    return Axes.of({REPLICA: replicas, FSDP: devices // replicas})


def round_experiment(
    name: str,
    question: str,
    rounds: Rounds,
    parameters: RoundShape,
    claims: Callable[[RoundShape, Axes, Ledger], tuple[Claim, ...]],
    everyday: tuple[str, ...],
) -> Experiment:
    """Compiles a round as one program."""
    return Experiment(
        name=name,
        chapter=29,
        question=question,
        parameters=parameters,
        numeric_parameters=replace(
            SMALL_ROUND, fragments=parameters.fragments, outer=parameters.outer, delay=parameters.delay
        ),
        axes=replicas_apart,
        build=lambda style, shape, mesh: local_sgd.program(rounds, shape, mesh),
        predict=partial(local_sgd.predict, rounds),
        claims=claims,
        compare=partial(compare_rounds, rounds),
        state=lambda shape, mesh: local_sgd.program(rounds, shape, mesh)[1][0],
        targets=TARGETS,
        styles=("explicit",),
        everyday=tuple(("explicit", target) for target in everyday),
    )
