"""Which dims a traced program asks to be split over which axes: JAX refuses arguments whose dims do not divide, and XLA
pads what else does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from lab.laws.measurement import Split

_INNER = ("jaxpr", "call_jaxpr", "body_jaxpr", "cond_jaxpr", "fwd_jaxpr_thunk", "branches")


def asked(args: Any, jaxpr: Any) -> tuple[Split, ...]:
    """In the order in which they are asked for.

    Args:
      args: a tree of arrays or shapes with shardings.
      jaxpr: of the program; None where it is not at hand.
    """
    found: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for place, size, axes in (*_of_arguments(args), *(_of_equations(jaxpr) if jaxpr is not None else ())):
        found.setdefault((place, axes), []).append(size)
    return tuple(Split(place, axes, tuple(sizes)) for (place, axes), sizes in found.items())


_Asked = tuple[str, int, tuple[str, ...]]


def _of_arguments(args: Any) -> Iterator[_Asked]:
    for path, leaf in jax.tree.leaves_with_path(args):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding):
            place = f"argument {jax.tree_util.keystr(path)}"
            yield from _dims(place, leaf.shape, sharding.spec)
            # What is not split tells of what the program divides by itself, such as a width by heads.
            yield from ((f"{place}, dim {dim}", size, ()) for dim, size in enumerate(leaf.shape))


def _of_equations(jaxpr: Any) -> Iterator[_Asked]:
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "sharding_constraint" and isinstance(params["sharding"], NamedSharding):
            yield from _dims("a sharding constraint", equation.invars[0].aval.shape, params["sharding"].spec)
        elif name == "shard_map":
            for which, variables in (("in_specs", equation.invars), ("out_specs", equation.outvars)):
                for variable, spec in zip(variables, params[which], strict=True):
                    if isinstance(spec, PartitionSpec):
                        yield from _dims(f"{which} of a shard_map", variable.aval.shape, spec)
        for inner in _inner(params):
            yield from _of_equations(inner)


def _inner(params: Any) -> Iterator[Any]:
    for key in _INNER:
        some = params.get(key)
        for one in some if isinstance(some, tuple | list) else (some,):
            closed = getattr(one, "jaxpr", one)
            if hasattr(closed, "eqns"):
                yield closed


def _dims(place: str, shape: tuple[int, ...], spec: PartitionSpec) -> Iterator[_Asked]:
    for dim, (size, entry) in enumerate(zip(shape, spec, strict=False)):
        axes = entry if isinstance(entry, tuple) else (entry,) if isinstance(entry, str) else ()
        if axes:
            yield f"{place}, dim {dim}", size, axes
