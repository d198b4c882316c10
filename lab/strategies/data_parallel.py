"""Data parallelism (Ch. 14): a gradient is a sum over examples, and sums are associative, so each rank may sum its own share first."""

from __future__ import annotations

from lab.ledger import Transfer
from lab.models.seams import Dims
from lab.models.shape import DecoderShape
from lab.strategies.strategy import Strategy
from lab.strategies.terms import sum_of_loss, sums_of_copies
from meshes.axes import DATA, Axes
from meshes.layouts import Layout

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
