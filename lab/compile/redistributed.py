"""Which results of a program are arguments laid out anew, by what JAX has traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.diagnosis.program import Change
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.redistribution.placement import Array, Placement

_PLACES = frozenset({"sharding_constraint", "reshard", "mesh_cast", "copy"})
_CALLS = frozenset({"jit", "pjit", "closed_call", "core_call"})


def changes(jaxpr: Any, before: Sequence[Any], after: Sequence[Any], axes: Axes | None) -> tuple[Change, ...]:
    """Of each result that is an argument, as it was placed and as it is; of those placed over whole axes of the mesh.

    Args:
      before, after: the shardings of arguments and of results, in their order.
    """
    given, results = jaxpr.jaxpr.invars, _origins(jaxpr.jaxpr, list(range(len(jaxpr.jaxpr.invars))))
    if axes is None or len(before) != len(given) or len(after) != len(results):
        return ()
    pairs = ((number, sharding) for number, sharding in zip(results, after, strict=True) if number is not None)
    found = (_change(number, given[number].aval, before[number], sharding, axes) for number, sharding in pairs)
    return tuple(change for change in found if change is not None)


def _origins(jaxpr: Any, given: Sequence[int | None]) -> list[int | None]:
    """For each result of a jaxpr the number of the program's argument that it is; None of any other."""
    known = dict(zip(map(id, jaxpr.invars), given, strict=True))
    for equation in jaxpr.eqns:
        used = [known.get(id(value)) for value in equation.invars]
        name = equation.primitive.name
        if name in _PLACES:
            made = used[:1]
        elif name in _CALLS:
            made = _origins(getattr(equation.params["jaxpr"], "jaxpr", equation.params["jaxpr"]), used)
        else:
            made = []
        known |= dict(zip(map(id, equation.outvars), made, strict=False))
    return [known.get(id(value)) for value in jaxpr.outvars]


def _change(argument: int, aval: Any, before: Any, after: Any, axes: Axes) -> Change | None:
    try:
        array = Array.of(aval)
        placed = [_placement(sharding, len(array.shape), axes) for sharding in (before, after)]
    except UsageError:
        return None
    return Change(argument, array, placed[0], placed[1]) if placed[0] and placed[1] else None


def _placement(sharding: Any, dims: int, axes: Axes) -> Placement | None:
    """By its spec, of a sharding over this mesh; None of any other."""
    mesh, spec = getattr(sharding, "mesh", None), getattr(sharding, "spec", None)
    if mesh is None or spec is None or dict(mesh.shape) != axes.shape or getattr(spec, "unreduced", None):
        return None
    return Placement.of(*spec, *[None] * (dims - len(spec)))
