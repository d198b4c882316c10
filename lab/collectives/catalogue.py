"""Every algorithm by primitive and name: the one table to add a line to."""

from collections.abc import Mapping

from lab.collectives import builtin, circulant, double_tree, exchange, hierarchical, pipelined, recursive, ring, tree
from lab.collectives.algorithm import Algorithm, all_reduce_by_blocks, power_of_two, several_axes

_REDUCE_SCATTER = {
    "lax": Algorithm(builtin.reduce_scatter, builtin.reduce_scatter_cost),
    "ring": Algorithm(ring.reduce_scatter, ring.half_cost, buffers=0, blocks=2),
    "split_ring": Algorithm(ring.reduce_scatter_split, ring.half_cost_split, buffers=0, blocks=2),
    "bidirectional_ring": Algorithm(ring.reduce_scatter_both_ways, ring.half_cost_both_ways, buffers=0, blocks=4),
    "halving": Algorithm(recursive.reduce_scatter_halving, recursive.reduce_scatter_halving_cost, misfit=power_of_two),
    "circulant": Algorithm(circulant.reduce_scatter, circulant.reduce_scatter_cost),
    "hierarchical": Algorithm(hierarchical.reduce_scatter, hierarchical.reduce_scatter_cost, misfit=several_axes),
}
_ALL_GATHER = {
    "lax": Algorithm(builtin.all_gather, builtin.all_gather_cost),
    "ring": Algorithm(ring.all_gather, ring.half_cost),
    "split_ring": Algorithm(ring.all_gather_split, ring.half_cost_split),
    "bidirectional_ring": Algorithm(ring.all_gather_both_ways, ring.half_cost_both_ways),
    "doubling": Algorithm(recursive.all_gather_doubling, recursive.all_gather_doubling_cost, misfit=power_of_two),
    "circulant": Algorithm(circulant.all_gather, circulant.all_gather_cost),
    "hierarchical": Algorithm(hierarchical.all_gather, hierarchical.all_gather_cost, misfit=several_axes),
}
_IN_TWO = ("ring", "split_ring", "bidirectional_ring", "circulant")
_BY_BLOCKS = {name: all_reduce_by_blocks(_REDUCE_SCATTER[name], _ALL_GATHER[name]) for name in _IN_TWO}
_TREE = Algorithm(tree.all_reduce, tree.all_reduce_cost, elementwise=False, buffers=2)
_ALL_REDUCE = {
    "lax": Algorithm(builtin.all_reduce, builtin.all_reduce_cost, elementwise=False),
    **_BY_BLOCKS,
    "sliced_ring": pipelined.sliced(_BY_BLOCKS["ring"]),
    "doubling": Algorithm(recursive.all_reduce_doubling, recursive.all_reduce_doubling_cost, elementwise=False, buffers=2),
    "halving_doubling": Algorithm(recursive.all_reduce_halving, recursive.all_reduce_halving_cost, buffers=2),
    "tree": _TREE,
    "double_tree": double_tree.all_reduce(),
    "hierarchical": hierarchical.all_reduce(across=_BY_BLOCKS["ring"]),
    "ring_tree": hierarchical.all_reduce(across=_TREE),
    "torus": Algorithm(hierarchical.torus, hierarchical.torus_cost, misfit=several_axes),
}
ALGORITHMS: Mapping[str, Mapping[str, Algorithm]] = {
    "all_reduce": _ALL_REDUCE,
    "reduce_scatter": _REDUCE_SCATTER,
    "all_gather": _ALL_GATHER,
    "reduce": {
        "lax": Algorithm(builtin.reduce, builtin.all_reduce_cost, elementwise=False),
        "tree": Algorithm(tree.reduce, tree.reduce_cost, elementwise=False, buffers=2),
        "blocks": Algorithm(tree.reduce_by_blocks, tree.reduce_by_blocks_cost),
        "chain": pipelined.chain_reduce(),
    },
    "broadcast": {
        "lax": Algorithm(builtin.broadcast, builtin.all_reduce_cost),
        "tree": Algorithm(tree.broadcast, tree.broadcast_cost, buffers=2),
        "blocks": Algorithm(tree.broadcast_by_blocks, tree.broadcast_by_blocks_cost, buffers=2),
        "chain": pipelined.chain_broadcast(),
    },
    "scatter": {
        "lax": Algorithm(builtin.scatter, builtin.reduce_scatter_cost),
        "tree": Algorithm(tree.scatter, tree.scatter_cost),
    },
    "gather": {
        "lax": Algorithm(builtin.gather, builtin.all_gather_cost),
        "tree": Algorithm(tree.gather, tree.gather_cost),
    },
    "all_to_all": {
        "lax": Algorithm(builtin.all_to_all, builtin.all_to_all_cost),
        "pairwise": Algorithm(exchange.pairwise, exchange.pairwise_cost),
        "bruck": Algorithm(exchange.bruck, exchange.bruck_cost, buffers=2),
    },
    "barrier": {
        "lax": Algorithm(builtin.barrier, builtin.all_reduce_cost),
        "circulant": Algorithm(circulant.barrier, circulant.barrier_cost),
    },
}
