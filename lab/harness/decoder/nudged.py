"""How far a training in another precision may be from one in float32: as far as trainings whose weights begin a little
elsewhere are from each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from lab.programs.models.decoder import Parameters
from lab.programs.strategies.program import each

NUDGE = 2.0**-9
"""Of each weight, relative to it: what one rounding to bfloat16 does at most."""
WINDOWS = 10
MARGIN = 1.5
"""Widths of the band within which a curve counts as the same."""


def nudged(master: Parameters, seed: int) -> Parameters:
    """Every weight times 1 + `NUDGE` times a normal number."""
    keys = iter(jax.random.split(jax.random.key(seed), len(jax.tree.leaves(master))))
    return each(master, lambda w: w.get_value() * (1 + NUDGE * jax.random.normal(next(keys), w.get_value().shape)))


@dataclass(frozen=True)
class Band:
    """Losses of each step, [steps], of a training in float32 and of nudged ones."""

    losses: np.ndarray
    nudged: Sequence[np.ndarray]

    def gaps(self, losses: np.ndarray) -> np.ndarray:
        """Of another curve, [windows]: means over a tenth of the steps each, less those of the training; positive where
        it is worse."""
        return np.array([part.mean() for part in np.array_split(losses - self.losses, min(WINDOWS, len(losses)))])

    @property
    def width(self) -> float:
        """The largest distance of a nudged curve from the training, in any window."""
        return max(float(np.abs(self.gaps(curve)).max()) for curve in self.nudged)

    def holds(self, losses: np.ndarray) -> bool:
        """No window of the curve is farther than `MARGIN` widths from the training."""
        return bool(np.abs(self.gaps(losses)).max() <= MARGIN * self.width)
