"""The mean over replicas of what each has changed (Ch. 29), in float32 or in blocks of 8- or 4-bit integers (Dettmers
et al. 2022 for the blocks; Douillard et al. 2025, arXiv:2501.18512, for four bits)."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import jax
import jax.numpy as jnp

from lab.core.ledger import Kind, Provenance, Transfer
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.programs.strategies.terms import UPDATE, transfer
from lab.programs.transforms import codecs
from lab.programs.transforms.codecs import Codec
from lab.programs.transforms.flat import LANES
from lab.programs.transforms.quantized import all_reduce, sends

BLOCK = 256
"""Numbers that share one float32 scale."""
FORMATS: dict[str, Codec | None] = {"f32": None, "int8": codecs.int8(BLOCK), "int4": codecs.int4(BLOCK)}
CHUNK = LANES * BLOCK
"""What a rank sums is filled up to a multiple of it, so that its scales fill the tiles of a TPU: it would else sum what
it is asked to gather (T7)."""


def check_format(name: str) -> None:
    if name not in FORMATS:
        raise UsageError(f"outer={name}: expected {', '.join(FORMATS)}")


def mean(x: jax.Array, axis: str, codec: Codec | None) -> jax.Array:
    """The mean of `x`, float32, over `axis` inside `jax.shard_map`; equal on all ranks.

    Args:
      codec: None: one all-reduce. Else two exchanges of integers with their scales, and as many roundings: an entry is
        off by at most the largest of its block over 2^(bits - 1) - 1.
    """
    if codec is None:
        return jax.lax.pmean(x, axis)
    ranks = jax.lax.axis_size(axis)
    x_N = jnp.pad(x.ravel(), (0, filled(x.size, ranks) - x.size))
    total_N, _ = all_reduce(codec, x_N, None, 0, (axis,))
    return total_N[: x.size].reshape(x.shape) / ranks


def filled(numbers: int, ranks: int) -> int:
    return -(-numbers // (ranks * CHUNK)) * ranks * CHUNK


def sent(
    scope: str, dims: tuple[int, ...], codec: Codec | None, axis: str, executions: int, axes: Axes
) -> Iterator[Transfer]:
    """What theory asks for of the `mean` of an array with these dims on one device; scales are transfers of their
    own."""
    numbers, ranks = prod(dims), axes[axis]
    if codec is None:
        stated = Provenance(dims=dims)
        yield transfer(Kind.ALL_REDUCE, scope, (axis,), 4 * numbers, UPDATE, "f32", executions, axes, stated)
        return
    for message in sends(codec, [(filled(numbers, ranks),)], ranks):
        yield transfer(message.kind, scope, (axis,), message.payload_bytes, UPDATE, message.dtype, executions, axes)
