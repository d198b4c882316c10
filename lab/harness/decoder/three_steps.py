"""Three steps of a compiled training step against the reference's, at sizes that run in no time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from lab.core.known import known
from lab.harness.experiment import Experiment, TrainingStep
from lab.harness.result import Numerics, WrongResults
from lab.meshes.axes import Axes
from lab.meshes.processes import fetched
from lab.programs.models import decoder
from lab.programs.models.decoder import Parameter, Parameters
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.program import TrainState, each
from lab.reference import training
from lab.reference.adamw import B1, B2, is_bias
from lab.reference.layers import Array
from lab.reference.training import Batches, TrainingSteps

TOLERANCE = 1e-5
"""Of a loss, of a norm, of the largest entry of an array of moments: 84 times float32's rounding of one number. Sums of
the 512 tokens of a batch, in the orders of all layouts, come to a third of it."""
ROUNDING = 4 * float(np.finfo(np.float32).eps)
"""Of a weight, relative to the largest of its array: three updates of one rounding each, and the first weights."""
FIRST_NORM = 0.6
"""Of the gradients of the first step, about; the second's are three times as large, and clipped."""
PAST = 1e-3
"""Of the gradients of the step before, about; a gradient's entry is about 2e-3."""
ABOUT = dict.fromkeys(decoder.NORMS, (1.0, 0.1)) | {"bias": (0.0, 0.01)}
"""By their last dim, weights that are about another number than 0, or otherwise spread."""
# Half the time: the machine code is as XLA's partitioner and simplifier left it.
FAST: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}


@dataclass(frozen=True)
class Compared:
    """One number or array after three steps: how far it may be from the reference's is `TOLERANCE` times `unit`."""

    what: str
    found: Any
    expected: Any
    unit: Any

    @property
    def error(self) -> float:
        """Relative to the unit; infinite where something is no number."""
        return float(np.max(np.nan_to_num(np.abs(self.found - self.expected) / self.unit, nan=np.inf)))

    def __str__(self) -> str:
        away = np.abs(self.found - self.expected) / self.unit
        at = np.unravel_index(np.argmax(np.nan_to_num(away, nan=np.inf)), np.shape(away))
        here = (np.broadcast_to(x, np.shape(away))[at] for x in (self.found, self.expected, self.unit))
        found, expected, unit = map(float, here)
        place = str([int(i) for i in at]) if at else ""
        return f"{self.what}{place} is {found:.7g}, expected {expected:.7g} within {TOLERANCE * unit:.1e}"


def compare_steps(experiment: Experiment, style: str, mesh: Mesh, shape: DecoderShape) -> Numerics:
    """Runs three steps of an experiment's program on `mesh`, and compares with the reference.

    Raises:
      WrongResults: a loss, a norm, a weight or a moment differs; it says which.
    """
    step, axes = known(experiment.step), Axes.of(mesh.shape)
    parts = step.parts(shape, axes)
    expected = reference_steps(of_the_model(shape), tuple(step.order(shape, axes)) if parts > 1 else (), parts)
    state, metrics = _run(experiment, style, mesh, shape, expected.batches)
    in_model_order = partial(step.in_model_order, shape, axes)
    state = state._replace(
        master=in_model_order(state.master),
        moments=_moments(state.moments, in_model_order),
        weights=None if state.weights is None else in_model_order(state.weights),
    )
    compared = [*_of_metrics(metrics, expected), *_of_state(state, expected)]
    wrong = [one for one in compared if not one.error <= TOLERANCE]
    if wrong:
        # The first that came to be wrong, and the one that is most so.
        worst = dict.fromkeys(map(str, (wrong[0], max(wrong, key=lambda one: one.error))))
        counts = f"{len(wrong)} of {len(compared)} numbers and arrays differ"
        raise WrongResults(f"3 steps do not equal those of one device: {'; '.join(worst)}; {counts}, at {shape}")
    what = ("losses", "gradient norms", "parameters", "moments", *(["weights in use"] if state.weights else []))
    return Numerics(max(one.error for one in compared), TOLERANCE, steps=len(metrics), compared=what)


def _run(
    experiment: Experiment, style: str, mesh: Mesh, shape: DecoderShape, batches: Batches
) -> tuple[TrainState, list[tuple[float, float]]]:
    """The state after these batches, and the loss and norm of each step."""
    step, axes = known(experiment.step), Axes.of(mesh.shape)
    function, shapes = experiment.build(style, shape, mesh)
    options = FAST if mesh.devices.flat[0].platform == "cpu" else None
    with jax.default_matmul_precision("highest"):
        compiled = function.lower(*shapes).compile(compiler_options=options)
    shardings = jax.tree.map(lambda x: x.sharding, shapes)
    # A step takes its state over: no two arrays of it may lie in one buffer.
    state = jax.device_put(_start(step, shape, axes), shardings[0], may_alias=False)
    order, found = np.asarray(step.order(shape, axes)), []
    for tokens_BS, targets_BS in batches:
        state, metrics = compiled(state, *jax.device_put((tokens_BS[:, order], targets_BS[:, order]), shardings[1:]))
        # Awaited here: fake devices share the threads of one pool, and steps in flight may wait for each other.
        found.append((float(metrics.loss), float(metrics.gradient_norm)))
    return fetched(state), found


