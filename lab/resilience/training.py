"""Trainings of the decoder that can be stopped after any step and go on: all that decides the next step is in their
snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from lab.harness.decoder import text
from lab.harness.decoder.composed import ComposedShape, configuration, start, token_order
from lab.meshes.axes import Axes
from lab.programs.composed import step as composed
from lab.programs.models import decoder
from lab.resilience.checkpoints import Snapshot

SMALL = ComposedShape(
    **vars(ComposedShape().shrunk(vocab=text.BYTES, layers=2, embed=32, head_dim=8, mlp=64, batch=8, length=16))
)
"""A step takes a CPU milliseconds."""


@dataclass(frozen=True)
class ResumableTraining:
    """A training of the decoder on the bytes of the standard library, a few of which are replaced at random.

    Attributes:
      shape: of the model and its batch; with the mesh's axes it makes a `Configuration`.
      mesh: of this process' devices, or of those of several processes.
      noise: share of the tokens that are replaced, so that the loss depends on the random key.
    """

    shape: ComposedShape
    mesh: Mesh
    noise: float = 0.05

    @property
    def axes(self) -> Axes:
        return Axes.of(self.mesh.shape)

    @cached_property
    def _program(self) -> tuple[Any, Any]:
        return composed.step(configuration(self.shape, self.axes), "explicit", self.shape, self.mesh)

    @property
    def like(self) -> Any:
        """The state as shapes with shardings."""
        return self._program[1][0]

    @cached_property
    def _step(self) -> Callable[..., Any]:
        step, arguments = self._program
        return step.lower(*arguments).compile()

    @cached_property
    def _text(self) -> np.ndarray:
        return text.standard_library()

    def start(self, seed: int = 0) -> Snapshot:
        """Before the first step."""
        state = start(self.shape, self.axes, decoder.initial(self.shape))
        placed = jax.tree.map(lambda x, like: _placed(np.asarray(x), like.sharding), state, self.like)
        return Snapshot(placed, jax.random.key(seed), 0, 0)

    def batch(self, key: jax.Array, position: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and those that follow them, int32 [batch, length]: the sequences from `position` on, one behind the
        other in the text."""
        B, S = self.shape.batch, self.shape.length
        starts_B = ((position + np.arange(B)) * S) % (self._text.size - S)
        windows = self._text[starts_B[:, None] + np.arange(S + 1)].astype(np.int32)
        draw = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        tokens_BS = np.where(draw.random((B, S)) < self.noise, draw.integers(0, text.BYTES, (B, S)), windows[:, :-1])
        order_S = np.asarray(token_order(self.shape, self.axes))
        return tokens_BS[:, order_S].astype(np.int32), windows[:, 1:][:, order_S]

    def steps(self, snapshot: Snapshot) -> Iterator[tuple[Snapshot, float]]:
        """What comes after each step, and the step's loss; without end. A step takes the buffers of the state before
        it."""
        shardings = [like.sharding for like in self._program[1][1:]]
        while True:
            key, now = jax.random.split(snapshot.key)
            batch = self.batch(now, snapshot.position)
            state, metrics = self._step(snapshot.state, *map(_placed, batch, shardings))
            # Awaited before the next step: steps of fake devices in flight together may wait for each other for ever.
            loss = float(metrics.loss)
            snapshot = Snapshot(state, key, snapshot.position + self.shape.batch, snapshot.step + 1)
            yield snapshot, loss


def _placed(x: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    """Each process gives its devices their part of what all of them have."""
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
