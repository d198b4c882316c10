"""Collectives as kernels for `jax.shard_map`, several algorithms each, and what every one of them costs."""

from lab.collectives.algorithm import Algorithm
from lab.collectives.catalogue import ALGORITHMS
from lab.collectives.cost import AlphaBeta, Cost
from lab.collectives.primitives import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    cost,
    gather,
    permute,
    permute_cost,
    reduce,
    reduce_scatter,
    scatter,
)

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "AlphaBeta",
    "Cost",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "cost",
    "gather",
    "permute",
    "permute_cost",
    "reduce",
    "reduce_scatter",
    "scatter",
]