def _start(step: TrainingStep, shape: DecoderShape, axes: Axes) -> Any:
    """What the first step takes, with the moments of `past_gradients`."""
    model = of_the_model(shape)
    state = step.start(shape, axes, starting_weights(model))
    past = step.start(shape, axes, past_gradients(model)).master
    adam, *others = state.moments
    mu = jax.tree.map(lambda g: (1 - B1) * g, past)
    nu = jax.tree.map(lambda g: (1 - B2) * g * g, past)
    return state._replace(moments=(adam._replace(mu=mu, nu=nu, count=adam.count + 1), *others))


def _of_metrics(metrics: list[tuple[float, float]], expected: TrainingSteps) -> Iterator[Compared]:
    for number, (loss, norm) in enumerate(metrics):
        for what, found, wanted in (
            ("loss", loss, expected.losses[number]),
            ("gradient norm", norm, expected.norms[number]),
        ):
            yield Compared(f"the {what} of step {number + 1}", found, wanted, abs(wanted))


def _of_state(state: TrainState, expected: TrainingSteps) -> Iterator[Compared]:
    yield Compared("the number of updates", state.moments.count, len(expected.history), 1)
    first, second = by_name(state.moments.mu), by_name(state.moments.nu)
    for what, found, wanted in (("first", first, expected.first_moment), ("second", second, expected.second_moment)):
        for name, x in found.items():
            moment = wanted(name)
            yield Compared(f"the {what} moment of {name}", x, moment, _largest(moment))
    for what, weights in (("", state.master), (" in use", state.weights)):
        for name, x in by_name(weights or {}).items():
            yield Compared(f"{name}{what}", x, expected.weights[name], _unit(name, expected))


def _unit(name: str, expected: TrainingSteps) -> Array:
    """Of a weight: what float32 rounds, and what gradients within their tolerance can move."""
    moved = 0.0 if is_bias(name) else expected.movable(name, TOLERANCE)
    return np.asarray((ROUNDING * _largest(expected.weights[name]) + moved) / TOLERANCE)


def _largest(x: Array) -> float:
    # Of nothing but zeros, as of a bias without gradients, everything else is off.
    return float(np.abs(x).max()) or 1e-30


def _moments(moments: Any, in_model_order: Any) -> Any:
    """Adam's own part of an optimizer's state."""
    adam = moments[0]
    return adam._replace(mu=in_model_order(adam.mu), nu=in_model_order(adam.nu))


def by_name(weights: Parameters | Mapping[str, Any]) -> dict[str, Array]:
    """`layers/query` and the like, as the reference has them."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/").removesuffix("/value"): np.asarray(x, np.float64)
        for path, x in jax.tree.leaves_with_path(weights)
    }


@cache
def reference_steps(shape: DecoderShape, order: tuple[int, ...] = (), parts: int = 1) -> TrainingSteps:
    """Args: order, parts: of the tokens of a sequence, where parts of it choose their experts by themselves."""
    parts_Ps = np.reshape(order, (parts, -1)) if order else None
    return training.train(by_name(starting_weights(shape)), by_name(past_gradients(shape)), shape, parts_Ps)


def of_the_model(shape: DecoderShape) -> DecoderShape:
    """What numbers depend on; not how a layout comes to them."""
    plain = DecoderShape(**{each.name: getattr(shape, each.name) for each in fields(DecoderShape)})
    return replace(plain, remat="none", accumulation=1, dispatch="padded" if shape.is_dropless else "slots")


@cache
def starting_weights(shape: DecoderShape) -> Parameters:
    """Drawn so that no two entries are alike, those of norms about 1 and of biases about 0; the last norm such that the
    first gradients are not clipped."""
    draw = np.random.default_rng(0)

    def drawn(w: Parameter) -> np.ndarray:
        normal = draw.standard_normal(w.shape)
        about_D, scale = ABOUT.get(w.dims[-1], (0.0, shape.embed**-0.5))
        return (about_D + scale * normal).astype(np.float32)

    weights = each(decoder.weights(shape), drawn)
    share = np.float32(FIRST_NORM / training.first_norm(by_name(weights), shape))
    return each(weights, lambda w: (share if w.dims == ("norm",) else np.float32(1)) * w.get_value())


@cache
def past_gradients(shape: DecoderShape) -> Parameters:
    """Of a step before the first, all of one size, so that Adam divides by no second moment near zero: there it would
    make of what float32 rounds in a gradient a step of any size, at the first step up to the learning rate."""
    draw = np.random.default_rng(1)

    def drawn(w: Parameter) -> np.ndarray:
        sizes = draw.uniform(PAST, 2 * PAST, w.shape)
        return (sizes * draw.choice((-1.0, 1.0), w.shape)).astype(np.float32)

    return each(decoder.weights(shape), drawn)
