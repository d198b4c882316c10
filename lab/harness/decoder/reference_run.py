"""One device's training, on which the curve of every layout must lie; and where a choice of experts hangs on rounding,
the one that chose as the layout did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from lab.harness.decoder.nudged import MARGIN as MARGIN_OF_BAND
from lab.harness.decoder.nudged import NUDGE, Band
from lab.harness.decoder.nudged import nudged as nudged_weights
from lab.harness.decoder.step import on_one_device
from lab.harness.decoder.training_shape import TrainingShape
from lab.programs.models import decoder
from lab.programs.models.decoder import Parameter, Parameters
from lab.programs.strategies.program import Metrics, TrainState
from lab.programs.strategies.update import clipping, is_weight, optimizer, updated

EPS = float(np.finfo(np.float32).eps)
# A curve may differ by ten times what other orders of the sums do, and a loss by at least its own rounding; by no more
# than an eye would see.
MARGIN, LEAST_MOVE, LARGEST_TOLERANCE = 10, EPS, 1e-2
ORDERS = 2
NUDGED = 4
Batches = Sequence[tuple[np.ndarray, np.ndarray]]


class RouterPerturbation(NamedTuple):
    """A change of the routers' weights for one step, relative to them: `size` times normal numbers."""

    size: float = 0.0
    seed: int = 0


STILL = RouterPerturbation()
# The smallest first, up to what rounding has been seen to move. Another order of the sequences moves a logit of
# ch18_training, which is about 1, by 2.4e-7 in the mean square (none of 8192 by more than 1.5e-6), at step 1 as at step
# 99. But Adam divides the first gradient by its size: that of one weight of the byte "_" is 2e-8, beside 9e-3 in its
# row, and four GPUs rounded it so that the weight came to lie 2e-5 off, and at step 48 two logits of a "_" 5e-6.
NUDGES = tuple(
    RouterPerturbation(sign * EPS * 4.0**power, seed) for power in range(-1, 4) for seed in range(4) for sign in (1, -1)
)
# What a choice changes may show late: of 14 ties made at the size of ch18_training one showed two steps later, all
# others at once.
LOOK_BACK, LOOK_AHEAD = 8, 8


@dataclass(frozen=True)
class RoutingTie:
    """A step at which a relative change by `size` of the routers' weights, no more than float32's rounding does to
    logits, tips a choice of experts."""

    step: int
    size: float

    def __str__(self) -> str:
        return f"at step {self.step} a relative change of the router's weights by {self.size:.0e} changes the routing"


@dataclass(frozen=True)
class ReferenceRun:
    """One device's training: its losses, and how far they moved, relatively, when each batch held its sequences in
    another order.

    Nothing but the order of sums differs then, so this is what float32 allows two layouts to differ by.
    """

    losses: np.ndarray
    moved: np.ndarray

    @property
    def tolerances(self) -> np.ndarray:
        """Relative error of each step up to which a curve is the same."""
        return np.minimum(MARGIN * np.maximum(LEAST_MOVE, np.maximum.accumulate(self.moved)), LARGEST_TOLERANCE)

    @property
    def tolerance(self) -> float:
        """The largest."""
        return float(self.tolerances.max())

    def holds(self, found: np.ndarray) -> bool:
        """Whether a curve is this one."""
        return first_divergence(found, self) is None

    def failure(self, found: np.ndarray) -> str | None:
        """What is wrong with a curve, in a sentence; None where nothing is."""
        return first_divergence(found, self)

    @property
    def noise(self) -> str:
        """What moved its losses."""
        return "float32: other orders of the sequences"


@dataclass(frozen=True)
class NudgedRun(ReferenceRun):
    """One device's training beside nudged ones, for curves of steps that compute something else on purpose."""

    band: Band

    @property
    def tolerances(self) -> np.ndarray:
        """Of each loss what the means of a tenth of the steps may be off."""
        return MARGIN_OF_BAND * self.band.width / self.losses

    def holds(self, found: np.ndarray) -> bool:
        return self.band.holds(found)

    def failure(self, found: np.ndarray) -> str | None:
        """It is none to leave the band."""
        is_lost = ~np.isfinite(found)
        return f"the loss is no number at step {int(is_lost.argmax())}" if is_lost.any() else None

    @property
    def noise(self) -> str:
        return f"{len(self.band.nudged)} other first weights, nudged by {NUDGE:.1e} of their size,"


