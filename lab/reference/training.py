"""Three training steps from given weights, on batches drawn at random: at the second the weights count that the first
has renewed, and at the third the moments of two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.programs.models.shape import DecoderShape
from lab.reference.adamw import clipped, first_moment, movable, norm, second_moment, weight_after
from lab.reference.decoder import Forward, Weights, forward
from lab.reference.experts import Parts
from lab.reference.layers import Array, Tokens

FEW = 48
"""The targets of the second step are one in so many of all words: the gradients of its tokens then point one way, and
their norm is above that at which they are clipped; those of random targets cancel, and their norm is below."""
CLOSE = 1e-5
"""A choice of experts that is decided by less, relatively, may fall otherwise in float32; its sequence is drawn
anew."""


Batches = tuple[tuple[Tokens, Tokens], ...]
"""Tokens and targets of each step, int32 [B, S] each."""


@dataclass(frozen=True)
class TrainingSteps:
    """What one device comes to.

    Attributes:
      losses, norms: of each step: the mean loss before it, and the norm of its gradients before they are clipped.
      weights: after the last step, by name.
      history: the clipped gradients of the step before and of each step, by name.
    """

    batches: Batches
    losses: tuple[float, ...]
    norms: tuple[float, ...]
    weights: Weights
    history: tuple[Weights, ...]

    def first_moment(self, name: str) -> Array:
        return first_moment(self._of(name))

    def second_moment(self, name: str) -> Array:
        return second_moment(self._of(name))

    def movable(self, name: str, error: float) -> Array:
        """By how much each entry of a weight may be off where each step's gradient is off by `error` of its largest
        entry."""
        return movable(self._of(name), [error * float(np.abs(g).max()) for g in self._of(name)])

    def _of(self, name: str) -> list[Array]:
        return [gradients[name] for gradients in self.history]


def train(
    start: Weights, past: Weights, shape: DecoderShape, parts_Ps: Parts | None = None, seed: int = 0
) -> TrainingSteps:
    """Three steps, each with the clipped gradients of its whole batch, after one whose gradients were `past`; experts
    are chosen as in `mixture`."""
    draw, weights = np.random.default_rng(seed), start
    batches, losses, norms, history = [], [], [], [past]
    for words in (shape.vocab, max(1, shape.vocab // FEW), shape.vocab):
        batch, found = _decided(weights, shape, parts_Ps, words, draw)
        gradients = found.gradients()
        batches.append(batch)
        losses.append(found.loss)
        norms.append(norm(gradients))
        history.append(clipped(gradients))
        weights = {name: weight_after(name, w, [g[name] for g in history]) for name, w in start.items()}
    return TrainingSteps(tuple(batches), tuple(losses), tuple(norms), weights, tuple(history))


def first_norm(start: Weights, shape: DecoderShape, seed: int = 0) -> float:
    """Of the first step's gradients, about."""
    batch = _drawn(shape, shape.vocab, shape.batch, np.random.default_rng(seed))
    return norm(forward(start, *batch, shape).gradients())


def _decided(
    weights: Weights, shape: DecoderShape, parts_Ps: Parts | None, words: int, draw: np.random.Generator
) -> tuple[tuple[Tokens, Tokens], Forward]:
    """A batch in which no choice of experts is close; targets are the first `words` of the vocabulary."""
    tokens_BS, targets_BS = _drawn(shape, words, shape.batch, draw)
    while True:
        found = forward(weights, tokens_BS, targets_BS, shape, parts_Ps)
        close = np.flatnonzero(found.margin_B < CLOSE)
        if not close.size:
            return (tokens_BS, targets_BS), found
        tokens_BS[close], targets_BS[close] = _drawn(shape, words, close.size, draw)


def _drawn(shape: DecoderShape, words: int, sequences: int, draw: np.random.Generator) -> tuple[Tokens, Tokens]:
    sizes = (sequences, shape.length)
    return draw.integers(0, shape.vocab, sizes, np.int32), draw.integers(0, words, sizes, np.int32)
