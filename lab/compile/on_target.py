"""Arguments that lie on the devices of this process, as shapes on those of a target. Imports JAX."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from lab.compile import inspection, shapes_only, sources
from lab.meshes.axes import Axes, TypedAxes
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.devices import typed
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target


def moved_to(
    target: Target, given: TypedAxes | None, name: str, program: Any, args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], Mesh]:
    """A function and its arguments, these as shapes on a mesh of the target, split as they are, and this mesh.

    Where the target has as many devices as the mesh of the arguments, meshes that the function closes over are taken
    for that of the target.

    Args:
      given: axes, where they have other sizes there, or no argument names any; by default those of the arguments, or of
        the mesh in force.
    Raises:
      UsageError: no axes are known, or there are not as many devices; or the function raises.
    """
    axes = given or _axes((args, named))
    if axes is None:
        raise UsageError(f"{name}: no argument lies on a mesh; name its axes, such as --mesh data=8")
    with _started():
        prepare([target])
        if given is None and target.devices not in (None, axes.axes.size):
            raise UsageError(
                f"{name}: its arguments lie on mesh {axes.axes}, and target {target} has {target.devices} devices; "
                "name the sizes that the axes have there, as in --mesh data=8"
            )
        mesh = typed(make_mesh(target, axes.axes), axes.explicit)

    def moved(leaf: Any) -> Any:
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
            return leaf
        placed = NamedSharding(mesh, sharding.spec) if isinstance(sharding, NamedSharding) else None
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed, weak_type=leaf.weak_type)

    shapes, shapes_named = jax.tree.map(moved, (args, named))
    if given is None and hasattr(program, "trace") and inspection.mesh_of(jax.tree.leaves((args, named))):
        with sources.users_code(name):
            traced = shapes_only.with_names(inspection.of_jax(program.trace(*args, **named)))
            lowered = shapes_only.lowered_for(traced, mesh)
        return lowered, (*shapes, shapes_named), mesh
    return partial(program, **shapes_named) if named else program, shapes, mesh


def _axes(args: Any) -> TypedAxes | None:
    meshes: list[Mesh | AbstractMesh] = [
        leaf.sharding.mesh
        for leaf in jax.tree.leaves(args)
        if isinstance(getattr(leaf, "sharding", None), NamedSharding)
    ]
    for mesh in (*meshes, jax.sharding.get_abstract_mesh()):
        if mesh.axis_names:
            kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
            return TypedAxes(Axes.of(dict(mesh.shape)), tuple(n for n, kind in kinds if kind == AxisType.Explicit))
    return None


@contextmanager
def _started() -> Iterator[None]:
    """A notebook keeps the devices that it has: getting ready for a target starts JAX on CPUs alone otherwise."""
    jax.devices()
    before: Any = jax.config.values["jax_platforms"]
    yield
    jax.config.update("jax_platforms", before)
