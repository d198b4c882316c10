"""How a checkpoint is read so that each chunk of the store is read once: in equal parts cut between chunks, from where
devices send one another what they lack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, product
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lab.meshes.axes import Axes
from lab.redistribution.bound import least_bytes
from lab.redistribution.kernel import redistribute
from lab.redistribution.placement import Array, Placement, Split

Way = tuple[Placement, Placement, Mesh]
"""From one placement to another."""


@lru_cache(maxsize=1024)
def by_chunks(shape: tuple[int, ...], chunk: tuple[int, ...], after: NamedSharding) -> NamedSharding:
    """How an array is read with as few elements as can be by the device that reads most: a chunk is read whole, and so
    a layout that cuts through chunks reads some of them many times. From there devices send one another what they
    lack: of layouts that read as little, it is the one after which they lack least, and then one of small parts.

    Returns:
      On the mesh of `of_prime_axes(after)`.
    """
    wanted = of_prime_axes(after)
    devices, axes = wanted.mesh.size, Axes.of(wanted.mesh.shape)
    # For each dim, how much of it a device reads, by the number of parts.
    read = [
        {
            n: size * max(-(-(i + 1) * extent // (n * size)) - i * extent // (n * size) for i in range(n))
            for n in range(1, devices + 1)
            if devices % n == 0 == extent % n
        }
        for extent, size in zip(shape, chunk, strict=True)
    ]
    most_read = {
        parts: prod(of_dim[n] for of_dim, n in zip(read, parts, strict=True))
        for parts in product(*read)
        if devices % prod(parts) == 0
    }
    there, array = Placement(dims_of(wanted, len(shape))), Array(shape)
    found = min(
        (_split(there, axes, parts) for parts, elements in most_read.items() if elements == min(most_read.values())),
        key=lambda here: (least_bytes(here, there, array, axes), here.local_shape(array, axes)),
    )
    return NamedSharding(wanted.mesh, PartitionSpec(*found.dims))


def _split(wanted: Placement, axes: Axes, parts: Sequence[int]) -> Placement:
    """Each dim in so many parts, by the axes that split it in `wanted` before others."""
    free, found, missing = list(axes.names), [list[str]() for _ in parts], list(parts)
    for own in (True, False):
        for dim, names in enumerate(wanted.dims):
            for name in names if own else tuple(free):
                if name in free and missing[dim] % axes[name] == 0:
                    free.remove(name)
                    found[dim].append(name)
                    missing[dim] //= axes[name]
    return Placement(tuple(map(tuple, found)))


def of_prime_axes(sharding: NamedSharding) -> NamedSharding:
    """The same, with each axis of the mesh as several of prime sizes, the largest first: of those more layouts can be
    made."""
    split = {
        name: {f"{name}.{i}": factor for i, factor in enumerate(_factors(size))}
        for name, size in sharding.mesh.shape.items()
    }
    sizes = {name: factor for each in split.values() for name, factor in each.items()}
    mesh = Mesh(sharding.mesh.devices.reshape(tuple(sizes.values())), tuple(sizes))
    dims = dims_of(sharding, len(sharding.spec))
    return NamedSharding(
        mesh, PartitionSpec(*(tuple(part for name in names for part in split[name]) for names in dims))
    )


def _factors(size: int) -> list[int]:
    smallest = next((n for n in range(2, size + 1) if size % n == 0), None)
    return [*_factors(size // smallest), smallest] if smallest else []


def dims_of(sharding: NamedSharding, count: int) -> Split:
    """Of each of so many dims the axes that split it."""
    return Placement.of(*sharding.spec, *[None] * (count - len(sharding.spec))).dims


def mover(parts: Mapping[str, Any], after: Mapping[str, NamedSharding]) -> Callable[..., Any]:
    """The program that gives arrays other shardings, by the cheapest routes of `lab.redistribution`.

    Args:
      parts: arrays, or shapes with shardings, each as `by_chunks` reads it.
    """
    ways = {name: way(x.sharding, after[name], x.ndim) for name, x in parts.items()}

    def program(x: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return {name: _moved(array, ways[name]) for name, array in x.items()}

    return jax.jit(program, out_shardings=dict(after))


def _moved(x: jax.Array, way: Way) -> jax.Array:
    """As integers: a CPU's collectives widen 16-bit floats, which changes the bits of what is no number."""
    before, after, mesh = way
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # Whatever mesh the caller has set.
        moved = redistribute(x.view(f"u{x.dtype.itemsize}") if is_float else x, before, after, mesh)
        return moved.view(x.dtype) if is_float else moved


def way(before: NamedSharding, after: NamedSharding, dims: int) -> Way:
    """Both as placements on one mesh, with no more axes than it takes to tell them: the fewer, the fewer ways to try.

    Args:
      before: on the mesh of `of_prime_axes(after)`, as `by_chunks` gives it.
    """
    wanted = of_prime_axes(after)
    here, there = (Placement(dims_of(one, dims)) for one in (before, wanted))
    axes = Axes.of(wanted.mesh.shape)
    for name in axes.names[1:]:
        previous = axes.names[axes.names.index(name) - 1]
        if all(_follows(previous, name, placement) for placement in (here, there)):
            axes = axes.merge((previous, name), previous)
            here, there = (
                Placement(tuple(tuple(n for n in dim if n != name) for dim in one.dims)) for one in (here, there)
            )
    return here, there, Mesh(wanted.mesh.devices.reshape(axes.sizes), axes.names)


def _follows(first: str, second: str, placement: Placement) -> bool:
    """Whether an axis splits what the one before it splits, or neither splits anything."""
    pairs = {pair for dim in placement.dims for pair in pairwise(dim)}
    return (first, second) in pairs or not {first, second} & placement.axes
