"""The collectives of `jax.lax`, as peers of the algorithms: XLA and the hardware's library choose how.

All results vary over the axis, as those of the kernels do, also where `jax.lax` knows them to be equal everywhere.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lab.collectives.cost import Cost, collective, rounds
from lab.collectives.tree import only_on
from lab.collectives.wires import Axis, Op, block_size
from lab.ledger import Kind
from meshes.axes import Axes
from meshes.errors import Unusable

REDUCTIONS = {jnp.add: jax.lax.psum, jnp.maximum: jax.lax.pmax, jnp.minimum: jax.lax.pmin}


def all_reduce(x: jax.Array, axis: Axis, op: Op) -> jax.Array:
    if op not in REDUCTIONS:
        raise Unusable(f"all_reduce by lax: found op {op}, expected jnp.add, jnp.maximum or jnp.minimum; name another algorithm")
    return jax.lax.pcast(REDUCTIONS[op](x, axis), axis, to="varying")


def reduce_scatter(x_PC: jax.Array, axis: Axis, op: Op) -> jax.Array:
    if op is not jnp.add:
        raise Unusable(f"reduce_scatter by lax: found op {op}, expected jnp.add; name another algorithm")
    return jax.lax.psum_scatter(x_PC, axis)


def all_gather(x_C: jax.Array, axis: Axis) -> jax.Array:
    return jax.lax.all_gather(x_C, axis)


def all_to_all(x_PC: jax.Array, axis: Axis) -> jax.Array:
    return jax.lax.all_to_all(x_PC, axis, 0, 0, tiled=True)


def reduce(x: jax.Array, axis: Axis, root: int, op: Op) -> jax.Array:
    """An all_reduce of which all but the root forget the result."""
    return only_on(root, all_reduce(x, axis, op), axis)


def broadcast(x: jax.Array, axis: Axis, root: int) -> jax.Array:
    """A sum of zeros and one array: `jax.lax` has no broadcast that every backend can run."""
    return all_reduce(only_on(root, x, axis), axis, jnp.add)


def scatter(x_PC: jax.Array, axis: Axis, root: int) -> jax.Array:
    """A reduce_scatter of zeros and one array."""
    return reduce_scatter(only_on(root, x_PC, axis), axis, jnp.add)


def gather(x_C: jax.Array, axis: Axis, root: int) -> jax.Array:
    """An all_gather of which all but the root forget the result."""
    return only_on(root, all_gather(x_C, axis), axis)


def barrier(axis: Axis) -> jax.Array:
    return all_reduce(jax.lax.axis_index(axis), axis, jnp.maximum) + 1


def all_reduce_cost(axes: Axes, elements: int) -> Cost:
    """Also of a reduce, a broadcast and a barrier."""
    return rounds(collective(Kind.ALL_REDUCE, axes, elements))


def reduce_scatter_cost(axes: Axes, elements: int) -> Cost:
    """Also of a scatter."""
    return rounds(collective(Kind.REDUCE_SCATTER, axes, axes.size * block_size(elements, axes.size)))


def all_gather_cost(axes: Axes, elements: int) -> Cost:
    """Also of a gather."""
    return rounds(collective(Kind.ALL_GATHER, axes, axes.size * block_size(elements, axes.size)))


def all_to_all_cost(axes: Axes, elements: int) -> Cost:
    return rounds(collective(Kind.ALL_TO_ALL, axes, axes.size * block_size(elements, axes.size)))
