"""Several gradients as one vector."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import jax
import jax.numpy as jnp
import numpy as np

from lab.programs.models.shape import indexable
from lab.programs.strategies.exchange import Sizes

LANES = 128
"""Of a vector that is no multiple TPUs gather nothing as it is, but sum it over all ranks, zeros beside it: twice the
bytes (T7)."""


def count(sizes: Sequence[Sizes]) -> int:
    """Numbers of all; raises UsageError where one vector cannot hold them."""
    numbers = sum(map(prod, sizes))
    indexable(**{"numbers of gradients in one vector": numbers})
    return numbers


def flat(arrays: Sequence[jax.Array]) -> jax.Array:
    return jnp.concatenate([x.ravel() for x in arrays])


def apart(x_N: jax.Array, like: Sequence[Sizes]) -> list[jax.Array]:
    """The way back, to arrays of these sizes."""
    ends = np.cumsum([prod(sizes) for sizes in like])[:-1]
    return [part.reshape(sizes) for part, sizes in zip(jnp.split(x_N, ends), like, strict=True)]
