"""The primitives, one signature for all algorithms of each; to be called inside `jax.shard_map`.

`x` is an array or a tree of arrays, dealt with one by one. `axis` is a mesh axis or several, outermost first; flat
algorithms see several as one, in row-major order. `algorithm` is a name from `lab.collectives.catalogue` or an
`Algorithm`. Results vary over the axis, also where they are equal on every rank: `out_specs` must name it, unless
`jax.shard_map` is told not to check (`check_vma=False`). Where a buffer has to be cut into blocks it is padded with
zeros at its end, which `op` never mixes with data and the cost counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from operator import index
from typing import Any

import jax
import jax.numpy as jnp

from lab.collectives.algorithm import Algorithm
from lab.collectives.catalogue import ALGORITHMS
from lab.collectives.cost import Cost, Pairs
from lab.collectives.wires import Axis, Op, join, shift_pairs, split
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError, no_such, one_line


def all_reduce(x: Any, axis: Axis, algorithm: str | Algorithm = "ring", op: Op = jnp.add) -> Any:
    """Combines `x` of all ranks with `op`, on every rank.

    Args:
      x: arrays of any shape; the result has the same.
      op: associative. "doubling" and "tree" keep the order of ranks and apply it to whole arrays; the others need it
        elementwise and commutative as well.
    Raises:
      UsageError: the algorithm is unknown, or does not serve this axis or `op`.
    """
    chosen, axes = _chosen("all_reduce", algorithm, axis)
    return _each(x, lambda leaf: chosen.run(leaf, axes.names, op=_fitting(op, leaf, chosen)))


def reduce_scatter(x: Any, axis: Axis, algorithm: str | Algorithm = "ring", op: Op = jnp.add) -> Any:
    """Combines `x` of all ranks with `op` and leaves block r of the result on rank r.

    Args:
      x: arrays [N, ...]; the result is [ceil(N / P), ...], the last blocks padded with zeros where P does not divide N.
      op: elementwise, associative and commutative.
    Raises:
      UsageError: the algorithm is unknown, or does not serve this axis or `op`; or an array has no dim.
    """
    chosen, axes = _chosen("reduce_scatter", algorithm, axis)
    return _each_by_rows(x, lambda leaf: chosen.run(split(leaf, axes.size), axes.names, op=_fitting(op, leaf, chosen)))


def all_gather(x: Any, axis: Axis, algorithm: str | Algorithm = "ring") -> Any:
    """Blocks [C, ...] of all ranks as [P C, ...], in the order of ranks, on every rank.

    Raises:
      UsageError: the algorithm is unknown, or does not serve this axis; or an array has no dim.
    """
    chosen, axes = _chosen("all_gather", algorithm, axis)
    return _each_by_rows(x, lambda leaf: join(chosen.run(leaf, axes.names)))


def reduce(x: Any, axis: Axis, root: int = 0, algorithm: str | Algorithm = "tree", op: Op = jnp.add) -> Any:
    """Combines `x` of all ranks with `op`, on rank `root`; zeros elsewhere.

    Args:
      op: associative, and commutative unless the algorithm is "tree" and the root 0; elementwise unless the algorithm
        is "tree".
    Raises:
      UsageError: the algorithm is unknown, or does not serve this axis or `op`; or there is no such root.
    """
    chosen, axes = _chosen("reduce", algorithm, axis)
    at = _root(root, chosen, axes)
    return _each(x, lambda leaf: chosen.run(leaf, axes.names, root=at, op=_fitting(op, leaf, chosen)))


def broadcast(x: Any, axis: Axis, root: int = 0, algorithm: str | Algorithm = "tree") -> Any:
    """`x` of rank `root`, on every rank.

    Raises:
      UsageError: the algorithm is unknown, or does not serve this axis; or there is no such root.
    """
    chosen, axes = _chosen("broadcast", algorithm, axis)
    at = _root(root, chosen, axes)
    return _each(x, lambda leaf: chosen.run(leaf, axes.names, root=at))


def scatter(x: Any, axis: Axis, root: int = 0, algorithm: str | Algorithm = "tree") -> Any:
    """Block r of `x` of rank `root`, on rank r: [N, ...] to [ceil(N / P), ...], padded with zeros.

    Raises:
      UsageError: the algorithm is unknown, or does not serve this axis; there is no such root; or an array has no dim.
    """
    chosen, axes = _chosen("scatter", algorithm, axis)
    at = _root(root, chosen, axes)
    return _each_by_rows(x, lambda leaf: chosen.run(split(leaf, axes.size), axes.names, root=at))


def gather(x: Any, axis: Axis, root: int = 0, algorithm: str | Algorithm = "tree") -> Any:
    """Blocks [C, ...] of all ranks as [P C, ...], on rank `root`; zeros elsewhere.

    Raises:
      UsageError: the algorithm is unknown, or does not serve this axis; there is no such root; or an array has no dim.
    """
    chosen, axes = _chosen("gather", algorithm, axis)
    at = _root(root, chosen, axes)
    return _each_by_rows(x, lambda leaf: join(chosen.run(leaf, axes.names, root=at)))


def all_to_all(x: Any, axis: Axis, algorithm: str | Algorithm = "pairwise") -> Any:
    """Block s of the result on rank r is block r of `x` of rank s: [N, ...] to [P ceil(N / P), ...], padded with zeros.

    Raises:
      UsageError: the algorithm is unknown, or does not serve this axis; or an array has no dim.
    """
    chosen, axes = _chosen("all_to_all", algorithm, axis)
    return _each_by_rows(x, lambda leaf: join(chosen.run(split(leaf, axes.size), axes.names)))


def permute(x: Any, axis: Axis, pairs: int | Pairs = 1, algorithm: str | Algorithm = "lax") -> Any:
    """Sends `x` along (source, target) pairs, or from every rank as many places on around the axis; zeros where nothing
    arrives.

    Raises:
      UsageError: the algorithm is unknown, a rank does not exist, or two pairs have one source or one target.
    """
    chosen, axes = _chosen("permute", algorithm, axis)
    checked = _pairs(pairs, axes)
    return _each(x, lambda leaf: chosen.run(leaf, axes.names, pairs=checked))


def barrier(axis: Axis, algorithm: str | Algorithm = "circulant") -> jax.Array:
    """int32[]: the number of ranks, known only once all of them have come this far. What shall wait must depend on it.

    Raises:
      UsageError: the algorithm is unknown, or does not serve this axis.
    """
    chosen, axes = _chosen("barrier", algorithm, axis)
    return chosen.run(jax.lax.axis_index(axes.names), axes.names)


def cost(primitive: str, algorithm: str | Algorithm, axes: Axes, elements: int, bytes_per_element: int) -> Cost:
    """What an algorithm of a primitive states for one array.

    Args:
      axes: the axes that it spans, outermost first.
      elements: the n of the book: of the result for all_gather and gather, else of what enters. Where arrays are split
        by rows (reduce_scatter, all_gather, scatter, gather, all_to_all) count rows. A barrier sends one number,
        whatever n.
      bytes_per_element: of a number, or of a row.
    Raises:
      UsageError: the primitive or the algorithm is unknown, or does not serve these axes; or a size is below zero.
    """
    return _counted(_named(primitive, algorithm, axes).cost, axes, elements, bytes_per_element)


def permute_cost(axes: Axes, pairs: int | Pairs, elements: int, bytes_per_element: int) -> Cost:
    """Of `permute` along any pairs: one message."""
    along_pairs = partial(_named("permute", "lax", axes).cost, pairs=_pairs(pairs, axes))
    return _counted(along_pairs, axes, elements, bytes_per_element)


def _counted(statement: Callable[[Axes, int], Cost], axes: Axes, elements: int, bytes_per_element: int) -> Cost:
    if elements < 0 or bytes_per_element < 1:
        raise UsageError(
            f"cost of {elements} elements of {bytes_per_element} bytes: expected 0 elements or more, of 1 byte or more"
        )
    return replace(statement(axes, elements), bytes_per_element=bytes_per_element)


def _chosen(primitive: str, algorithm: str | Algorithm, axis: Axis) -> tuple[Algorithm, Axes]:
    """The algorithm, and the axes as they are inside `jax.shard_map`."""
    names = (axis,) if isinstance(axis, str) else tuple(axis)
    axes = Axes(names, tuple(map(_size, names)))
    return _named(primitive, algorithm, axes), axes


def _size(name: str) -> int:
    try:
        return jax.lax.axis_size(name)
    except NameError:
        there = ", ".join(map(repr, jax.sharding.get_abstract_mesh().manual_axes)) or "none"
        raise UsageError(
            f"axis {name!r}: found axes {there} here, expected one of the mesh of the jax.shard_map around this call"
        ) from None


def _named(primitive: str, algorithm: str | Algorithm, axes: Axes) -> Algorithm:
    if primitive not in ALGORITHMS:
        raise no_such("primitive", primitive, ALGORITHMS)
    known = ALGORITHMS[primitive]
    chosen = algorithm if isinstance(algorithm, Algorithm) else known.get(algorithm)
    if chosen is None:
        raise UsageError(f"{primitive}: {no_such('algorithm', algorithm, known)}")
    if chosen.primitive != primitive:
        raise UsageError(f"{primitive}: found an algorithm of {chosen.primitive}; known are {', '.join(known)}")
    if problem := chosen.misfit(axes):
        name = algorithm if isinstance(algorithm, str) else "the given algorithm"
        raise UsageError(f"{primitive} by {name} over {axes}: found {problem}; name another algorithm")
    return chosen


def _root(root: int, chosen: Algorithm, axes: Axes) -> int:
    if (found := _integer(root)) is None or found not in range(axes.size):
        raise UsageError(f"{chosen.primitive} over {axes}: found root {root!r}, expected 0 to {axes.size - 1}")
    return found


def _pairs(pairs: int | Pairs, axes: Axes) -> Pairs:
    if (by := _integer(pairs)) is not None:
        return shift_pairs(axes.size, by)
    if not isinstance(pairs, Iterable):
        raise UsageError(
            f"permute over {axes}: found pairs {pairs!r}, expected (source, target) pairs or a number of places"
        )
    known = [_pair(pair, axes) for pair in pairs]
    for side, ranks in zip(("sources", "targets"), zip(*known, strict=True), strict=False):
        if len(set(ranks)) < len(ranks):
            raise UsageError(
                f"permute over {axes}: found {side} {', '.join(map(str, ranks))}, expected each rank once at most"
            )
    return known


def _pair(pair: tuple[int, int], axes: Axes) -> tuple[int, int]:
    try:
        source, target = map(index, pair)
    except (TypeError, ValueError):
        source = target = -1
    if not {source, target} <= set(range(axes.size)):
        raise UsageError(
            f"permute over {axes}: found pair {pair!r}, expected (source, target) of ranks 0 to {axes.size - 1}"
        )
    return source, target


def _integer(value: Any) -> int | None:
    try:
        return index(value)
    except TypeError:
        return None


def _fitting(op: Op, leaf: jax.Array, chosen: Algorithm) -> Op:
    """`op`, once it is seen to keep shape and dtype of what the algorithm applies it to."""
    shape = (3,) if chosen.elementwise else leaf.shape
    given = jax.ShapeDtypeStruct(shape, leaf.dtype)
    try:
        found = jax.eval_shape(lambda a, b: op(a, b), given, given)
    except (TypeError, ValueError) as refusal:
        raise UsageError(
            f"op {op} does not take two {_typed(given)} of JAX; give one of jax.numpy: {one_line(refusal)}"
        ) from None
    if (found.shape, found.dtype) != (shape, leaf.dtype):
        whole = "flattened parts of arrays" if chosen.elementwise else "whole arrays"
        raise UsageError(
            f"op makes {_typed(found)} of two {_typed(given)}; here it meets {whole} and must keep shape and dtype"
        )
    return op


def _typed(array: jax.ShapeDtypeStruct) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _each(x: Any, kernel: Callable[[jax.Array], jax.Array]) -> Any:
    return jax.tree.map(lambda leaf: kernel(jnp.asarray(leaf)), x)


def _each_by_rows(x: Any, kernel: Callable[[jax.Array], jax.Array]) -> Any:
    def checked(leaf: jax.Array) -> jax.Array:
        if not leaf.ndim:
            raise UsageError(
                "found an array without a dim, expected rows to split or to gather; give it a dim of one row"
            )
        return kernel(leaf)

    return _each(x, checked)
