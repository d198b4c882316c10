"""Digests of arrays that do not depend on how they are sharded.

A digest is the sum, modulo 2^32, of a hash of each element with its place: integers add up to the same in any order, so
that a restored array, a replica and a step that is run again can be compared by eight bytes. Each device reads its own
shard once and sends eight bytes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

_SEEDS = (0x9E3779B9, 0x85EBCA6B)


def digest(x: jax.Array) -> jax.Array:
    """uint32 [2] of an array of any shape and sharding; equal arrays have equal digests under every sharding.

    A single element that differs in any bit always changes both words, since the hash of a place is a bijection; other
    changes go unseen with a chance of 2^-64. It tells -0.0 from 0.0, and one NaN from another.
    """
    words = _words(x)
    place = jnp.zeros(words.shape, jnp.uint32)
    stride = 1
    for dim in reversed(range(words.ndim)):
        place += jax.lax.broadcasted_iota(jnp.uint32, words.shape, dim) * jnp.uint32(stride % 2**32)
        stride *= words.shape[dim]
    return jnp.stack([jnp.sum(_mixed(words + _mixed(place + jnp.uint32(seed))), dtype=jnp.uint32) for seed in _SEEDS])


def _words(x: jax.Array) -> jax.Array:
    """The bits of each element: uint32, of wider types with a last dim of their words."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    narrow = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    return jax.lax.bitcast_convert_type(x, narrow).astype(jnp.uint32)


def _mixed(x: jax.Array) -> jax.Array:
    """The finalizer of MurmurHash3 (Appleby 2011), a bijection of uint32."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


@jax.jit
def _digests(arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: digest(x) for name, x in arrays.items()}


def digests(arrays: dict[str, Any]) -> dict[str, str]:
    """The digest of each array, 16 hexadecimal digits; in one program for all of them."""
    found = jax.device_get(_digests(arrays))
    return {name: f"{int(first):08x}{int(second):08x}" for name, (first, second) in sorted(found.items())}
