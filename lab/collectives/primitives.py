"""The primitives, one signature for all algorithms of each; to be called inside `jax.shard_map`.

`x` is an array or a tree of arrays, dealt with one by one. `axis` is a mesh axis or several, outermost first; flat algorithms see several
as one, in row-major order. `algorithm` is a name from `lab.collectives.catalogue` or an `Algorithm`. Results vary over the axis.
Where a buffer has to be cut into blocks it is padded with zeros at its end, which `op` never mixes with data and the cost counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from lab.collectives.algorithm import Algorithm
from lab.collectives.catalogue import ALGORITHMS
from lab.collectives.cost import Cost, permute as permute_message, rounds
from lab.collectives.wires import Axis, Op, shift_pairs, split
from meshes.axes import Axes
from meshes.errors import Unusable

def all_reduce(x: Any, axis: Axis, algorithm: str | Algorithm = "ring", op: Op = jnp.add) -> Any:
    """Combines `x` of all ranks with `op`, on every rank.

    Args:
      x: arrays of any shape; the result has the same.
      op: associative. "doubling" and "tree" keep the order of ranks and apply it to whole arrays; the others need it elementwise and
        commutative as well.
    Raises:
      Unusable: the algorithm is unknown, or does not serve this axis or `op`.
    """
    chosen = _chosen("all_reduce", algorithm, axis)
    return _each(x, lambda leaf: chosen.run(leaf, _names(axis), op=_fitting(op, leaf, chosen)))


def reduce_scatter(x: Any, axis: Axis, algorithm: str | Algorithm = "ring", op: Op = jnp.add) -> Any:
    """Combines `x` of all ranks with `op` and leaves block r of the result on rank r.

    Args:
      x: arrays [N, ...]; the result is [ceil(N / P), ...], the last blocks padded with zeros where P does not divide N.
      op: elementwise, associative and commutative.
    Raises:
      Unusable: the algorithm is unknown, or does not serve this axis or `op`; or an array has no dim.
    """
    chosen, P = _chosen("reduce_scatter", algorithm, axis), jax.lax.axis_size(axis)
    return _each_by_rows(x, lambda leaf: chosen.run(split(leaf, P), _names(axis), op=_fitting(op, leaf, chosen)))


def all_gather(x: Any, axis: Axis, algorithm: str | Algorithm = "ring") -> Any:
    """Blocks [C, ...] of all ranks as [P C, ...], in the order of ranks, on every rank.

    Raises:
      Unusable: the algorithm is unknown, or does not serve this axis; or an array has no dim.
    """
    chosen = _chosen("all_gather", algorithm, axis)
    return _each_by_rows(x, lambda leaf: _joined(chosen.run(leaf, _names(axis))))


def reduce(x: Any, axis: Axis, root: int = 0, algorithm: str | Algorithm = "tree", op: Op = jnp.add) -> Any:
    """Combines `x` of all ranks with `op`, on rank `root`; zeros elsewhere.

    Args:
      op: associative, and commutative unless the algorithm is "tree" and the root 0; elementwise unless the algorithm is "tree".
    Raises:
      Unusable: the algorithm is unknown, or does not serve this axis or `op`; or there is no such root.
    """
    chosen = _chosen("reduce", algorithm, axis, root)
    return _each(x, lambda leaf: chosen.run(leaf, _names(axis), root=root, op=_fitting(op, leaf, chosen)))


def broadcast(x: Any, axis: Axis, root: int = 0, algorithm: str | Algorithm = "tree") -> Any:
    """`x` of rank `root`, on every rank.

    Raises:
      Unusable: the algorithm is unknown, or does not serve this axis; or there is no such root.
    """
    chosen = _chosen("broadcast", algorithm, axis, root)
    return _each(x, lambda leaf: chosen.run(leaf, _names(axis), root=root))


def scatter(x: Any, axis: Axis, root: int = 0, algorithm: str | Algorithm = "tree") -> Any:
    """Block r of `x` of rank `root`, on rank r: [N, ...] to [ceil(N / P), ...], padded with zeros.

    Raises:
      Unusable: the algorithm is unknown, or does not serve this axis; there is no such root; or an array has no dim.
    """
    chosen, P = _chosen("scatter", algorithm, axis, root), jax.lax.axis_size(axis)
    return _each_by_rows(x, lambda leaf: chosen.run(split(leaf, P), _names(axis), root=root))


def gather(x: Any, axis: Axis, root: int = 0, algorithm: str | Algorithm = "tree") -> Any:
    """Blocks [C, ...] of all ranks as [P C, ...], on rank `root`; zeros elsewhere.

    Raises:
      Unusable: the algorithm is unknown, or does not serve this axis; there is no such root; or an array has no dim.
    """
    chosen = _chosen("gather", algorithm, axis, root)
    return _each_by_rows(x, lambda leaf: _joined(chosen.run(leaf, _names(axis), root=root)))


def all_to_all(x: Any, axis: Axis, algorithm: str | Algorithm = "pairwise") -> Any:
    """Block s of the result on rank r is block r of `x` of rank s: [N, ...] to [P ceil(N / P), ...], padded with zeros.

    Raises:
      Unusable: the algorithm is unknown, or does not serve this axis; or an array has no dim.
    """
    chosen, P = _chosen("all_to_all", algorithm, axis), jax.lax.axis_size(axis)
    return _each_by_rows(x, lambda leaf: _joined(chosen.run(split(leaf, P), _names(axis))))


def permute(x: Any, axis: Axis, pairs: int | Sequence[tuple[int, int]]) -> Any:
    """Sends `x` along (source, target) pairs, or from every rank as many places on around the axis; zeros where nothing arrives."""
    along = shift_pairs(jax.lax.axis_size(axis), pairs) if isinstance(pairs, int) else pairs
    return _each(x, lambda leaf: jax.lax.ppermute(leaf, axis, along))


def barrier(axis: Axis, algorithm: str | Algorithm = "circulant") -> jax.Array:
    """int32[]: the number of ranks, known only once all of them have come this far. What shall wait must depend on it."""
    return _chosen("barrier", algorithm, axis).run(_names(axis))


def cost(primitive: str, algorithm: str | Algorithm, axes: Axes, elements: int, bytes_per_element: int) -> Cost:
    """What an algorithm of a primitive states for one array.

    Args:
      axes: the axes that it spans, outermost first.
      elements: the n of the book: of the result for all_gather and gather, else of what enters. Where arrays are split by rows
        (reduce_scatter, all_gather, scatter, gather, all_to_all) count rows.
      bytes_per_element: of a number, or of a row.
    Raises:
      Unusable: the algorithm is unknown, or does not serve these axes.
    """
    chosen = algorithm if isinstance(algorithm, Algorithm) else _named(primitive, algorithm)
    _check(primitive, algorithm, chosen, axes)
    return replace(chosen.cost(axes, elements), bytes_per_element=bytes_per_element)


def permute_cost(axes: Axes, pairs: int | Sequence[tuple[int, int]], elements: int, bytes_per_element: int) -> Cost:
    """Of `permute`: one message."""
    along = shift_pairs(axes.size, pairs) if isinstance(pairs, int) else pairs
    return replace(rounds(permute_message(axes, along, elements)), bytes_per_element=bytes_per_element)


def _names(axis: Axis) -> tuple[str, ...]:
    return (axis,) if isinstance(axis, str) else tuple(axis)


def _chosen(primitive: str, algorithm: str | Algorithm, axis: Axis, root: int = 0) -> Algorithm:
    axes = Axes(_names(axis), tuple(map(jax.lax.axis_size, _names(axis))))
    chosen = algorithm if isinstance(algorithm, Algorithm) else _named(primitive, algorithm)
    _check(primitive, algorithm, chosen, axes)
    if not 0 <= root < axes.size:
        raise Unusable(f"{primitive} over {axes}: found root {root}, expected 0 to {axes.size - 1}")
    return chosen


def _named(primitive: str, algorithm: str) -> Algorithm:
    known = ALGORITHMS[primitive]
    if algorithm not in known:
        raise Unusable(f"{primitive}: unknown algorithm {algorithm!r}; known are {', '.join(known)}")
    return known[algorithm]


def _check(primitive: str, algorithm: str | Algorithm, chosen: Algorithm, axes: Axes) -> None:
    if problem := chosen.misfit(axes):
        name = algorithm if isinstance(algorithm, str) else "the given algorithm"
        raise Unusable(f"{primitive} by {name} over {axes}: found {problem}; name another algorithm")


def _fitting(op: Op, leaf: jax.Array, chosen: Algorithm) -> Op:
    """`op`, once it is seen to keep shape and dtype of what the algorithm applies it to."""
    shape = (3,) if chosen.elementwise else leaf.shape
    given = jax.ShapeDtypeStruct(shape, leaf.dtype)
    found = jax.eval_shape(op, given, given)
    if (found.shape, found.dtype) != (shape, leaf.dtype):
        whole = "flattened parts of arrays" if chosen.elementwise else "whole arrays"
        raise Unusable(f"op makes {_typed(found)} of two {_typed(given)}; here it meets {whole} and must keep shape and dtype")
    return op


def _typed(array: jax.ShapeDtypeStruct) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _each(x: Any, kernel: Callable[[jax.Array], jax.Array]) -> Any:
    return jax.tree.map(lambda leaf: kernel(jnp.asarray(leaf)), x)


def _each_by_rows(x: Any, kernel: Callable[[jax.Array], jax.Array]) -> Any:
    def checked(leaf: jax.Array) -> jax.Array:
        if not leaf.ndim:
            raise Unusable("found an array without a dim, expected rows to split or to gather; give it a dim of one row")
        return kernel(leaf)

    return _each(x, checked)


def _joined(x_PC: jax.Array) -> jax.Array:
    return x_PC.reshape(-1, *x_PC.shape[2:])
