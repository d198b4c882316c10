"""The laws of the book that collectives obey, each as two sides to compare on integers, bit for bit, on devices that
are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from lab.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    gather,
    permute,
    reduce,
    reduce_scatter,
    scatter,
)
from lab.harness.claim import Claim, decided
from lab.harness.collectives.program import on_ranks

BLOCK = 24
Names = tuple[str, ...]

Side = Callable[[jax.Array, jax.Array, Names], jax.Array]
"""Of x_N, y_N and the axes: N is P blocks, and P is all ranks."""


class Law(NamedTuple):
    """Two sides that are equal on every rank. `id` is of the catalogue."""

    id: str
    statement: str
    left: Side
    right: Side


def claims(laws: Sequence[Law], mesh: Mesh) -> tuple[Claim, ...]:
    """Both sides of every law, computed on the mesh in one program and compared."""
    draw = np.random.default_rng(0)
    x_PN, y_PN = (draw.integers(-99, 100, (mesh.size, mesh.size * BLOCK), np.int32) for _ in range(2))

    def both_sides(x_1N: jax.Array, y_1N: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        at = x_1N[0], y_1N[0], mesh.axis_names
        return [(law.left(*at)[None], law.right(*at)[None]) for law in laws]

    sides = jax.device_get(on_ranks(both_sides, mesh)(x_PN, y_PN))
    return tuple(_claim(law, *pair) for law, pair in zip(laws, sides, strict=True))


def _claim(law: Law, left: np.ndarray, right: np.ndarray) -> Claim:
    wrong = int((left != right).sum())
    return decided(
        law.id,
        wrong == 0,
        f"{left.size:,} integers on {len(left)} ranks, {wrong} of them differ",
        statement=law.statement,
        structural=True,
    )


def _adjoint(names: str, forward: Side, back: Side, enters: Side, leaves: Side) -> Law:
    """<f x, y> = <x, g y>, summed over ranks."""

    def left(x_N: jax.Array, y_N: jax.Array, axes: Names) -> jax.Array:
        return _product(forward(enters(x_N, y_N, axes), y_N, axes), leaves(y_N, x_N, axes), axes)

    def right(x_N: jax.Array, y_N: jax.Array, axes: Names) -> jax.Array:
        return _product(enters(x_N, y_N, axes), back(leaves(y_N, x_N, axes), y_N, axes), axes)

    return Law("ch11.duals", f"{names}: <f x, y> = <x, g y>", left, right)


def _product(a: jax.Array, b: jax.Array, axes: Names) -> jax.Array:
    return all_reduce((a * b).sum(), axes, "lax")


def _first(x_N: jax.Array, axes: Names) -> jax.Array:
    """`x` on the root, zeros elsewhere."""
    return jnp.where(jax.lax.axis_index(axes) == 0, x_N, 0)


def _mean(x_N: jax.Array, axes: Names) -> jax.Array:
    return all_reduce(x_N, axes) // jax.lax.axis_size(axes)


def _scaled(x_N: jax.Array, axes: Names) -> jax.Array:
    return x_N * jax.lax.axis_size(axes)


def _whole(x_N: jax.Array, y_N: jax.Array, axes: Names) -> jax.Array:
    return x_N


def _block(x_N: jax.Array, y_N: jax.Array, axes: Names) -> jax.Array:
    return x_N[:BLOCK]


def _of(primitive: Callable[..., jax.Array], *arguments: int) -> Side:
    return lambda x, y, axes: primitive(x, axes, *arguments)


def _by_lax(x_N: jax.Array, y_N: jax.Array, axes: Names) -> jax.Array:
    return all_reduce(x_N, axes, "lax")


def _one_by_one(x_N: jax.Array, axes: Names) -> jax.Array:
    for axis in axes:
        x_N = all_reduce(x_N, axis)
    return x_N


_LARGEST = partial(all_reduce, algorithm="lax", op=jnp.maximum)

COMPOSITION: tuple[Law, ...] = (
    Law("ch11.decomposition", "AG o RS = AR", lambda x, y, a: all_gather(reduce_scatter(x, a), a), _by_lax),
    Law(
        "ch11.decomposition",
        "AG o RS = AR for the maximum as well",
        lambda x, y, a: all_gather(reduce_scatter(x, a, op=jnp.maximum), a),
        lambda x, y, a: _LARGEST(x, a),
    ),
    Law(
        "ch11.laws",
        "RS o AG = P id, and not id",
        lambda x, y, a: reduce_scatter(all_gather(x, a), a),
        lambda x, y, a: _scaled(x, a),
    ),
    Law(
        "ch11.laws",
        "AR o AR = P AR",
        lambda x, y, a: all_reduce(all_reduce(x, a), a),
        lambda x, y, a: _scaled(all_reduce(x, a), a),
    ),
    Law(
        "ch11.laws",
        "the mean of a mean is the mean",
        lambda x, y, a: _mean(_mean(_scaled(x, a), a), a),
        _of(all_reduce),
    ),
    Law("ch11.laws", "A2A o A2A = id", lambda x, y, a: all_to_all(all_to_all(x, a), a), _whole),
    Law("ch11.laws", "a permute is undone by its inverse", lambda x, y, a: permute(permute(x, a, 1), a, -1), _whole),
    Law(
        "ch11.laws",
        "AR o permute = AR, so AR has no inverse: no group",
        lambda x, y, a: all_reduce(permute(x, a, 1), a),
        _of(all_reduce),
    ),
    Law(
        "ch11.hierarchy_of_primitives",
        "broadcast o reduce = AR",
        lambda x, y, a: broadcast(reduce(x, a), a),
        _of(all_reduce),
    ),
    Law(
        "ch11.hierarchy_of_primitives",
        "scatter o reduce = RS",
        lambda x, y, a: scatter(reduce(x, a), a),
        _of(reduce_scatter),
    ),
    Law(
        "ch11.hierarchy_of_primitives",
        "broadcast o gather = AG",
        lambda x, y, a: broadcast(gather(x, a), a),
        _of(all_gather),
    ),
    Law(
        "ch11.gather_scatter",
        "gather o scatter = id on the root",
        lambda x, y, a: gather(scatter(x, a), a),
        lambda x, y, a: _first(x, a),
    ),
    Law("ch11.gather_scatter", "scatter o gather = id", lambda x, y, a: scatter(gather(x[:BLOCK], a), a), _block),
)

ADJOINTS: tuple[Law, ...] = (
    _adjoint("broadcast and reduce", _of(broadcast), _of(reduce), _whole, _whole),
    _adjoint("scatter and gather", _of(scatter), _of(gather), _whole, _block),
    _adjoint("all_gather and reduce_scatter", _of(all_gather), _of(reduce_scatter), _block, _whole),
    _adjoint("all_reduce and itself", _of(all_reduce), _of(all_reduce), _whole, _whole),
    _adjoint("all_to_all and itself", _of(all_to_all), _of(all_to_all), _whole, _whole),
    _adjoint("permute and its inverse", _of(permute, 1), _of(permute, -1), _whole, _whole),
)

AXIS_BY_AXIS: tuple[Law, ...] = (
    Law("ch13a.regroup", "AR over all ranks = AR over each axis in turn", _of(_one_by_one), _by_lax),
    Law("ch13a.regroup", "in either order", lambda x, y, a: _one_by_one(x, a[::-1]), _by_lax),
)