def relative_error(found: np.ndarray, expected: np.ndarray | float) -> np.ndarray:
    """Of each loss; infinite where it is no number."""
    return np.nan_to_num(np.abs(found / expected - 1), nan=np.inf)


def first_divergence(found: np.ndarray, reference: ReferenceRun) -> str | None:
    """Where a curve leaves that of one device, in a sentence; None where it does not."""
    away = relative_error(found, reference.losses) > reference.tolerances
    if not away.any():
        return None
    step = int(away.argmax())
    return (
        f"losses diverge from one device's at step {step}: loss {found[step]:.7g}, expected "
        f"{reference.losses[step]:.7g} within {reference.tolerances[step]:.1e}"
    )


def train_reference(shape: TrainingShape, batches: Batches) -> ReferenceRun:
    """Without mesh, layout and micro-batches, with Optax's own clipping. Sequences are routed apart, so experts drop
    here what they drop under any layout."""
    step, state = partial(_step(shape), STILL), _start(shape)
    found = losses(step, state, batches)
    errors = [relative_error(losses(step, state, _reordered(batches, seed)), found) for seed in range(ORDERS)]
    return ReferenceRun(found, np.max([_until_parted(error) for error in errors] if shape.experts else errors, axis=0))


def train_nudged(shape: TrainingShape, batches: Batches) -> NudgedRun:
    """Without mesh and layout, and from weights that are off by what bfloat16 rounds."""
    step = partial(_step(shape), STILL)
    found = losses(step, _start(shape), batches)
    curves = [losses(step, _started(nudged_weights(decoder.initial(shape), seed)), batches) for seed in range(NUDGED)]
    moved = np.max([relative_error(curve, found) for curve in curves], axis=0)
    return NudgedRun(found, moved, Band(found, curves))


def _start(shape: TrainingShape) -> TrainState:
    return _started(decoder.initial(shape))


def _started(master: Parameters) -> TrainState:
    return TrainState(master, _optimizer().init(master), None)


def _optimizer() -> optax.GradientTransformation:
    return optax.chain(clipping(), optimizer())


@cache
def _step(shape: TrainingShape) -> Callable[..., tuple[TrainState, Metrics]]:
    find, clipped = on_one_device(shape), _optimizer()

    @jax.jit
    def step(
        nudge: RouterPerturbation, state: TrainState, tokens_BS: jax.Array, targets_BS: jax.Array
    ) -> tuple[TrainState, Metrics]:
        loss, gradients = find(state._replace(master=nudged(state.master, nudge)), tokens_BS, targets_BS)
        master, moments = updated(clipped, gradients, state.moments, state.master)
        return TrainState(master, moments, None), Metrics(loss, optax.tree.norm(gradients))

    return step


def nudged(master: Parameters, nudge: RouterPerturbation) -> Parameters:
    """The weights with those of all routers changed; the same to the bit where its size is 0."""

    def changed(w: Parameter) -> Parameter:
        noise = jax.random.normal(jax.random.key(nudge.seed), w.get_value().shape)
        return w.replace(w.get_value() * (1 + nudge.size * noise))

    return jax.tree.map(lambda w: changed(w) if "choices" in w.dims else w, master, is_leaf=is_weight)


def _reordered(batches: Batches, seed: int) -> Batches:
    draw = np.random.default_rng(seed)
    orders = [draw.permutation(len(tokens_BS)) for tokens_BS, _ in batches]
    return [
        (tokens_BS[order], targets_BS[order]) for order, (tokens_BS, targets_BS) in zip(orders, batches, strict=True)
    ]


def losses(step: Callable[..., tuple[Any, Metrics]], state: Any, batches: Batches) -> np.ndarray:
    """The loss of each step, before its update; float64 [steps]."""
    return losses_and_state(step, state, batches)[0]


def losses_and_state(step: Callable[..., tuple[Any, Metrics]], state: Any, batches: Batches) -> tuple[np.ndarray, Any]:
    """The same, and the state after the last step."""
    found = []
    for batch in batches:
        state, metrics = step(state, *batch)
        # Awaited here: fake devices share the threads of one pool, and several steps in flight may wait for each other
        # for ever.
        found.append(float(metrics.loss))
    return np.array(found), state


