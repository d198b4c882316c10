"""The schedule of a compiled step as plain data: what its time depends on, and no more, so that it can be kept and
timed again at other rates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from lab.core.codec import from_json, to_json
from lab.core.ledger import Ledger, Phase
from lab.diagnosis.program import Program
from lab.hlo.kernels import Choice, Collective, Copy, Does, Kernel, Loop, Step, steps_of
from lab.hlo.names import phase
from lab.measure.rates.links import Links, Reach
from lab.measure.rates.prices import Prices
from lab.measure.rates.table import ChipRates
from lab.measure.step_time import Taken
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target


@dataclass(frozen=True)
class Schedule:
    """One step.

    Attributes:
      reaches: how the groups of each transfer lie, by its instruction.
      differentiated: some of it is a backward pass.
      by_trip: what some device does, at each trip of the loop that chooses.
    """

    steps: tuple[Step, ...]
    ledger: Ledger
    reaches: Mapping[str, Reach]
    devices_per_chip: int
    differentiated: bool
    by_trip: tuple[tuple[Taken, ...], ...] = ()

    @classmethod
    def of(cls, program: Program, target: Target, by_trip: Iterable[Collection[Taken]] = ()) -> Schedule:
        """Of a program that was compiled for this target."""
        reading = program.reading
        return cls(
            steps_of(program.module),
            program.ledger,
            Links.reaches_of(target.hardware.key, reading, target),
            target.hardware.devices_per_chip,
            reading.reader.differentiated,
            tuple(tuple(sorted(set(taken))) for taken in by_trip),
        )

    def with_fused_attention(self) -> Schedule:
        """Loops over tiles of keys, in the scope `attention/core`, as one kernel each, such as libraries have: the same
        products, without the scores' way through memory, and without those that a causal mask hides."""
        return replace(self, steps=tuple(map(_fused, self.steps)))

    def prices(self, rates: ChipRates) -> Prices:
        return Prices(rates, Links(rates, {**self.reaches}, self.devices_per_chip))

    def json_object(self) -> ScheduleJson:
        """Names of operations are cut down to what tells their phase, and transfers to what tells their time."""
        ledger = replace(self.ledger, transfers=tuple(replace(t, stack=()) for t in self.ledger.transfers), notes=())
        return ScheduleJson(
            tuple(map(_step_json, self.steps)),
            to_json(ledger),
            self.reaches,
            self.devices_per_chip,
            self.differentiated,
            self.by_trip,
        )


@dataclass(frozen=True)
class StepJson:
    """One of its fields, or two of a loop or of branches."""

    kernel: Kernel | None = None
    copy: Copy | None = None
    collective: Collective | None = None
    body: tuple[StepJson, ...] | None = None
    trips: int | None = None
    branches: tuple[tuple[StepJson, ...], ...] | None = None
    scopes: tuple[tuple[str, ...], ...] = ()

    def step(self) -> Step:
        if self.body is not None:
            return Loop(self.trips, _steps(self.body))
        if self.branches is not None:
            return Choice(tuple(map(_steps, self.branches)), self.scopes)
        for step in (self.kernel, self.copy, self.collective):
            if step is not None:
                return step
        raise UsageError("found an empty step of a schedule, expected a kernel, copy, collective, loop or branches")


@dataclass(frozen=True)
class ScheduleJson:
    steps: tuple[StepJson, ...]
    ledger: Mapping[str, Any]
    reaches: Mapping[str, Reach]
    devices_per_chip: int
    differentiated: bool
    by_trip: tuple[tuple[Taken, ...], ...] = ()

    def schedule(self) -> Schedule:
        return Schedule(
            _steps(self.steps),
            Ledger.from_json(self.ledger),
            dict(self.reaches),
            self.devices_per_chip,
            self.differentiated,
            self.by_trip,
        )


def schedule_from(found: object) -> Schedule:
    """Raises UsageError for what is none."""
    return from_json(ScheduleJson, found).schedule()


CORE, CAUSAL = "attention/core", Fraction(1, 2)
"""Of the FLOPs of all scores, those below the diagonal."""


def _fused(step: Step) -> Step:
    if isinstance(step, Choice):
        return replace(step, branches=tuple(tuple(map(_fused, branch)) for branch in step.branches))
    if not isinstance(step, Loop):
        return step
    multiplying = [one for one in step.body if isinstance(one, Kernel) and one.flops]
    if multiplying and all(CORE in one.op_name for one in multiplying):
        return _attention(multiplying, step.trips or 0)
    return replace(step, body=tuple(map(_fused, step.body)))


def _attention(tile: Sequence[Kernel], trips: int) -> Kernel:
    flops = int(CAUSAL * trips * sum(one.flops for one in tile))
    name = max(tile, key=lambda one: one.flops)
    is_backward = "transpose(" in name.op_name and "rematted_computation" not in name.op_name
    does = Does.ATTENTION_BACKWARD if is_backward else Does.ATTENTION
    return Kernel(f"{name.name}.fused", 0, flops, does=does, product=name.product, op_name=name.op_name)


_TOLD = {Phase.FORWARD: "jvp()", Phase.BACKWARD: "transpose(jvp())", Phase.UPDATE: "update", None: ""}
"""The shortest names of operations that tell their phase."""


def _steps(some: Sequence[StepJson]) -> tuple[Step, ...]:
    return tuple(one.step() for one in some)


def _step_json(step: Step) -> StepJson:
    if isinstance(step, Kernel):
        return StepJson(kernel=replace(step, op_name=_TOLD[phase(step.op_name or None, differentiated=True)]))
    if isinstance(step, Copy):
        return StepJson(copy=step)
    if isinstance(step, Collective):
        return StepJson(collective=step)
    if isinstance(step, Loop):
        return StepJson(body=tuple(map(_step_json, step.body)), trips=step.trips)
    return StepJson(branches=tuple(tuple(map(_step_json, branch)) for branch in step.branches), scopes=step.scopes)
