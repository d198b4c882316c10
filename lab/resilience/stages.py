"""The layers of a pipeline's state as one dim, in which checkpoints have them: any number of stages can restore them.

A pipeline of one chunk a stage has its layers as [1, stages, layers of a stage, ...]. Merged, each device keeps what it
has. Several chunks and uneven stages have no such order, and are saved as they are: the same stages restore them.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from lab.meshes.axes import PIPE


def merged(like: Any) -> Any:
    """Shapes with shardings of the same state with its layers as one dim."""
    return jax.tree.map(_merged, like)


def merge(state: Any) -> Any:
    """The state with its layers as one dim; nothing is sent."""
    return _reshaped(state, merged(state))


def split(state: Any, like: Any) -> Any:
    """The inverse of `merge`: the state by stages, as `like` has it."""
    return _reshaped(state, like)


def _merged(x: Any) -> jax.ShapeDtypeStruct:
    spec = x.sharding.spec
    if x.ndim < 3 or x.shape[0] != 1 or tuple(spec[:3]) != (None, PIPE, None):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
    sharding = NamedSharding(x.sharding.mesh, PartitionSpec(PIPE, *spec[3:]))
    return jax.ShapeDtypeStruct((x.shape[1] * x.shape[2], *x.shape[3:]), x.dtype, sharding=sharding)


def _reshaped(state: Any, like: Any) -> Any:
    if jax.tree.map(lambda x: x.shape, state) == jax.tree.map(lambda x: x.shape, like):
        return state
    shardings = jax.tree.map(lambda x: x.sharding, like)
    return jax.jit(
        lambda state: jax.tree.map(lambda x, like: x.reshape(like.shape), state, like), out_shardings=shardings
    )(state)
