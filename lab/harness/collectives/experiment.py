"""An experiment on collectives: those of its kernels that serve a mesh, and the claims that their compiled ledger
decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import gcd
from typing import Any

from lab.core.ledger import Ledger
from lab.harness.claim import Claim
from lab.harness.collectives.kernels import Buffer, Kernel
from lab.harness.collectives.one_device import on_one_device
from lab.harness.collectives.program import predict, program
from lab.harness.experiment import Experiment
from lab.meshes.attached import device_count
from lab.meshes.axes import DATA, FSDP, Axes
from lab.meshes.targets import Target

TARGETS = ("cpu:8", "gpu:h100:2x4", "tpu:v5e:2x4")

Claims = Callable[[Buffer, Axes, Ledger], tuple[Claim, ...]]


def experiment(
    name: str, chapter: int, question: str, kernels: Sequence[Kernel], claims: Claims, **rest: Any
) -> Experiment:
    """An experiment of those of the kernels that serve its mesh."""
    of_collectives = Experiment(
        name=name,
        chapter=chapter,
        question=question,
        parameters=Buffer(),
        numeric_parameters=Buffer(elements=5040),
        axes=inside_hosts,
        build=lambda style, buffer, mesh: program(kernels, buffer, mesh),
        predict=partial(predict, kernels),
        claims=claims,
        reference=lambda buffer: partial(on_one_device, kernels),
        targets=TARGETS,
        styles=("explicit",),
    )
    return replace(of_collectives, **rest)


def inside_hosts(target: Target) -> Axes:
    """Ranks inside a host of GPUs along `fsdp`, hosts along `data`; elsewhere two groups stand for hosts."""
    devices = device_count(target)
    hosts = target.hosts if target.platform == "gpu" else gcd(devices, 2)
    return Axes.of({DATA: hosts, FSDP: devices // hosts})
