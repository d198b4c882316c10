"""One training, the same under every layout and style: the loss curves must lie on each other, and on that of one
device."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from msgspec import UNSET

from lab.compile.inspection import read_program
from lab.core.clock import timed
from lab.core.known import known
from lab.harness import registry
from lab.harness.claim import Claim
from lab.harness.decoder import text
from lab.harness.decoder.reference_run import (
    Batches,
    ReferenceRun,
    RoutingTie,
    losses,
    losses_and_state,
    relative_error,
    replayed_with_same_routing,
    train_reference,
)
from lab.harness.decoder.training_shape import TrainingShape
from lab.harness.experiment import Experiment, Run
from lab.harness.result import settlement_json
from lab.harness.run import RUNNABLE, compiled_step, context, ineffective_sharding, not_donated
from lab.harness.schemas import CurveJson, NumericsJson, OneDeviceJson, RoutingTieJson, RunResultJson, SecondsJson
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError, no_such, one_line
from lab.meshes.targets import Target
from lab.programs.models import decoder
from lab.settle import Settlement, Verdict, settle


@dataclass(frozen=True)
class WarmUp:
    """The first steps of a training, by another experiment's step of the same mesh and parameters.

    Attributes:
      share: of all steps.
      go_on: (parameters, axes, its last state) to the state that the layout's own step takes.
    """

    experiment: Experiment
    share: float
    go_on: Callable[[Any, Axes, Any], Any]


@dataclass(frozen=True)
class LayoutUnderTraining(Experiment):
    """An experiment on a step as one layout of a training.

    Attributes:
      sized: the training's parameters to the experiment's own.
      warm_up: None: its own step is that of all steps.
    """

    sized: Callable[[TrainingShape], Any] = lambda shape: shape
    warm_up: WarmUp | None = None


def trainee(name: str, experiment: Experiment, **how: Any) -> LayoutUnderTraining:
    """The experiment as a layout of this name, and how it is loaded where that is its own."""
    return LayoutUnderTraining(
        **{each.name: getattr(experiment, each.name) for each in fields(experiment)} | {"name": name} | how
    )


@dataclass(frozen=True)
class Training:
    """Experiments on a decoder's step whose layouts train the same model.

    Attributes:
      name: of its module in `experiments`.
      chapter: of the book.
      layouts: one or more, named after what they are.
      claims: what the curves decide.
      reference: (parameters, batches) to what the curves are held against.
    """

    name: str
    chapter: int
    question: str
    parameters: TrainingShape
    layouts: tuple[LayoutUnderTraining, ...]
    claims: Callable[[TrainingResult], tuple[Claim, ...]]
    targets: tuple[str, ...] = ("cpu:8",)
    reference: Callable[[TrainingShape, Batches], ReferenceRun] = train_reference

    def chosen(self, shape: TrainingShape) -> tuple[LayoutUnderTraining, ...]:
        """Those that the parameters ask for.

        Raises:
          UsageError: there is no such layout.
        """
        if shape.layout and shape.layout not in (names := [layout.name for layout in self.layouts]):
            raise no_such("layout", shape.layout, names)
        return tuple(layout for layout in self.layouts if shape.layout in ("", layout.name))

    @property
    def styles(self) -> tuple[str, ...]:
        """Those that some layout has."""
        return tuple(dict.fromkeys(style for layout in self.layouts for style in layout.styles))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its name, as functions are: its layouts are made of functions without one."""
        return registry.load, (self.name,)


@dataclass(frozen=True)
class Curve:
    """A training under one layout in one style.

    Attributes:
      losses: none where the step was not run.
      expected: one device's losses where it chose at `ties` as this layout did; None: those of the device alone. See
        `replayed_with_same_routing`.
      settlement: of the step's ledger with what theory predicts; None where it was not compiled.
      failure: where the curve leaves that of one device, what XLA refused, or which declared sharding did not happen,
        in a line.
    """

    layout: str
    style: str
    mesh: dict[str, int]
    losses: np.ndarray = field(default_factory=lambda: np.empty(0))
    expected: ReferenceRun | None = None
    ties: tuple[RoutingTie, ...] = ()
    worst_relative_error: float = np.inf
    seconds: Mapping[str, float] = field(default_factory=dict)
    settlement: Settlement | None = None
    failure: str | None = None

    @property
    def verdict(self) -> Verdict:
        """Of the ledger."""
        return self.settlement.verdict if self.settlement else Verdict.FAILED


