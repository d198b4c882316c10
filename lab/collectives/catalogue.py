"""Every algorithm by primitive and name: the table to add a line to."""

from collections.abc import Mapping
from functools import partial

from lab.collectives import (
    builtin,
    circulant,
    double_tree,
    exchange,
    hierarchical,
    pipelined,
    recursive,
    ring,
    tree,
)
from lab.collectives.algorithm import (
    Algorithm,
    all_reduce_by_blocks,
    power_of_two,
    rounds_up,
    several_axes,
)

_RS, _AG = "reduce_scatter", "all_gather"


def _in_lanes(primitive: str, ways: ring.Ways) -> Algorithm:
    """A ring whose blocks go round in lanes."""
    cost = ring.all_reduce_cost if primitive == "all_reduce" else ring.half_cost
    return Algorithm(
        primitive, partial(getattr(ring, primitive), ways=ways), partial(cost, ways=ways), buffers=0, blocks=3
    )


_REDUCE_SCATTER = {
    "lax": Algorithm(_RS, builtin.reduce_scatter, builtin.reduce_scatter_cost),
    "ring": _in_lanes(_RS, ring.WHOLE),
    "split_ring": _in_lanes(_RS, ring.HALVES),
    "bidirectional_ring": Algorithm(
        _RS,
        ring.reduce_scatter_both_ways,
        ring.half_cost_both_ways,
        additions=ring.additions_both_ways,
        buffers=0,
        blocks=4,
    ),
    "halving": Algorithm(
        _RS,
        recursive.reduce_scatter_halving,
        recursive.reduce_scatter_halving_cost,
        misfit=power_of_two,
        additions=rounds_up,
    ),
    "circulant": Algorithm(_RS, circulant.reduce_scatter, circulant.reduce_scatter_cost, additions=rounds_up),
    "hierarchical": Algorithm(
        _RS,
        hierarchical.reduce_scatter,
        hierarchical.reduce_scatter_cost,
        misfit=several_axes,
        additions=hierarchical.additions,
    ),
}
_ALL_GATHER = {
    "lax": Algorithm(_AG, builtin.all_gather, builtin.all_gather_cost),
    "ring": _in_lanes(_AG, ring.WHOLE),
    "split_ring": _in_lanes(_AG, ring.HALVES),
    "bidirectional_ring": Algorithm(_AG, ring.all_gather_both_ways, ring.half_cost_both_ways),
    "doubling": Algorithm(_AG, recursive.all_gather_doubling, recursive.all_gather_doubling_cost, misfit=power_of_two),
    "circulant": Algorithm(_AG, circulant.all_gather, circulant.all_gather_cost),
    "hierarchical": Algorithm(_AG, hierarchical.all_gather, hierarchical.all_gather_cost, misfit=several_axes),
}
_RING = _in_lanes("all_reduce", ring.WHOLE)
_TREE = Algorithm(
    "all_reduce", tree.all_reduce, tree.all_reduce_cost, elementwise=False, additions=rounds_up, buffers=2
)
_ALL_REDUCE = {
    "lax": Algorithm("all_reduce", builtin.all_reduce, builtin.all_reduce_cost, elementwise=False),
    "ring": _RING,
    "split_ring": _in_lanes("all_reduce", ring.HALVES),
    "sliced_ring": _in_lanes("all_reduce", ring.SLICES),
    **{
        name: all_reduce_by_blocks(_REDUCE_SCATTER[name], _ALL_GATHER[name])
        for name in ("bidirectional_ring", "circulant")
    },
    "doubling": Algorithm(
        "all_reduce",
        recursive.all_reduce_doubling,
        recursive.all_reduce_doubling_cost,
        elementwise=False,
        additions=rounds_up,
        buffers=2,
    ),
    "halving_doubling": Algorithm(
        "all_reduce", recursive.all_reduce_halving, recursive.all_reduce_halving_cost, additions=rounds_up, buffers=2
    ),
    "tree": _TREE,
    "double_tree": double_tree.all_reduce(),
    "hierarchical": hierarchical.all_reduce(across=_RING),
    "split_hierarchical": hierarchical.all_reduce(across=_RING, ways=ring.HALVES),
    "ring_tree": hierarchical.all_reduce(across=_TREE),
    "torus": Algorithm(
        "all_reduce",
        hierarchical.torus,
        hierarchical.torus_cost,
        misfit=several_axes,
        additions=hierarchical.additions,
        buffers=2,
    ),
}
ALGORITHMS: Mapping[str, Mapping[str, Algorithm]] = {
    "all_reduce": _ALL_REDUCE,
    "reduce_scatter": _REDUCE_SCATTER,
    "all_gather": _ALL_GATHER,
    "reduce": {
        "lax": Algorithm("reduce", builtin.reduce, builtin.all_reduce_cost, elementwise=False),
        "tree": Algorithm("reduce", tree.reduce, tree.reduce_cost, elementwise=False, additions=rounds_up, buffers=2),
        "blocks": Algorithm("reduce", tree.reduce_by_blocks, tree.reduce_by_blocks_cost),
        "chain": pipelined.chain_reduce(),
    },
    "broadcast": {
        "lax": Algorithm("broadcast", builtin.broadcast, builtin.broadcast_cost),
        "tree": Algorithm("broadcast", tree.broadcast, tree.broadcast_cost, buffers=2),
        "blocks": Algorithm("broadcast", tree.broadcast_by_blocks, tree.broadcast_by_blocks_cost, buffers=2),
        "chain": pipelined.chain_broadcast(),
    },
    "scatter": {
        "lax": Algorithm("scatter", builtin.scatter, builtin.all_to_all_cost),
        "tree": Algorithm("scatter", tree.scatter, tree.scatter_cost),
    },
    "gather": {
        "lax": Algorithm("gather", builtin.gather, builtin.all_gather_cost),
        "tree": Algorithm("gather", tree.gather, tree.gather_cost),
    },
    "all_to_all": {
        "lax": Algorithm("all_to_all", builtin.all_to_all, builtin.all_to_all_cost),
        "pairwise": Algorithm("all_to_all", exchange.pairwise, exchange.pairwise_cost),
        "sliced_pairwise": Algorithm(
            "all_to_all", partial(exchange.pairwise, slices=4), partial(exchange.pairwise_cost, slices=4)
        ),
        "bruck": Algorithm("all_to_all", exchange.bruck, exchange.bruck_cost, buffers=2),
    },
    "permute": {
        "lax": Algorithm("permute", builtin.permute, builtin.permute_cost),
    },
    "barrier": {
        "lax": Algorithm("barrier", builtin.barrier, builtin.barrier_cost),
        "circulant": Algorithm("barrier", circulant.barrier, circulant.barrier_cost),
    },
}