def _until_parted(error: np.ndarray) -> np.ndarray:
    """0 from where another order chose other experts, and a few steps before, over which a choice may show little by
    little: rounding grows, but not tenfold in so few."""
    before = np.maximum.accumulate(np.maximum(error, LEAST_MOVE))[:-1]
    soon = np.array([error[at : at + LOOK_AHEAD].max() for at in range(1, len(error))])
    leaps = np.concatenate([[False], soon > MARGIN * before])
    return np.where(np.logical_or.accumulate(leaps), 0, error)


@dataclass(frozen=True)
class _Way:
    """A training from one step on, the first with the nudge, for as long as it is on a curve.

    Attributes:
      end: the step at which it no longer is, or at which it was stopped.
      losses: from `since` on, with the one that is off.
      states: before each of the last steps, but none from which the nudge would have to be repeated.
    """

    since: int
    nudge: RouterPerturbation
    end: int
    losses: list[float]
    states: dict[int, TrainState]


def replayed_with_same_routing(
    found: np.ndarray, reference: ReferenceRun, shape: TrainingShape, batches: Batches
) -> tuple[ReferenceRun, tuple[RoutingTie, ...]]:
    """One device's training that chose at ties as the curve did, with the ties, as far as they explain the curve.

    Where the gates of two experts nearly tie the last bit of a sum decides, and two trainings part from there on. It is
    taken for one only if a change of the routers' weights for a single step, as small as what rounding does to logits,
    gives the curve's own losses from that step on, as closely as those before it.
    """
    if not shape.experts or first_divergence(found, reference) is None:
        return reference, ()
    walk = partial(_walk, shape, batches, found, reference.tolerances)
    ties: list[RoutingTie] = []
    way, own = walk(0, STILL, _start(shape), len(batches)), reference.losses.copy()
    # As many ties as steps at most, also where a device's sums come in another order each time.
    for _ in batches:
        own[way.since : way.since + len(way.losses)] = way.losses
        tipped = _tipped(walk, way, found) if way.end < len(batches) else None
        if tipped is None:
            break
        ties.append(RoutingTie(tipped.since, abs(tipped.nudge.size)))
        way = _onward(tipped, walk(tipped.end, STILL, tipped.states[tipped.end], len(batches)))
    return replace(reference, losses=own), tuple(ties)


def _onward(way: _Way, rest: _Way) -> _Way:
    """A way and what follows it. It is not gone again from its nudge: where sums come in another order each time, that
    may choose otherwise."""
    states = {at: state for at, state in (way.states | rest.states).items() if at > rest.end - LOOK_BACK}
    return replace(
        rest, since=way.since, nudge=way.nudge, losses=way.losses[: way.end - way.since] + rest.losses, states=states
    )


def _walk(
    shape: TrainingShape,
    batches: Batches,
    found: np.ndarray,
    tolerances: np.ndarray,
    since: int,
    nudge: RouterPerturbation,
    state: TrainState,
    last: int,
) -> _Way:
    taken: list[float] = []
    states = {} if nudge.size else {since: state}
    for at in range(since, last):
        state, metrics = _step(shape)(STILL if taken else nudge, state, *batches[at])
        taken.append(float(metrics.loss))
        if relative_error(found[at], taken[-1]) > tolerances[at]:
            return _Way(since, nudge, at, taken, states)
        states[at + 1] = state
        states.pop(at + 1 - LOOK_BACK, None)
    return _Way(since, nudge, last, taken, states)


def _tipped(walk: Callable[..., _Way], way: _Way, found: np.ndarray) -> _Way | None:
    """The nudge that leads farthest along the curve from where the way leaves it; by a leap, since what merely brings a
    loss below the tolerance is none."""
    best, last = way, min(way.end + LOOK_AHEAD, len(found))
    for since, nudge in product(sorted(way.states, reverse=True), NUDGES):
        other = walk(since, nudge, way.states[since], last)
        if other.end > best.end and _off(other, way.end, found) < _off(way, way.end, found) / 2:
            best = other
        if best.end == last:
            break
    return best if best is not way else None


def _off(way: _Way, at: int, found: np.ndarray) -> float:
    return float(relative_error(found[at], way.losses[at - way.since]))
