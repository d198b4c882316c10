"""Two rounds of local SGD or DiLoCo against replicas that one device trains in turn, with Optax's Nesterov."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from lab.harness.decoder.step import on_one_device
from lab.harness.decoder.three_steps import (
    FAST,
    TOLERANCE,
    Compared,
    by_name,
    of_the_model,
    past_gradients,
    starting_weights,
)
from lab.harness.result import Numerics, WrongResults
from lab.meshes.axes import REPLICA, Axes
from lab.meshes.processes import fetched
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.program import TrainState
from lab.programs.strategies.update import clipping, optimizer, updated
from lab.programs.transforms import local_sgd, outer_mean
from lab.programs.transforms.local_sgd import MIXED, Rounds, RoundShape, RoundState, of_one_replica
from lab.reference.adamw import B1, B2
from lab.reference.layers import Array

ROUNDS = 2
"""At the second the momentum of the first counts."""
Batches = tuple[np.ndarray, np.ndarray]
"""Tokens and targets of a round, int32 [h, B, S] each."""


class Replicas(NamedTuple):
    """What one device comes to.

    Attributes:
      weights: of each replica, by name.
      anchor, momentum: of DiLoCo's outer step.
      losses: [R, h] of each round.
      largest_change: of an entry that replicas sent.
    """

    weights: list[dict[str, Array]]
    anchor: dict[str, Array]
    momentum: dict[str, Array]
    losses: list[Array]
    largest_change: float


def compare_rounds(rounds: Rounds, style: str, shape: RoundShape, mesh: Mesh) -> Numerics:
    """Runs rounds on `mesh`, and compares them with what one device comes to; of integers one round, within what they
    round.

    Raises:
      WrongResults: a loss, a weight or a momentum differs; it says which.
    """
    axes, count = Axes.of(mesh.shape), ROUNDS if shape.outer == "f32" else 1
    one = of_the_model(of_one_replica(shape, axes))
    batches = [_drawn(shape, seed) for seed in range(count)]
    expected = trained_in_turn(rounds, shape, one, axes[REPLICA], batches)
    state, losses = _run(rounds, shape, mesh, _start(rounds, shape, one, axes[REPLICA]), batches)
    compared = tuple(_compared(state, losses, expected, shape))
    worst = max(compared, key=lambda each: each.error)
    if not worst.error <= TOLERANCE:
        raise WrongResults(f"{count} rounds do not equal those of one device: {worst}, at {shape}")
    return Numerics(worst.error, TOLERANCE, steps=count * shape.every, compared=("losses", "parameters", "momentum"))


def _drawn(shape: DecoderShape, seed: int) -> Batches:
    sizes = (getattr(shape, "every", 1), shape.batch, shape.length)
    tokens, targets = np.random.default_rng(seed).integers(0, shape.vocab, (2, *sizes), np.int32)
    return tokens, targets


def _start(rounds: Rounds, shape: RoundShape, one: DecoderShape, replicas: int) -> RoundState:
    start = local_sgd.initial(rounds, shape, replicas, starting_weights(one))
    if rounds.outer is None:
        return start
    adam, *others = start.replicas.moments
    past = jax.tree.map(lambda g: jnp.repeat(g[None], replicas, axis=0), past_gradients(one))
    mu, nu = jax.tree.map(lambda g: (1 - B1) * g, past), jax.tree.map(lambda g: (1 - B2) * g * g, past)
    moments = (adam._replace(mu=mu, nu=nu, count=adam.count + 1), *others)
    return start._replace(replicas=start.replicas._replace(moments=moments))


def _run(
    rounds: Rounds, shape: RoundShape, mesh: Mesh, start: RoundState, batches: list[Batches]
) -> tuple[RoundState, list[Array]]:
    function, shapes = local_sgd.program(rounds, shape, mesh)
    options = FAST if mesh.devices.flat[0].platform == "cpu" else None
    with jax.default_matmul_precision("highest"):
        compiled = function.lower(*shapes).compile(compiler_options=options)
    shardings = jax.tree.map(lambda x: x.sharding, shapes)
    state, losses = jax.device_put(start, shardings[0], may_alias=False), []
    for batch in batches:
        state, metrics = compiled(state, *jax.device_put(batch, shardings[1:]))
        losses.append(np.asarray(fetched(metrics.loss_Rh)))
    return fetched(state), losses


def trained_in_turn(
    rounds: Rounds, shape: RoundShape, one: DecoderShape, replicas: int, batches: list[Batches]
) -> Replicas:
    """Each replica's steps on one device; means and outer steps in NumPy's float64."""
    start = starting_weights(one)
    step = _adam(one) if rounds.outer else _descent(one, rounds.learning_rate)
    states = [_first(rounds, one) for _ in range(replicas)]
    anchor = by_name(start)
    momentum, losses, largest = {name: np.zeros_like(w) for name, w in anchor.items()}, [], 0.0

    def change(name: str) -> Array:
        """The mean, in float64."""
        return anchor[name] - np.mean([by_name(state.master)[name] for state in states], axis=0)

    for tokens_hBS, targets_hBS in batches:
        found = np.zeros((replicas, shape.every))
        waiting: dict[str, Array] = {}
        for at in range(shape.every):
            for r, state in enumerate(states):
                own = np.s_[at, r * one.batch : (r + 1) * one.batch]
                states[r], found[r, at] = step(state, tokens_hBS[own], targets_hBS[own])
            for part, sends, takes in _meetings(shape, anchor):
                if at + 1 == sends:
                    waiting |= {name: change(name)[layers] for name, layers in part.items()}
                    largest = max(largest, *(float(np.abs(waiting[name]).max()) for name in part))
                if at + 1 == takes:
                    kept = MIXED if takes > sends else 0.0
                    for name, layers in part.items():
                        moved = waiting.pop(name)
                        if rounds.outer:
                            nesterov = optax.trace(rounds.outer.momentum, nesterov=True)
                            moved, after = nesterov.update(moved, optax.TraceState(momentum[name][layers]))
                            momentum[name][layers], moved = after.trace, rounds.outer.learning_rate * np.asarray(moved)
                        anchor[name][layers] = anchor[name][layers] - moved
                        states = [_mixed(state, name, layers, anchor[name], kept) for state in states]
        losses.append(found)
    return Replicas([by_name(state.master) for state in states], anchor, momentum, losses, largest)


def _meetings(shape: RoundShape, weights: Mapping[str, Array]) -> Iterator[tuple[dict[str, slice], int, int]]:
    """Which layers of which weights meet, after which step they are sent and after which the mean is taken."""
    whole = slice(None)
    if shape.fragments == 1:
        yield dict.fromkeys(weights, whole), shape.every - shape.delay, shape.every
        return
    size, between = shape.layers // shape.fragments, shape.every // shape.fragments
    for number in range(shape.fragments):
        layers, end = slice(number * size, (number + 1) * size), (number + 1) * between
        yield {name: layers for name in weights if name.startswith("layers/")}, end - shape.delay, end
    yield {name: whole for name in weights if not name.startswith("layers/")}, shape.every, shape.every


def _mixed(state: TrainState, name: str, layers: slice, new: Array, kept: float) -> TrainState:
    def mixed(path: Any, w: jax.Array) -> jax.Array:
        if jax.tree_util.keystr(path, simple=True, separator="/").removesuffix("/value") != name:
            return w
        return w.at[layers].set(kept * w[layers] + (1 - kept) * new[layers].astype(np.float32))

    return state._replace(master=jax.tree.map_with_path(mixed, state.master))


def _first(rounds: Rounds, one: DecoderShape) -> TrainState:
    state = _start(rounds, RoundShape(layers=one.layers), one, 1).replicas
    return jax.tree.map(lambda x: jnp.asarray(x)[0], state)


def _adam(one: DecoderShape) -> Callable[..., tuple[TrainState, float]]:
    clip = clipping()

    @jax.jit
    def step(state: TrainState, *batch: jax.Array) -> tuple[TrainState, jax.Array]:
        loss, gradients = on_one_device(one)(state, *batch)
        gradients, _ = clip.update(gradients, clip.init(state.master))
        master, moments = updated(optimizer(), gradients, state.moments, state.master)
        return TrainState(master, moments, None), loss

    return partial(_precisely, step)


def _descent(one: DecoderShape, learning_rate: float) -> Callable[..., tuple[TrainState, float]]:
    @jax.jit
    def step(state: TrainState, *batch: jax.Array) -> tuple[TrainState, jax.Array]:
        loss, gradients = on_one_device(one)(state, *batch)
        return state._replace(
            master=optax.apply_updates(state.master, jax.tree.map(lambda g: -learning_rate * g, gradients))
        ), loss

    return partial(_precisely, step)


def _precisely(step: Any, *arguments: Any) -> Any:
    with jax.default_matmul_precision("highest"):
        return step(*arguments)


def _compared(state: RoundState, losses: list[Array], expected: Replicas, shape: RoundShape) -> Iterator[Compared]:
    """A number is off by what float32 rounds, relative to the largest weight of its array; and by what integers do."""
    slack = 0.0
    if codec := outer_mean.FORMATS[shape.outer]:
        # Twice a half of a step of integers, of a change that Nesterov takes up to 1.33 times.
        slack = 2 * expected.largest_change / (2 ** (codec.bits - 1) - 1)
    for number, (found, wanted) in enumerate(zip(losses, expected.losses, strict=True), 1):
        yield Compared(f"losses of round {number}", found, wanted, np.abs(wanted))
    units = {name: np.abs(w).max() + slack / TOLERANCE for name, w in expected.weights[0].items()}
    for name, w in by_name(state.replicas.master).items():
        yield Compared(name, w, np.stack([one[name] for one in expected.weights]), units[name])
    for what, tree, wanted_of in (
        ("the anchor of", state.anchor, expected.anchor),
        ("the momentum of", state.momentum, expected.momentum),
    ):
        for name, x in by_name(tree or {}).items():
            yield Compared(f"{what} {name}", x, wanted_of[name], units[name])
