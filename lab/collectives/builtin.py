"""The collectives of `jax.lax`, as peers of the algorithms: XLA and the hardware's library choose how.

All results vary over the axis, as those of the kernels do, also where `jax.lax` knows them to be equal everywhere. What
only moves data is made of what only moves data: a sum of one array and zeros would turn -0.0 into 0.0, and truth values
into numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from lab.collectives.cost import Cost, Pairs, collective, rounds
from lab.collectives.cost import permute as message
from lab.collectives.tree import only_on
from lab.collectives.wires import Axis, Op, along, block_size, join, split
from lab.core.ledger import Kind
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError

REDUCTIONS: dict[Op, Callable[[jax.Array, Axis], jax.Array]] = {
    jnp.add: jax.lax.psum,
    jnp.maximum: jax.lax.pmax,
    jnp.minimum: jax.lax.pmin,
}


def all_reduce(x: jax.Array, axis: Axis, op: Op) -> jax.Array:
    if op not in REDUCTIONS:
        raise UsageError(
            f"all_reduce by lax: found op {op}, expected jnp.add, jnp.maximum or jnp.minimum; name another algorithm"
        )
    # jax.lax.psum counts truth values, where jnp.add joins them.
    reduction = jax.lax.pmax if op is jnp.add and x.dtype == bool else REDUCTIONS[op]
    return jax.lax.pcast(reduction(x, axis), axis, to="varying")


def reduce_scatter(x_PC: jax.Array, axis: Axis, op: Op) -> jax.Array:
    if op is not jnp.add or x_PC.dtype == bool:
        raise UsageError(
            f"reduce_scatter by lax: found op {op} of {x_PC.dtype}, expected jnp.add of numbers; name another algorithm"
        )
    return jax.lax.psum_scatter(x_PC, axis)


def all_gather(x_C: jax.Array, axis: Axis) -> jax.Array:
    return jax.lax.all_gather(x_C, axis)


def all_to_all(x_PC: jax.Array, axis: Axis) -> jax.Array:
    return jax.lax.all_to_all(x_PC, axis, 0, 0, tiled=True)


def reduce(x: jax.Array, axis: Axis, root: int, op: Op) -> jax.Array:
    """An all_reduce of which all but the root forget the result."""
    return only_on(root, all_reduce(x, axis, op), axis)


def broadcast(x: jax.Array, axis: Axis, root: int) -> jax.Array:
    """A scatter, then an all_gather: `jax.lax` has no broadcast that every backend can run. Sends what an all_reduce
    would."""
    x_PC = split(x.reshape(-1), jax.lax.axis_size(axis))
    return join(all_gather(scatter(x_PC, axis, root), axis), x.size).reshape(x.shape)


def scatter(x_PC: jax.Array, axis: Axis, root: int) -> jax.Array:
    """An all_to_all of which each rank keeps the block of the root. Sends what a reduce_scatter would."""
    return all_to_all(x_PC, axis)[root]


def gather(x_C: jax.Array, axis: Axis, root: int) -> jax.Array:
    """An all_gather of which all but the root forget the result."""
    return only_on(root, all_gather(x_C, axis), axis)


def permute(x: jax.Array, axis: Axis, pairs: int | Pairs = 1) -> jax.Array:
    return jax.lax.ppermute(x, axis, along(pairs, jax.lax.axis_size(axis)))


def barrier(rank: jax.Array, axis: Axis) -> jax.Array:
    return all_reduce(rank, axis, jnp.maximum) + 1


def all_reduce_cost(axes: Axes, elements: int) -> Cost:
    """Also of a reduce."""
    return rounds(collective(Kind.ALL_REDUCE, axes, elements))


def reduce_scatter_cost(axes: Axes, elements: int) -> Cost:
    return rounds(collective(Kind.REDUCE_SCATTER, axes, axes.size * block_size(elements, axes.size)))


def all_gather_cost(axes: Axes, elements: int) -> Cost:
    """Also of a gather."""
    return rounds(collective(Kind.ALL_GATHER, axes, axes.size * block_size(elements, axes.size)))


def all_to_all_cost(axes: Axes, elements: int) -> Cost:
    """Also of a scatter."""
    return rounds(collective(Kind.ALL_TO_ALL, axes, axes.size * block_size(elements, axes.size)))


def broadcast_cost(axes: Axes, elements: int) -> Cost:
    return all_to_all_cost(axes, elements) + all_gather_cost(axes, elements)


def permute_cost(axes: Axes, elements: int, pairs: int | Pairs = 1) -> Cost:
    return rounds(message(axes, along(pairs, axes.size), elements))


def barrier_cost(axes: Axes, elements: int) -> Cost:
    """Of one number."""
    return all_reduce_cost(axes, 1)