@dataclass(frozen=True)
class TrainingResult:
    """What a training came to on one target.

    Attributes:
      text_sha256: of what it learned from, which each release of Python has of its own.
    """

    training: Training
    target: str
    parameters: TrainingShape
    reference: ReferenceRun
    curves: tuple[Curve, ...]
    guessing: float
    seconds: float
    text_sha256: str | None = None

    @property
    def start(self) -> float:
        return float(self.reference.losses[0])

    @property
    def end(self) -> float:
        """Mean loss of the last tenth of the steps."""
        return float(self.reference.losses[-max(1, self.parameters.steps // 10) :].mean())

    @property
    def failures(self) -> tuple[str, ...]:
        level = (
            ()
            if self.end < self.start
            else (
                f"the loss does not fall: {self.start:.3f} at first, {self.end:.3f} over the last tenth of the steps",
            )
        )
        return level + tuple(f"{curve.layout} {curve.style}: {curve.failure}" for curve in self.curves if curve.failure)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Layouts that have none of the styles asked for."""
        ran = {curve.layout for curve in self.curves}
        asked = self.training.chosen(self.parameters)
        return tuple(dict.fromkeys(layout.name for layout in asked if layout.name not in ran))

    @property
    def worst_relative_error(self) -> float:
        return max(curve.worst_relative_error for curve in self.curves)

    def is_on_curve(self, curve: Curve) -> bool:
        """Its losses are one device's, but for what ties decide."""
        return curve.losses.size > 0 and (curve.expected or self.reference).holds(curve.losses)

    def gap(self, curve: Curve) -> float:
        """From one device's losses, over the last tenth of the steps; above 0 where it learned less."""
        return float(curve.losses[-max(1, self.parameters.steps // 10) :].mean()) - self.end

    @property
    def is_one_curve(self) -> bool:
        return all(map(self.is_on_curve, self.curves))

    @property
    def evidence(self) -> str:
        """How close the curves are."""
        tied = sum(bool(curve.ties) for curve in self.curves)
        return (
            f"{len(self.curves)} trainings of {self.parameters.steps} steps, the loss from {self.start:.3f} to "
            f"{self.end:.3f}, differ from one device's by {self.worst_relative_error:.1e} at most; reordering the "
            f"sequences of each batch changes it by {self.reference.moved.max():.1e}"
            + (f"; for {tied} of them one device was run again with the same choice of experts at ties" if tied else "")
        )

    @property
    def verdict(self) -> Verdict:
        """The worst of the ledgers; failed where a curve is."""
        return (
            Verdict.FAILED if self.failures else max((curve.verdict for curve in self.curves), key=list(Verdict).index)
        )

    @property
    def is_fine(self) -> bool:
        return self.verdict not in (Verdict.FAILED, Verdict.REFUTED) and not any(
            claim.is_undisputed_refutation for claim in self.claims
        )

    @property
    def claims(self) -> tuple[Claim, ...]:
        """One device decides none."""
        return self.training.claims(self) if any(prod(curve.mesh.values()) > 1 for curve in self.curves) else ()

    def json_object(self) -> RunResultJson:
        return RunResultJson(
            experiment=self.training.name,
            style=None,
            target=self.target,
            mesh=None,
            parameters=asdict(self.parameters),
            verdict=self.verdict,
            failure="; ".join(self.failures) or None,
            **vars(settlement_json(None)),
            claims=self.claims,
            numerics=NumericsJson(number(self.worst_relative_error), self.reference.tolerance),
            memory=None,
            one_device=OneDeviceJson(
                losses=numbers(self.reference.losses),
                moved_by_order=numbers(self.reference.moved),
                tolerances=numbers(self.reference.tolerances),
            ),
            guessing_by_frequency=self.guessing,
            text_sha256=self.text_sha256,
            curves=tuple(_curve_json(curve, self.is_on_curve(curve)) for curve in self.curves),
            left_out=self.left_out,
            seconds=SecondsJson(self.seconds),
        )


def _curve_json(curve: Curve, is_on_curve: bool) -> CurveJson:
    return CurveJson(
        layout=curve.layout,
        style=curve.style,
        mesh=curve.mesh,
        verdict=curve.verdict,
        failure=curve.failure,
        **vars(settlement_json(curve.settlement)),
        losses=numbers(curve.losses),
        ties=tuple(RoutingTieJson(tie.step, tie.size) for tie in curve.ties),
        worst_relative_error=number(curve.worst_relative_error),
        seconds=curve.seconds,
        is_on_curve=is_on_curve,
        expected_losses=numbers(curve.expected.losses) if curve.expected else UNSET,
    )


def train(
    training: Training, target: Target, runs: Iterable[Run[LayoutUnderTraining]], shape: TrainingShape
) -> TrainingResult:
    """Trains on one device, then as each run says: a layout in a style.

    Raises:
      UsageError: the target only compiles, or a dim does not split over its devices.
    """
    if target.platform not in RUNNABLE:
        raise UsageError(f"{training.name} runs its programs, and {target} can only compile; use cpu:8 or attached")
    start, source = time.perf_counter(), text.standard_library()
    batches = text.batches(source, shape.steps, shape.batch, shape.length)
    with jax.default_matmul_precision("highest"):
        reference = training.reference(shape, batches)
        curves = tuple(curve(run, shape, batches, reference) for run in runs)
    seconds = time.perf_counter() - start
    return TrainingResult(
        training,
        str(target),
        shape,
        reference,
        curves,
        text.guessing(source),
        seconds,
        hashlib.sha256(source.tobytes()).hexdigest(),
    )


def curve(run: Run[LayoutUnderTraining], shape: TrainingShape, batches: Batches, reference: ReferenceRun) -> Curve:
    """Compiles one layout's step in one style, settles its ledger, and trains with it."""
    layout, target, style = run.experiment, run.target, run.style
    axes, own = layout.axes(target), layout.sized(shape)
    mesh, predicted = make_mesh(target, axes), layout.predict(own, axes)
    nothing = Curve(layout.name, style, axes.shape)
    try:
        compiled, compile_s = timed(lambda: compiled_step(layout, style, own, mesh))
        in_order = _in_order(batches, known(layout.step).order(own, axes))
        first, state = _warmed_up(layout, style, own, mesh, in_order)
        state = jax.device_put(state, compiled.input_shardings[0][0])
        rest, steps_s = timed(lambda: losses(compiled, state, in_order[len(first) :]))
        found = np.concatenate([first, rest])
    except jax.errors.JaxRuntimeError as refusal:
        return replace(nothing, failure=one_line(refusal))
    program = read_program(compiled, (), mesh, target, source=layout.name)
    settlement = settle(predicted, program.ledger, context(target, style, axes, mesh))
    expected, ties = replayed_with_same_routing(found, reference, shape, batches)
    failure = (
        expected.failure(found)
        or ineffective_sharding(layout, own, mesh, compiled, settlement)
        or not_donated(layout, own, mesh, program)
    )
    worst, seconds = float(relative_error(found, expected.losses).max()), {"compile": compile_s, "steps": steps_s}
    return replace(
        nothing,
        losses=found,
        expected=expected,
        ties=ties,
        worst_relative_error=worst,
        seconds=seconds,
        settlement=settlement,
        failure=failure,
    )


def _warmed_up(
    layout: LayoutUnderTraining, style: str, own: Any, mesh: jax.sharding.Mesh, batches: Batches
) -> tuple[np.ndarray, Any]:
    """The losses of the steps before a layout's own first one, and the state that this takes."""
    axes = Axes.of(mesh.shape)
    if layout.warm_up is None:
        return np.empty(0), _start(layout, own, axes)
    before = layout.warm_up.experiment
    compiled = compiled_step(before, style, own, mesh)
    state = jax.device_put(_start(before, own, axes), compiled.input_shardings[0][0])
    steps = max(1, round(layout.warm_up.share * len(batches)))
    found, state = losses_and_state(compiled, state, batches[:steps])
    return found, layout.warm_up.go_on(own, axes, state)


def _start(layout: Experiment, own: Any, axes: Axes) -> Any:
    state = known(layout.step).start(own, axes, decoder.initial(own))
    # In float32 the weights in use are the master weights at first, and a step that is given one buffer twice cannot
    # reuse it.
    return jax.tree.map(jnp.copy, state)


def _in_order(batches: Batches, order: Sequence[int]) -> Batches:
    at_S = np.asarray(order)
    return [(tokens_BS[:, at_S], targets_BS[:, at_S]) for tokens_BS, targets_BS in batches]


def numbers(values: np.ndarray) -> tuple[float | None, ...]:
    return tuple(number(value) for value in values)


def number(value: float) -> float | None:
    """As JSON has them: what is not finite is null."""
    return float(value) if np.isfinite(value) else None
