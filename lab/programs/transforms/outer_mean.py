"""The mean over replicas of what each has changed (Ch. 29), in float32 or in blocks of 8- or 4-bit integers.

In few bits nothing can be summed on the way: each replica sends its part of every other one's chunk, which sums in
float32, and the sums are quantised again and gathered (Dettmers et al. 2022 for the blocks; Douillard et al. 2025,
arXiv:2501.18512, for four bits).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import jax
import jax.numpy as jnp

from lab.core.ledger import Kind, Provenance, Transfer
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.programs.strategies.terms import UPDATE, transfer

BITS = {"f32": 32, "int8": 8, "int4": 4}
BLOCK = 256
"""Elements that share one float32 scale."""
SCALE_BYTES = 4
CHUNK = 128 * BLOCK
"""What a rank sums is filled up to a multiple of it, so that its scales fill the tiles of a TPU: it would else sum what
it is asked to gather (T7)."""


def check_format(name: str) -> None:
    if name not in BITS:
        raise UsageError(f"outer={name}: expected {', '.join(BITS)}")


def mean(x: jax.Array, axis: str, bits: int) -> jax.Array:
    """The mean of `x`, float32, over `axis` inside `jax.shard_map`; equal on all ranks.

    Args:
      bits: 32: one all-reduce. 8 or 4: two exchanges of integers with their scales, and as many roundings: an entry is
        off by at most the largest of its block over 2^(bits - 1) - 1.
    """
    if bits == 32:
        return jax.lax.pmean(x, axis)
    R = jax.lax.axis_size(axis)
    x_RC = jnp.pad(x.ravel(), (0, R * _chunk(x.size, R) - x.size)).reshape(R, -1)
    q_RC, scale_RN = (_swapped(each, axis) for each in quantized(x_RC, bits))
    mean_1C = jnp.mean(_restored(q_RC, scale_RN, bits), axis=0, keepdims=True)
    q_RC, scale_RN = (jax.lax.all_gather(each, axis, tiled=True, to="invarying") for each in quantized(mean_1C, bits))
    return _restored(q_RC, scale_RN, bits).ravel()[: x.size].reshape(x.shape)


def _swapped(x_RC: jax.Array, axis: str) -> jax.Array:
    """Row r goes to rank r, and comes from it."""
    return jax.lax.all_to_all(x_RC, axis, split_axis=0, concat_axis=0, tiled=True)


def quantized(x_RC: jax.Array, bits: int) -> tuple[jax.Array, jax.Array]:
    """Integers of at most 2^(bits - 1) - 1, in bytes [R, C bits / 8], and a scale for each block [R, C / BLOCK]."""
    x_RNB = x_RC.reshape(x_RC.shape[0], -1, BLOCK)
    largest = 2 ** (bits - 1) - 1
    scale_RN = jnp.max(jnp.abs(x_RNB), axis=-1) / largest
    q_RNB = jnp.round(x_RNB / jnp.where(scale_RN > 0, scale_RN, 1.0)[..., None]).astype(jnp.int8)
    q_RC = q_RNB.reshape(x_RC.shape)
    return (_packed(q_RC) if bits == 4 else q_RC), scale_RN


def _restored(q_RC: jax.Array, scale_RN: jax.Array, bits: int) -> jax.Array:
    """The inverse of `quantized`, float32 [R, C]."""
    whole_RC = _unpacked(q_RC) if bits == 4 else q_RC
    x_RNB = whole_RC.reshape(*scale_RN.shape, BLOCK).astype(jnp.float32) * scale_RN[..., None]
    return x_RNB.reshape(whole_RC.shape)


def _packed(q_RC: jax.Array) -> jax.Array:
    """Two in a byte: the first half of a row in the low bits, the second in the high ones."""
    low, high = jnp.split(q_RC.view(jnp.uint8), 2, axis=1)
    return (low & 0xF) | (high << 4)


def _unpacked(packed_RC: jax.Array) -> jax.Array:
    signed = packed_RC.view(jnp.int8)
    # Shifts of signed integers keep the sign.
    return jnp.concatenate(((signed << 4) >> 4, signed >> 4), axis=1)


def _chunk(elements: int, ranks: int) -> int:
    """What one rank sums."""
    return -(-elements // (ranks * CHUNK)) * CHUNK


def sent(scope: str, dims: tuple[int, ...], bits: int, axis: str, executions: int, axes: Axes) -> Iterator[Transfer]:
    """What theory asks for of the `mean` of an array with these dims on one device; scales are transfers of their
    own."""
    elements, R = prod(dims), axes[axis]
    if bits == 32:
        stated = Provenance(dims=dims)
        yield transfer(Kind.ALL_REDUCE, scope, (axis,), 4 * elements, UPDATE, "f32", executions, axes, stated)
        return
    whole = R * _chunk(elements, R)
    for kind in (Kind.ALL_TO_ALL, Kind.ALL_GATHER):
        for dtype, payload in (
            ("s8" if bits == 8 else "u8", whole * bits // 8),
            ("f32", whole // BLOCK * SCALE_BYTES),
        ):
            yield transfer(kind, scope, (axis,), payload, UPDATE, dtype, executions, axes)
