"""All parts of the tour in one record: `sharding-lab/tour/1`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import Any, Final, Literal

import jax

from lab.core.units import bytes_text
from lab.harness import suite
from lab.harness.experiment import Experiment, Run
from lab.measure.bench import rates as own
from lab.measure.bench.machine import Machine, machine
from lab.measure.bench.record import Bench, BenchJson
from lab.measure.bench.run import bench
from lab.measure.step_time import MeasuredRates
from lab.measure.tour.losses import AgainstCpu, AgainstCpuJson, losses
from lab.measure.tour.programs import Compared, ComparedJson, compared, own_chip_text
from lab.measure.tour.times import TimedStep, TimedStepJson, timed_steps
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError, no_such
from lab.meshes.targets import Target, parse_target

SCHEMA: Final = "sharding-lab/tour/1"
PARTS = ("collectives", "times", "programs", "losses")
LINK_SIZES = tuple(4**power * 2**10 for power in range(11))
"""1 KiB to 1 GiB."""
FAR = 0.2
"""Of a step's time."""
Watch = Callable[[Sequence[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Tour:
    """What the tour found; a part that was left out is None or empty."""

    command: str
    date: str
    machine: Machine
    devices: int
    chip_text: str | None = None
    collectives: Bench | None = None
    rates: MeasuredRates | None = None
    times: tuple[TimedStep, ...] = ()
    programs: tuple[Compared, ...] = ()
    left_out: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    losses: tuple[AgainstCpu, ...] = ()

    @property
    def median_error(self) -> float:
        return median(abs(step.error) for step in self.times)

    @property
    def far_off(self) -> tuple[TimedStep, ...]:
        """Predicted times that are off by more than a fifth."""
        return tuple(step for step in self.times if abs(step.error) > FAR)

    @property
    def failures(self) -> tuple[str, ...]:
        """What failed, or has other numbers than one CPU."""
        programs = (
            f"{entry.run}: {entry.failure or entry.result.failure or entry.result.verdict}"
            for entry in self.programs
            if entry.has_failed
        )
        trainings = (f"{entry.trained.training.name} {failure}" for entry in self.losses for failure in entry.failures)
        return (*self.failed, *programs, *trainings)

    def json_object(self) -> TourJson:
        return TourJson(
            schema=SCHEMA,
            command=self.command,
            date=self.date,
            machine=self.machine,
            devices=self.devices,
            chip_text=self.chip_text,
            left_out=self.left_out,
            failures=self.failures,
            collectives=self.collectives.json_object() if self.collectives else None,
            rates=self.rates,
            times=tuple(step.json_object() for step in self.times),
            programs=tuple(entry.json_object() for entry in self.programs),
            losses=tuple(entry.json_object() for entry in self.losses),
        )


@dataclass(frozen=True)
class TourJson:
    """What `lab tour` measured; a part that was left out is null or empty."""

    schema: Literal["sharding-lab/tour/1"]
    command: str
    date: str
    machine: Machine
    devices: int
    chip_text: str | None
    left_out: tuple[str, ...]
    failures: tuple[str, ...]
    collectives: BenchJson | None
    rates: MeasuredRates | None
    times: tuple[TimedStepJson, ...]
    programs: tuple[ComparedJson, ...]
    losses: tuple[AgainstCpuJson, ...]


def tour(parts: Sequence[str], command: str, watch: Watch = iter) -> Iterator[Tour]:
    """Measures on the attached devices; gives what is known after each part, since a lent machine may be taken back.

    Raises:
      UsageError: an unknown part, or no GPU.
    """
    for part in parts:
        if part not in PARTS:
            raise no_such("part", part, PARTS, where=" of the tour")
    target = parse_target("attached")
    experiments, trainings, _ = suite.parted(suite.load((), [target, parse_target("cpu:1")]))
    first = jax.devices()[0]
    if first.platform != "gpu":
        raise UsageError(
            f"found {len(jax.devices())} x {first.device_kind}; the tour needs GPUs (if CUDA is not installed, "
            "install jax[cuda13])"
        )
    date = datetime.now(UTC).isoformat(timespec="seconds")
    found = Tour(command, date, machine(first), len(jax.devices()), own_chip_text())
    for part in (part for part in PARTS if part in parts):
        match part:
            case "collectives":
                found = _collectives(found, target, watch)
            case "times":
                found = _timed(found, target, watch)
            case "programs":
                found = _compared(found, experiments, target, watch)
            case "losses":
                found = _trained(found, trainings, target, watch)
        yield replace(found, machine=machine(first))


def _collectives(found: Tour, target: Target, watch: Watch) -> Tour:
    return (
        replace(found, collectives=bench(target, None, (), (), LINK_SIZES, found.command, watch))
        if found.devices > 1
        else found
    )


def _timed(found: Tour, target: Target, watch: Watch) -> Tour:
    mesh = make_mesh(target, Axes.of({"devices": found.devices}))
    try:
        rates = own.rates(mesh, watch)
    except UsageError as refusal:
        return replace(found, failed=(*found.failed, f"times: {refusal}"))
    steps, failed = timed_steps(target, _ahead(found), found.chip_text, rates, watch)
    return replace(found, rates=rates, times=tuple(steps), failed=found.failed + tuple(failed))


def _ahead(found: Tour) -> Target | None:
    """These devices as a target to compile for ahead of time; None for a card that the table of hardware lacks."""
    return parse_target(f"gpu:{found.machine.chip}:1x{found.devices}") if found.machine.chip else None


def _compared(found: Tour, experiments: Sequence[Any], target: Target, watch: Watch) -> Tour:
    """Experiments that need another number of devices, or more memory, are named, not run."""
    ahead = _ahead(found)
    if ahead is None:
        return replace(
            found,
            left_out=(
                *found.left_out,
                f"programs: the table of hardware has no {found.machine.card} to compile for ahead of time",
            ),
        )
    room = jax.devices()[0].memory_stats()["bytes_limit"]
    refusals = {run: refusal(run, room) for run in suite.runs(experiments, [target])}
    fits = [run for run, reason in refusals.items() if reason is None]
    left_out = tuple(f"{run}: {reason}" for run, reason in refusals.items() if reason)
    return replace(
        found, programs=tuple(compared(fits, ahead, found.chip_text, watch)), left_out=found.left_out + left_out
    )


def _trained(found: Tour, trainings: Sequence[Any], target: Target, watch: Watch) -> Tour:
    against, left_out = losses(trainings, target, watch)
    return replace(found, losses=against, left_out=found.left_out + left_out)


def refusal(run: Run[Experiment], room: int) -> str | None:
    """Why it does not run on these devices, of `room` bytes each."""
    experiment = run.experiment
    try:
        axes = experiment.axes(run.target)
        experiment.predict(experiment.parameters, axes)
    except UsageError as reason:
        return str(reason)
    held = sum(experiment.memory(run.style, experiment.parameters, axes, room).values()) if experiment.memory else 0
    return f"a device needs {bytes_text(held)} and has {bytes_text(room)}" if held > room else None
