"""Seconds of any amount of work, as measurements give them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

import numpy as np

from lab.hlo.multiplied import Product


@dataclass(frozen=True)
class Rate:
    """Seconds of any amount of work: alpha_s + work / per_s."""

    alpha_s: float
    per_s: float

    def seconds(self, work: float) -> float:
        return self.alpha_s + work / self.per_s


@dataclass(frozen=True)
class Curve:
    """Seconds of amounts that were measured, (bytes, seconds), the smallest first; a launch is part of each."""

    points: tuple[tuple[float, float], ...]

    def seconds(self, count: float) -> float:
        """Between two points on the line through them in logarithms; below the first its seconds, beyond the last at
        its rate."""
        sizes, seconds = np.array(self.points).T
        if count >= sizes[-1]:
            return float(count / sizes[-1] * seconds[-1])
        return float(np.exp(np.interp(np.log(max(count, 1)), np.log(sizes), np.log(seconds))))


@dataclass(frozen=True)
class Tile:
    """What a multiprocessor computes of a result at once: [m, n]; `rate` is its share of the chip's best."""

    m: int
    n: int
    rate: float


@dataclass(frozen=True)
class Tiles:
    """Seconds of matrix products: a launch, then waves of tiles, one on each multiprocessor; the last is seldom full.

    Attributes:
      alpha_s: a launch.
      wave_s: what a wave takes before and after its sums.
      per_s: FLOPs of a chip full of the best tiles.
      units: multiprocessors.
      tiles: of which a library takes the fastest.
    """

    alpha_s: float
    wave_s: float
    per_s: float
    units: int
    tiles: tuple[Tile, ...] = field(default=(Tile(128, 256, 1.0),))

    def seconds(self, product: Product) -> float:
        return self.alpha_s + min(self._waves(product, tile) for tile in self.tiles)

    def _waves(self, product: Product, tile: Tile) -> float:
        count = ceil(product.m / tile.m) * ceil(product.n / tile.n) * product.batch
        sums = 2.0 * tile.m * tile.n * product.k / (self.per_s / self.units * tile.rate)
        return ceil(count / self.units) * (self.wave_s + sums)
