"""Several axes one by one: sum inside, across with what is left, then gather inside.

Axes stand outermost first, as in a mesh: the last one is inside, on the fastest links. Blocks shrink with every axis,
so what is sent adds up to what a ring over all ranks sends: 2 (G - 1) / G + 2 (N - 1) / (N G) = 2 (P - 1) / P, for P =
N G.
"""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp

from lab.collectives import ring
from lab.collectives.algorithm import Algorithm, several_axes
from lab.collectives.cost import Cost, at_once
from lab.collectives.wires import Op, block_size, join, split
from lab.meshes.axes import Axes

Names = tuple[str, ...]
T = TypeVar("T")


def all_reduce(across: Algorithm, ways: ring.Ways = ring.WHOLE) -> Algorithm:
    """Rings inside, `across` over the outermost axis (Ch. 12, `ch12.hier2d`; Ch. 13a, `ch13a.levels`), lane by lane.

    Cost of N x G ranks: 2 (G - 1) steps of n/G, and those of `across` for n/G; of k lanes k times as many, of a k-th
    each.
    """

    def run(x: jax.Array, axis: Names, op: Op) -> jax.Array:
        *outer, inner = axis
        if not outer:
            return across.run(x, axis, op=op)
        x_GC = split(x.reshape(-1), jax.lax.axis_size(inner))
        lanes = ring.lanes_of(x_GC.shape[1], ways)
        sums, spent_GC = ring.summed(x_GC, inner, op, lanes)
        reduced_GC, _ = ring.gathered([run(sum_C, tuple(outer), op) for sum_C in sums], inner, lanes, spent_GC)
        return join(reduced_GC, x.size).reshape(x.shape)

    def cost(axes: Axes, elements: int) -> Cost:
        if len(axes.names) == 1:
            return across.cost(axes, elements)
        inside = ring.half_cost(_inner(axes), elements, ways)
        lanes = ring.lanes_of(block_size(elements, _inner(axes).size), ways)
        return inside + sum((cost(_outer(axes), lane.size) for lane in lanes), Cost()) + inside

    def in_a_row(axes: Axes) -> int:
        return across.additions(axes) if len(axes.names) == 1 else axes.sizes[-1] - 1 + in_a_row(_outer(axes))

    # What `across` holds as often as its part of the buffer is at most that many blocks.
    return Algorithm("all_reduce", run, cost, misfit=several_axes, additions=in_a_row, blocks=max(1, across.buffers))


def additions(axes: Axes) -> int:
    """Through how many additions in a row a term goes in rings along one axis after the other."""
    return sum(size - 1 for size in axes.sizes)


def reduce_scatter(x_PC: jax.Array, axis: Names, op: Op) -> jax.Array:
    """[P, C] to [C]: block r on rank r in row-major order, the innermost axis first.

    Cost: sum of (p - 1) steps over the axes; sends (P - 1) / P of the buffer.
    """
    *outer, inner = axis
    if not outer:
        return ring.reduce_scatter(x_PC, axis, op)
    G = jax.lax.axis_size(inner)
    x_NGC = x_PC.reshape(x_PC.shape[0] // G, G, *x_PC.shape[1:])
    return reduce_scatter(ring.reduce_scatter(x_NGC.swapaxes(0, 1), inner, op), tuple(outer), op)


def all_gather(x_C: jax.Array, axis: Names) -> jax.Array:
    """[C] to [P, C]: block r from rank r in row-major order, the outermost axis first.

    Cost: sum of (p - 1) steps over the axes; sends (P - 1) / P of the result.
    """
    *outer, inner = axis
    if not outer:
        return ring.all_gather(x_C, axis)
    x_GNC = ring.all_gather(all_gather(x_C, tuple(outer)), inner)
    return x_GNC.swapaxes(0, 1).reshape(jax.lax.axis_size(axis), *x_C.shape)


def reduce_scatter_cost(axes: Axes, elements: int) -> Cost:
    return sum(_ring_costs(axes, block_size(elements, axes.size)), Cost())


def all_gather_cost(axes: Axes, elements: int) -> Cost:
    return sum(reversed(_ring_costs(axes, block_size(elements, axes.size))), Cost())


def torus(x: jax.Array, axis: Names, op: Op) -> jax.Array:
    """As many parts as axes, each beginning along another, so that the links of all axes carry at once.

    Cost of k axes of p ranks: 2 k (p - 1) steps; sends 2 (P - 1) / P of the buffer, 1/k of it along each axis.
    """
    x_KC, P = split(x.reshape(-1), len(axis)), jax.lax.axis_size(axis)

    def part(x_C: jax.Array, order: Names) -> jax.Array:
        return join(all_gather(reduce_scatter(split(x_C, P), order, op), order), x_C.shape[0])

    sum_KC = jnp.stack([part(x_C, _turned(axis, i)) for i, x_C in enumerate(x_KC)])
    return join(sum_KC, x.size).reshape(x.shape)


def torus_cost(axes: Axes, elements: int) -> Cost:
    k = len(axes.names)
    block = block_size(block_size(elements, k), axes.size)
    parts = [_ring_costs(Axes(_turned(axes.names, i), _turned(axes.sizes, i)), block) for i in range(k)]
    inwards = [at_once(*turn) for turn in zip(*parts, strict=True)]
    return sum(inwards + inwards[::-1], Cost())


def _ring_costs(axes: Axes, block: int) -> list[Cost]:
    """Of the rings of a reduce_scatter, innermost first."""
    if not axes.names:
        return []
    return [ring.half_cost(_inner(axes), axes.size * block), *_ring_costs(_outer(axes), block)]


def _turned(items: tuple[T, ...], by: int) -> tuple[T, ...]:
    return items[by:] + items[:by]


def _inner(axes: Axes) -> Axes:
    return Axes(axes.names[-1:], axes.sizes[-1:])


def _outer(axes: Axes) -> Axes:
    return Axes(axes.names[:-1], axes.sizes[:-1])
