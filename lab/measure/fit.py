"""Alpha and beta from measured times, by least squares of relative errors, since sizes and times span six decades.

The model is t = steps alpha + bytes / beta: `steps` messages one after the other, `bytes` of them together, along the
slowest path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FEWEST = 3
"""Points of one line: two leave no spread."""


@dataclass(frozen=True)
class Point:
    """One measured time of a collective of `payload_bytes` (the ledger's n)."""

    payload_bytes: int
    steps: int
    wire_bytes: float
    seconds: float


@dataclass(frozen=True)
class Line:
    """Seconds a message and rate of one direction, each with its standard error."""

    alpha_s: float
    alpha_error_s: float
    bytes_per_s: float
    bytes_per_s_error: float

    def seconds(self, point: Point) -> float:
        return point.steps * self.alpha_s + point.wire_bytes / self.bytes_per_s


@dataclass(frozen=True)
class TwoLines:
    """One line for payloads below `from_bytes`, one from there on: libraries change protocol with size."""

    below: Line
    above: Line
    from_bytes: int

    def seconds(self, point: Point) -> float:
        return (self.below if point.payload_bytes < self.from_bytes else self.above).seconds(point)


def line(points: Sequence[Point]) -> Line | None:
    """The line nearest to the points; None where they are fewer than three, or do not show both constants above
    zero."""
    if len(points) < FEWEST:
        return None
    seconds = np.array([point.seconds for point in points])
    relative = np.array([(point.steps, point.wire_bytes) for point in points]) / seconds[:, None]
    scale = np.linalg.norm(relative, axis=0)
    scaled = relative / np.where(scale > 0, scale, 1)
    if np.linalg.matrix_rank(scaled) < 2:
        return None
    constants, squares, *_ = np.linalg.lstsq(scaled, np.ones(len(points)))
    variances = float(squares[0]) / (len(points) - 2) * np.diag(np.linalg.inv(scaled.T @ scaled))
    (alpha, per_byte), (alpha_error, per_byte_error) = constants / scale, np.sqrt(variances) / scale
    if alpha <= 0 or per_byte <= 0:
        return None
    return Line(float(alpha), float(alpha_error), float(1 / per_byte), float(per_byte_error / per_byte**2))


def why_no_line(points: Sequence[Point]) -> str:
    """The reason, where `line` gives None."""
    sizes = len({point.payload_bytes for point in points})
    few = f"{sizes} size{'s' * (sizes > 1)}, expected {FEWEST} or more"
    return f"found {few}" if sizes < FEWEST else "the fitted alpha and beta are not both above zero"


def two_lines(points: Sequence[Point]) -> TwoLines | None:
    """The two lines with the least sum of squares over all sizes at which they could meet."""
    sizes = sorted({point.payload_bytes for point in points})
    fits = [fit for size in sizes if (fit := _parted(points, size))]
    return min(fits, key=lambda fit: float(np.square(relative_errors(fit, points)).sum()), default=None)


def relative_errors(fit: Line | TwoLines, points: Sequence[Point]) -> np.ndarray:
    """[points]: fitted over measured time, less one."""
    return np.array([fit.seconds(point) / point.seconds - 1 for point in points])


def _parted(points: Sequence[Point], from_bytes: int) -> TwoLines | None:
    below = line([point for point in points if point.payload_bytes < from_bytes])
    above = line([point for point in points if point.payload_bytes >= from_bytes])
    return TwoLines(below, above, from_bytes) if below and above else None
