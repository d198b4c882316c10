"""A route as a program: what `jax.shard_map` runs on each block to send the planned bytes and no more.

`over` are the axes of a move in the mesh's order, P their product; B stands for the dims of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lab.core.dtypes import DTYPES
from lab.core.ledger import Kind
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.redistribution.placement import Array, Placement, Split
from lab.redistribution.plan import Move, Route, route


def redistribute(x: jax.Array, before: Placement, after: Placement, mesh: Mesh) -> jax.Array:
    """`x`, which lies as `before`, placed as `after` by the cheapest route, bit for bit but for the order of sums.

    A partial sum over P devices is given as the stack [P, ...] of its summands, and so is a result that is one: see
    `sharding`.

    Args:
      x: an array of any shape; where it does not lie as `before`, JAX brings it there first.
    Raises:
      UsageError: see `route`; or a stack of another number of summands.

    >>> y = redistribute(x, Placement.of("data", None), Placement.of(None, "data"), mesh)  # one all_to_all
    """
    axes = Axes.of(dict(mesh.shape))
    moves = route(before, after, _summed(x, before, axes), axes)

    def step(x_B: jax.Array) -> jax.Array:
        block = follow(x_B[0] if before.partial else x_B, moves, axes)
        return block[None] if after.partial else block

    # What a gather leaves equal on all devices is not known to be so.
    return jax.shard_map(step, mesh=mesh, check_vma=False, in_specs=_spec(before, axes), out_specs=_spec(after, axes))(
        x
    )


def sharding(placement: Placement, mesh: Mesh) -> NamedSharding:
    """How JAX places the array, or the stack [P, ...] of the summands of a partial sum over P devices: one on each."""
    return NamedSharding(mesh, _spec(placement, Axes.of(dict(mesh.shape))))


def shape(placement: Placement, array: Array, mesh: Mesh) -> jax.ShapeDtypeStruct:
    """What `redistribute` takes, without values."""
    stack = (prod(mesh.shape[axis] for axis in placement.partial),) if placement.partial else ()
    return jax.ShapeDtypeStruct((*stack, *array.shape), DTYPES[array.dtype][0], sharding=sharding(placement, mesh))


def _spec(placement: Placement, axes: Axes) -> PartitionSpec:
    stack = (axes.ordered(placement.partial),) if placement.partial else ()
    return PartitionSpec(*stack, *placement.entries)


def _summed(x: jax.Array, before: Placement, axes: Axes) -> Array:
    """The array that is placed, of a stack that which its summands add up to."""
    array = Array.of(x)
    if not before.partial:
        return array
    summands = prod(axes[axis] for axis in before.partial)
    if array.shape[:1] != (summands,):
        raise UsageError(
            f"x of shape {array.shape}: a partial sum over {'*'.join(axes.ordered(before.partial))} is a stack of "
            f"{summands} summands"
        )
    return replace(array, shape=array.shape[1:])


def follow(x_B: jax.Array, moves: Route, axes: Axes) -> jax.Array:
    """One device's block after all moves, inside `jax.shard_map`."""
    for move in moves:
        x_B = _step(x_B, move, axes)
    return x_B


def _step(x_B: jax.Array, move: Move, axes: Axes) -> jax.Array:
    over = axes.ordered(move.over)
    taken, added = (_beyond(move.before.dims, move.after.dims), _beyond(move.after.dims, move.before.dims))
    match move.kind:
        case None:
            return _cut(x_B, added, over, axes)[lax.axis_index(over)]
        case Kind.ALL_GATHER:
            return _pasted(lax.all_gather(x_B, over), taken, over, axes)
        case Kind.ALL_TO_ALL:
            return _pasted(lax.all_to_all(_cut(x_B, added, over, axes), over, 0, 0), taken, over, axes)
        case Kind.COLLECTIVE_PERMUTE:
            return lax.ppermute(x_B, over, move.pairs(axes))
        case Kind.REDUCE_SCATTER:
            return lax.psum_scatter(_cut(x_B, added, over, axes), over)
        case Kind.ALL_REDUCE:
            return lax.psum(x_B, over)
    raise AssertionError(f"no step for {move.kind}")


def _beyond(dims: Split, kept: Split) -> Split:
    """The minor axes of each dim that `kept` lacks."""
    return tuple(dim[len(rest) :] for dim, rest in zip(dims, kept, strict=True))


def _cut(x_B: jax.Array, added: Split, over: Sequence[str], axes: Axes) -> jax.Array:
    """A block in pieces [P, ...], one for each device of a group: `added` are the axes that cut each dim."""
    parts = [
        (*(axes[axis] for axis in dim), size // prod(axes[axis] for axis in dim))
        for size, dim in zip(x_B.shape, added, strict=True)
    ]
    x = x_B.reshape([size for part in parts for size in part])
    front, rest = _places(added, over)
    return x.transpose(front + rest).reshape(-1, *(part[-1] for part in parts))


def _pasted(x_PB: jax.Array, taken: Split, over: Sequence[str], axes: Axes) -> jax.Array:
    """The block that the pieces of a group make up: the inverse of `_cut`."""
    x = x_PB.reshape(*(axes[axis] for axis in over), *x_PB.shape[1:])
    front, rest = _places(taken, over)
    x = x.transpose(np.argsort(front + rest))
    return x.reshape([size * prod(axes[axis] for axis in dim) for size, dim in zip(x_PB.shape[1:], taken, strict=True)])


def _places(split: Split, over: Sequence[str]) -> tuple[list[int], list[int]]:
    """Where, among each dim's axes followed by what is left of the dim, the axes `over` and what is left stand."""
    labels: list[str | int] = []
    for i, dim in enumerate(split):
        labels += [*dim, i]
    return [labels.index(axis) for axis in over], [labels.index(i) for i in range(len(split))]
