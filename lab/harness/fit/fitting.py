"""Whether an experiment's step fits its device's memory, and which changes make it fit."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from typing import Any

from lab.core.room import Room
from lab.harness.experiment import Experiment, Run
from lab.harness.fit import search
from lab.harness.fit.cost import Cost, cost
from lab.harness.fit.levers import LACKING, Lever, changed, levers
from lab.harness.fit.schemas import SCHEMA, ChangeJson, CompiledJson, CostJson, FitJson, TryJson
from lab.harness.fit.search import Changes, Compiled, Try
from lab.harness.result import Result
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.programs.memory.terms import Terms, label

Compile = Callable[[Any, Axes, str], Result]
"""(sizes, mesh, what is tried, in words) to the run of the step."""


@dataclass(frozen=True)
class Fitting:
    """What was tried to make a step fit.

    Attributes:
      run: the step as asked, with its sizes; on a mesh of its own where one was chosen.
      axes: the mesh of the step as asked.
      settings: those that made its sizes.
      tries: as asked, then with changes, in the order in which they came up; the last fits, or none does.
      lacking: why a lever has no change.
      held: by theory's terms, of the compiled try of the least peak, or of the least predicted one where XLA refused
        all; empty where theory says nothing.
    """

    run: Run[Experiment]
    axes: Axes
    settings: Mapping[str, str]
    room: Room
    tries: tuple[Try, ...]
    lacking: Mapping[Lever, str]
    held: Terms

    @property
    def pool(self) -> int:
        return self.room.usable_bytes

    @property
    def asked(self) -> Try:
        return self.tries[0]

    @property
    def answer(self) -> Try | None:
        """The cheapest that fits."""
        return self.tries[-1] if self.tries[-1].fits(self.pool) else None

    @property
    def smallest(self) -> Try | None:
        """Of the compiled tries."""
        return min((one for one in self.tries if one.peak), key=lambda one: one.peak or 0, default=None)

    @property
    def least_predicted(self) -> Try:
        """As asked where theory says nothing."""
        return min((one for one in self.tries if one.predicted), key=lambda one: one.predicted or 0, default=self.asked)

    @cached_property
    def largest_terms(self) -> list[tuple[str, int]]:
        """By label, the largest first."""
        terms = sorted(self.held.items(), key=lambda each: -each[1])
        return [(label(term), size) for term, size in terms if size]

    def mesh(self, one: Try) -> Axes:
        return changed(self.run.experiment.parameters, self.axes, one.changes)[1]

    def command(self, one: Try) -> str:
        """That runs a try."""
        experiment, target, style, chosen = self.run
        mesh = self.mesh(one)
        asked = ["lab", "run", experiment.name, "--target", str(target), "--style", style]
        settings = dict(self.settings) | dict(setting for change in one.changes for setting in change.settings)
        meshes = ["--mesh", str(mesh)] if chosen or mesh != self.axes else []
        return shlex.join([*asked, *meshes, *(part for pair in settings.items() for part in ("--set", "=".join(pair)))])

    def json_object(self) -> FitJson:
        experiment, target, style, _ = self.run
        smallest = self.smallest
        return FitJson(
            SCHEMA,
            experiment.name,
            style,
            str(target),
            self.axes.shape,
            asdict(experiment.parameters),
            device_bytes=self.room.device_bytes,
            pool_bytes=self.pool,
            fits=self.answer is not None,
            command=self.command(self.answer) if self.answer else None,
            missing_bytes=smallest.peak - self.pool if smallest and smallest.peak and not self.answer else None,
            tries=tuple(map(self._try_json, self.tries)),
            lacking={str(lever): why for lever, why in self.lacking.items()},
            largest_terms=dict(self.largest_terms),
        )

    def _try_json(self, one: Try) -> TryJson:
        return TryJson(
            changes=tuple(ChangeJson(each.lever, dict(each.settings)) for each in one.changes),
            mesh=self.mesh(one).shape,
            extra=CostJson(**vars(one.extra)),
            predicted_peak=one.predicted,
            compiled=CompiledJson(**vars(one.compiled)) if one.compiled else None,
            fits=one.fits(self.pool),
        )


def fit(run: Run[Experiment], settings: Mapping[str, str], compile: Compile) -> Fitting:
    """Tries changes by compiling, the cheapest first.

    Args:
      run: with the sizes that `settings` made.
    Raises:
      UsageError: the target names no chip, the sizes cannot be used, or XLA tells no peak of this program.
    """
    experiment, target, style, chosen = run
    room = Room.of(target)
    if room is None:
        raise UsageError(f"target {target}: names no chip whose memory is known; name one, as in --target gpu:h100:2x8")
    parameters, axes = experiment.parameters, chosen or experiment.axes(target)

    @cache
    def price(changes: Changes) -> Cost | None:
        try:
            sized, mesh = changed(parameters, axes, changes)
            return cost(sized, mesh, experiment.predict(sized, mesh), experiment.host_bytes(sized, mesh), target)
        except UsageError:
            if not changes:
                raise
            return None

    @cache
    def held(changes: Changes) -> Terms:
        sized, mesh = changed(parameters, axes, changes)
        return experiment.memory(style, sized, mesh, target.memory_bytes) if experiment.memory else {}

    def compiled(changes: Changes) -> Compiled:
        try:
            return _compiled(compile(*changed(parameters, axes, changes), words(changes)))
        except UsageError as refusal:
            if not changes:
                raise
            return Compiled(None, failure=str(refusal))

    def peak(changes: Changes) -> int | None:
        return sum(held(changes).values()) or None

    tries: tuple[Try, ...] = (Try((), Cost(), peak(()), compiled(())),)
    lacking: dict[Lever, str] = {}
    if not tries[0].fits(room.usable_bytes):
        every = levers(experiment, parameters, axes)
        found = {lever: tuple(one for one in some if price((one,)) is not None) for lever, some in every.items()}
        lacking = {lever: LACKING[lever] for lever, some in found.items() if not some}
        tries = search.search(tries[0], found, price, peak, compiled, room.usable_bytes)
    fitting = Fitting(run, axes, settings, room, tries, lacking, {})
    return replace(fitting, held=held((fitting.smallest or fitting.least_predicted).changes))


def words(changes: Changes) -> str:
    return ", ".join(map(str, changes)) or "as asked"


def _compiled(result: Result) -> Compiled:
    """Raises UsageError where XLA compiled the step and tells no peak."""
    measured = result.measured
    if measured is None:
        return Compiled(None, verdict=result.verdict, failure=result.failure)
    if measured.memory is None or measured.memory.peak is None:
        raise UsageError(
            f"{result.experiment} on {result.target}: XLA tells no peak of its memory, expected one to compare"
        )
    found = Compiled(
        measured.memory.peak,
        measured.flops,
        measured.totals().wire_bytes,
        result.verdict,
        result.failure,
        sum(measured.flops_rematerialized.values()),
    )
    if (composition := result.composition) is None or not composition.sent_by_stages:
        return found
    computed = composition.computed.compiled_by_stages if composition.computed else ()
    flops = int(max(computed)) if computed else None
    return replace(found, flops=flops, wire_bytes=max(composition.sent_by_stages), flops_rematerialized=0)
