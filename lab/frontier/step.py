"""A step that is not changed yet, and which interventions it could take."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from lab import diagnosis
from lab.compile.policies import POLICIES
from lab.compile.xla_flags import flags
from lab.core.ledger import Kind
from lab.diagnosis.program import Program
from lab.diagnosis.remedy import CompilerOption, PartitionableKeys, Remedy, UnrollScans
from lab.frontier.flags import interventions as of_flags
from lab.frontier.intervention import Intervention, Lever, Wrap
from lab.frontier.outcome import Outcome
from lab.measure.step_time import Taken
from lab.meshes.axes import Axes
from lab.meshes.platforms import Platform

MOST_ORDERS = 5
"""Of axes of a mesh, beside the one that it has: all of three."""
_UNROLLED = ((0, 2), (0, 4), (1, 2))
"""Of scans so deep, how many iterations are written out."""
_MORE_MICRO_BATCHES = (2, 4)


@dataclass(frozen=True)
class Step:
    """As it is.

    Attributes:
      kinds: of the transfers that it has.
      remedies: what its findings advise.
      flags: of XLA that could do something to it.
    """

    outcome: Outcome
    kinds: frozenset[Kind]
    remedies: tuple[Remedy, ...]
    flags: tuple[Intervention, ...]

    @classmethod
    def of(cls, program: Program, by_trip: Sequence[Collection[Taken]] = ()) -> Step:
        kinds = frozenset(t.kind for t in program.ledger.transfers if t.group_size != 1)
        platform = Platform(program.platform or Platform.CPU)
        remedies = [finding.remedy for finding in diagnosis.of(program).findings if finding.remedy]
        return cls(
            Outcome.of(program, by_trip),
            kinds,
            tuple(dict.fromkeys(remedies)),
            tuple(of_flags(platform, kinds, flags())),
        )


def interventions(step: Step, axes: Axes | None, given: Sequence[Intervention]) -> tuple[Intervention, ...]:
    """All that a step could take, those that it does not apply to among them.

    Args:
      axes: of a mesh that may be made in another order.
      given: parameters that it takes.
    """
    found = [
        *step.flags,
        *(Intervention(Lever.UNROLLING, (UnrollScans(*how),)) for how in _UNROLLED),
        *(Intervention(_lever(remedy), remedy, mathematics=_mathematics(remedy)) for remedy in step.remedies),
        *given,
        *_orders(axes),
    ]
    return tuple({str(one): one for one in found}.values())


def _lever(remedy: Remedy) -> Lever:
    return Lever.FLAG if all(isinstance(change, CompilerOption) for change in remedy) else Lever.PLACEMENT


def _mathematics(remedy: Remedy) -> str:
    return "other random numbers" if PartitionableKeys() in remedy else ""


def _orders(axes: Axes | None) -> Iterator[Intervention]:
    """Axes of one device stay at the end."""
    if axes is None:
        return
    split = [name for name in axes.names if axes[name] > 1]
    rest = [name for name in axes.names if axes[name] == 1]
    for names in list(permutations(split))[1 : MOST_ORDERS + 1]:
        yield Intervention(Lever.AXIS_ORDER, mesh=Axes.of({name: axes[name] for name in (*names, *rest)}))


def of_policies() -> Iterator[Intervention]:
    """What `jax.checkpoint` keeps in a program of which nothing else is known: all of it, or less and less."""
    for policy in (Wrap.REMOVED, *POLICIES, Wrap.AROUND_SCANS):
        yield Intervention(Lever.REMAT, policy=policy)


def of_parameters(parameters: Any) -> Iterator[Intervention]:
    """Of an experiment on a step of the decoder: other policies of recomputation, more micro-batches, and, with other
    rounding, other dtypes."""
    # That imports JAX, for which the command is too early.
    from lab.programs.models.shape import DTYPES, OFFLOAD, REMATS, DecoderShape

    if not isinstance(parameters, DecoderShape):
        return
    for remat in (*REMATS, OFFLOAD):
        if remat != parameters.remat:
            yield Intervention(Lever.REMAT, settings=(("remat", remat),))
    for more in _MORE_MICRO_BATCHES:
        if parameters.micro_batch % more == 0:
            settings = (("accumulation", str(parameters.accumulation * more)),)
            mathematics = "values are rounded micro-batch by micro-batch" if parameters.rounds_micro_batches else ""
            yield Intervention(Lever.PARAMETER, settings=settings, mathematics=mathematics)
    for dtype in DTYPES:
        if dtype != parameters.dtype:
            mathematics = f"activations and weights in use are {dtype}"
            yield Intervention(Lever.PARAMETER, settings=(("dtype", dtype),), mathematics=mathematics)
