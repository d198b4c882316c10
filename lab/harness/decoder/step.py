"""An experiment on a decoder's training step under a strategy: all but the question and the claims is the same for
each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from lab.core.ledger import Ledger
from lab.harness.claim import Claim
from lab.harness.experiment import TARGETS, Experiment, TimedSteps, TrainingStep, as_they_come
from lab.meshes.axes import Axes
from lab.meshes.targets import Target
from lab.programs.memory.peak import peak_terms
from lab.programs.memory.saved import offloaded_bytes
from lab.programs.models.decoder import Parameters
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies import program
from lab.programs.strategies.strategy import Strategy

SMALL = DecoderShape().shrunk(layers=3)
"""To run rather than to compile: float32, and every dim splits over 8 or 16 devices."""


def decoder_experiment(
    name: str,
    chapter: int,
    question: str,
    strategy: Strategy,
    axes: Callable[[Target], Axes],
    claims: Callable[[DecoderShape, Axes, Ledger], tuple[Claim, ...]],
    parameters: DecoderShape = DecoderShape(),
    targets: tuple[str, ...] = TARGETS,
    styles: tuple[str, ...] | None = None,
    everyday: tuple[tuple[str, str], ...] = (),
    small: DecoderShape = SMALL,
    more_targets: tuple[str, ...] = (),
    more_styles: tuple[str, ...] = (),
    real_size: Mapping[str, str] | None = None,
    tour: TimedSteps | None = None,
    order: Callable[[DecoderShape, Axes], Sequence[int]] = as_they_come,
) -> Experiment:
    """Compiles the whole step; runs three of them, and compares what they come to with the reference.

    Args:
      order: of a sequence's tokens, as `TrainingStep`.
      styles: by default all that the strategy has, but those in `more_styles`.
    """
    return Experiment(
        name=name,
        chapter=chapter,
        question=question,
        parameters=parameters,
        numeric_parameters=small,
        axes=axes,
        build=partial(_build, strategy),
        predict=strategy.predict,
        claims=claims,
        step=TrainingStep(partial(_start, strategy), order=order),
        memory=partial(peak_terms, strategy),
        host_bytes=partial(offloaded_bytes, strategy),
        state=lambda shape, mesh: program.arguments(program.PlacedStrategy(strategy, shape, mesh))[0],
        targets=targets,
        styles=tuple(style for style in strategy.styles if style not in more_styles) if styles is None else styles,
        everyday=everyday,
        more_targets=more_targets,
        more_styles=more_styles,
        real_size=real_size,
        tour=tour,
    )


def _start(strategy: Strategy, shape: DecoderShape, axes: Axes, weights: Parameters) -> program.TrainState:
    return program.with_exchange(strategy, axes, program.state_of(strategy, shape, weights))


def _build(strategy: Strategy, style: str, shape: DecoderShape, mesh: jax.sharding.Mesh) -> program.Program:
    return program.step(strategy, style, shape, mesh)


def random_tokens(shape: DecoderShape, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and targets, int32 [B, S]."""
    draw = np.random.default_rng(seed)
    tokens, targets = draw.integers(0, shape.vocab, (2, shape.batch, shape.length), dtype=np.int32)
    return tokens, targets


def on_one_device(shape: DecoderShape) -> Callable[..., Any]:
    """(state, tokens_BS, targets_BS) to the mean loss and all gradients, without a strategy and without
    micro-batches."""
    return lambda state, tokens_BS, targets_BS: jax.value_and_grad(program.mean_loss)(
        state.master, tokens_BS, targets_BS, shape
    )
