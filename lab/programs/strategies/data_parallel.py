"""Data parallelism (Ch. 14): a gradient is a sum over examples, and sums are associative, so each rank may sum its own
share first."""

from __future__ import annotations

from lab.core.ledger import Transfer
from lab.meshes.axes import DATA, Axes
from lab.meshes.layouts import Layout
from lab.programs.models.collective_hooks import Dims
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.terms import sum_of_loss, sums_of_copies

LAYOUT = Layout.of(batch=DATA)


def copies(dims: Dims) -> frozenset[str]:
    """Every rank may use the one copy of a weight freely; the transpose of that is to sum the ranks' gradients."""
    return frozenset({DATA})


def terms(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """Sums the gradient of every weight, and the loss."""
    return (sum_of_loss(strategy, shape, axes), *sums_of_copies(strategy, shape, axes, DATA))


DATA_PARALLEL = Strategy(
    inside=LAYOUT,
    residual=LAYOUT,
    copies=copies,
    terms=(terms,),
)
