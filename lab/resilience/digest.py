"""Digests of arrays that do not depend on how they are sharded.

A digest is the sum, modulo 2^32, of a hash of each element with its place. Integers add up to the same in any order, so
that a restored array, a replica and a step that is run again can be compared by eight bytes a device: each device reads
its shard once and sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

_SEEDS = (0x9E3779B9, 0x85EBCA6B)


def digests(arrays: Mapping[str, jax.Array]) -> dict[str, str]:
    """The digest of each array, 16 hexadecimal digits: the same of equal arrays under every sharding.

    An element that differs in any bit always changes it, since the hash of a place is a bijection; other changes go
    unseen with a chance of 2^-64. It tells -0.0 from 0.0, and one NaN from another. Every process of the arrays must
    ask.

    Args:
      arrays: each on a mesh, with a `NamedSharding`.
    """
    firsts = {name: [shard.replica_id == 0 for shard in in_order(x)] for name, x in arrays.items()}
    return {name: _text(total) for name, total in _totals(arrays, firsts).items()}


def changed(arrays: Mapping[str, jax.Array], expected: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the arrays of which some device's shard is not that of the array with the expected digest; each copy
    counts."""
    every = {name: [True] * len(x.addressable_shards) for name, x in arrays.items()}
    totals = _totals(arrays, every)
    return tuple(
        name
        for name, x in sorted(arrays.items())
        if _text(totals[name])
        != _text(_copies(x) * np.array([int(expected[name][:8], 16), int(expected[name][8:], 16)]))
    )


def shard_digests(arrays: Mapping[str, jax.Array]) -> dict[str, np.ndarray]:
    """Of each array the digests of the shards of this process' devices, uint64 [devices, 2], in the order of
    `in_order`; those of equal shards are equal."""
    # All are under way before the first is awaited; none waits for another device.
    found = {name: _program(x.sharding)(x, _starts(x), _strides(x)) for name, x in sorted(arrays.items())}
    return {
        name: np.concatenate([np.asarray(shard.data) for shard in in_order(digest)]).astype(np.uint64)
        for name, digest in found.items()
    }


def in_order(x: jax.Array) -> list[Any]:
    """The shards of this process by the ids of their devices."""
    return sorted(x.addressable_shards, key=lambda shard: shard.device.id)


def _totals(arrays: Mapping[str, jax.Array], counted: Mapping[str, Iterable[bool]]) -> dict[str, np.ndarray]:
    """The sum of the digests of those shards that count, of all processes."""
    parts = shard_digests(arrays)
    sums = np.array([parts[name][np.array(counted[name])].sum(0) for name in sorted(arrays)])
    if jax.process_count() > 1:
        # JAX would narrow 64 bits.
        sums = multihost_utils.process_allgather((sums % 2**32).astype(np.uint32)).astype(np.uint64).sum(0)
    return dict(zip(sorted(arrays), sums, strict=True))


def _text(total: np.ndarray) -> str:
    first, second = (int(each) % 2**32 for each in total)
    return f"{first:08x}{second:08x}"


def _copies(x: jax.Array) -> int:
    """How many devices have an element."""
    return x.sharding.num_devices * int(np.prod(x.sharding.shard_shape(x.shape))) // max(1, x.size)


@lru_cache(maxsize=1024)
def _program(sharding: NamedSharding) -> Any:
    """(x, starts of the shards [devices, dims], strides [dims]) to the digests of the shards [devices, 2]."""
    mesh = sharding.mesh
    by_device = PartitionSpec(mesh.axis_names)
    return jax.jit(
        jax.shard_map(
            _digest,
            mesh=mesh,
            in_specs=(sharding.spec, by_device, PartitionSpec()),
            out_specs=by_device,
            check_vma=False,
        )
    )


def _digest(x: jax.Array, starts_1N: jax.Array, strides_N: jax.Array) -> jax.Array:
    words = _words(x)
    place = jnp.zeros(words.shape, jnp.uint32)
    for dim in range(words.ndim):
        place += (jax.lax.broadcasted_iota(jnp.uint32, words.shape, dim) + starts_1N[0, dim]) * strides_N[dim]
    hashes = [_mixed(words + _mixed(place + jnp.uint32(seed))) for seed in _SEEDS]
    return jnp.stack([jnp.sum(each, dtype=jnp.uint32) for each in hashes])[None]


def _starts(x: jax.Array) -> jax.Array:
    mesh: Mesh = cast(Any, x.sharding).mesh
    where = x.sharding.devices_indices_map(x.shape)
    starts = [
        [each.indices(size)[0] for each, size in zip(where[device], x.shape, strict=True)]
        for device in mesh.devices.flat
    ]
    table = np.array(starts, np.uint64).reshape(mesh.size, x.ndim) % 2**32
    table = np.concatenate([table, np.zeros((mesh.size, 1))], axis=1).astype(np.uint32)
    by_device = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    return jax.make_array_from_callback(table.shape, by_device, lambda index: table[index])


def _strides(x: jax.Array) -> np.ndarray:
    """Of each dim, and of the words of an element."""
    words = max(1, x.dtype.itemsize // 4)
    strides = [words]
    for size in reversed(x.shape):
        strides.append(strides[-1] * size % 2**32)
    return np.array([*reversed(strides[:-1]), 1], np.uint32)


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
