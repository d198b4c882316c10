"""Functions that `jax.export` serialized."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jax.sharding import AxisType, Mesh, SingleDeviceSharding

from lab.compile import shapes_only
from lab.compile.saved import Saved, read_bytes
from lab.meshes.axes import Axes, TypedAxes
from lab.meshes.errors import UsageError, one_line
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target, parse_target

_PLATFORMS = {Platform.CPU: "cpu", Platform.GPU: "cuda", Platform.TPU: "tpu"}
_MESH = re.compile(r'sdy\.mesh @\S+ = <\[((?:"[^"]+"=\d+(?:, )?)+)\]')
_ARGUMENTS = re.compile(r"@main\((.*?)\) -> ")
_CONSTANT = "jax.global_constant"
_DONATED = re.compile(r"tf\.aliasing_output|jax\.buffer_donor")
_UNKNOWN_NODE = re.compile(r"Cannot deserialize a PyTreeDef containing an unregistered type `(.*?)`")


@dataclass(frozen=True)
class Export:
    """Attributes:
    axes: of the mesh that it was lowered for; None where it names none.
    arguments: of its module, as text.
    """

    source: str
    function: export.Exported
    axes: TypedAxes | None
    arguments: tuple[str, ...]

    @classmethod
    def read(cls, source: str) -> Export:
        """Raises:
        UsageError: it cannot be read, or its shapes are symbols.
        """
        function = _deserialized(source)
        for aval in function.in_avals:
            if not all(isinstance(size, int) for size in aval.shape):
                raise UsageError(f"{source}: found an argument {aval.str_short()}; export the function for numbers")
        text = function.mlir_module()
        arguments = re.split(r"%arg\d+: ", "".join(_ARGUMENTS.findall(text)[:1]))[1:]
        return cls(source, function, _axes(function, text), tuple(each for each in arguments if _CONSTANT not in each))

    def target(self, given: Target | None) -> Target:
        """Where to compile it, by default for fake CPU devices.

        Raises:
          UsageError: it was exported for another platform, or for another number of devices.
        """
        devices, platforms = self.function.nr_devices, self.function.platforms
        target = given or parse_target(f"cpu:{devices}")
        platform = _PLATFORMS.get(target.platform)
        if platform and platform not in platforms:
            raise UsageError(
                f"{self.source} was exported for {' and '.join(platforms)}, and the target is {target}; name another "
                f'--target, or export with platforms=["{platform}"]'
            )
        if devices > 1 and target.devices not in (None, devices):
            raise UsageError(
                f"{self.source} was exported for {devices} devices, and target {target} has {target.devices}"
            )
        return target

    def mesh_axes(self, given: TypedAxes | None) -> TypedAxes | None:
        """Of the mesh to make; None of a program of one device.

        Raises:
          UsageError: none are known, or others than those that it was exported for.
        """
        if self.function.nr_devices == 1:
            return None
        if self.axes and given and given.axes != self.axes.axes:
            raise UsageError(f"{self.source} was exported for mesh {self.axes.axes}, found --mesh {given.axes}")
        if not (self.axes or given):
            raise UsageError(
                f"{self.source} names no mesh; name its axes, such as --mesh data={self.function.nr_devices}"
            )
        return self.axes or given

    def lowered(self, mesh: Mesh | None, device: jax.Device) -> tuple[jax.stages.Lowered, tuple[Any, ...]]:
        """As it was lowered when it was exported, and the arguments that it uses as shapes with their shardings.

        Args:
          device: of a program without a mesh.
        """
        function = self.function
        placed = function.in_shardings_jax(mesh) if mesh else [SingleDeviceSharding(device)] * len(function.in_avals)
        shapes = [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=where)
            for aval, where in zip(function.in_avals, placed, strict=True)
        ]
        used = function.module_kept_var_idx

        def call(*leaves: Any) -> Any:
            given = dict(zip(used, leaves, strict=True))
            every = [
                given[place] if place in given else jnp.zeros(aval.shape, aval.dtype)
                for place, aval in enumerate(function.in_avals)
            ]
            args, named = jax.tree.unflatten(function.in_tree, every)
            return function.call(*args, **named)

        call.__name__ = function.fun_name
        returned = jax.tree.unflatten(function.out_tree, function.out_shardings_jax(mesh)) if mesh else None
        donated = tuple(place for place, text in enumerate(self.arguments) if _DONATED.search(text))
        args = tuple(shapes[place] for place in used)
        lowered = jax.jit(call, out_shardings=returned, donate_argnums=donated).lower(*args)
        if len(function.platforms) == 1:  # Else a module asks on which it runs.
            shapes_only.put_module(lowered, function)
        return lowered, args


def _axes(function: export.Exported, text: str) -> TypedAxes | None:
    typed = (aval.sharding.mesh for aval in (*function.in_avals, *function.out_avals))
    for mesh in typed:
        if mesh.size == function.nr_devices and mesh.axis_names:
            explicit = (
                n for n, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit
            )
            return TypedAxes(Axes.of(dict(mesh.shape)), tuple(explicit))
    named = (Axes.parse(found.replace('"', "")) for found in _MESH.findall(text))
    return next((TypedAxes(axes) for axes in named if axes.size == function.nr_devices), None)


def _deserialized(source: str) -> export.Exported:
    content = bytearray(read_bytes(source))
    while True:
        try:
            return export.deserialize(content)
        except ImportError:
            raise UsageError(
                f"{source}: what {Saved.EXPORT} serialized is read with flatbuffers, which is not installed; run: "
                "pip install flatbuffers"
            ) from None
        except Exception as error:
            unknown = _UNKNOWN_NODE.match(str(error))
            if not unknown:
                said = f"{type(error).__name__}: {one_line(error)}"
                raise UsageError(f"{source}: cannot be read as what {Saved.EXPORT} serialized ({said})") from error
            _stand_in(unknown[1])


def _stand_in(name: str) -> None:
    """A class of the user's whose nodes stand in the trees, and is not at hand here."""
    node = type("Node", (tuple,), {})
    jax.tree_util.register_pytree_node(node, lambda each: (tuple(each), each.rest), partial(_node, node))
    export.register_pytree_node_serialization(
        node, serialized_name=name, serialize_auxdata=lambda rest: rest, deserialize_auxdata=lambda rest: bytes(rest)
    )


def _node(kind: type, rest: Any, children: Any) -> Any:
    made = kind(children)
    made.rest = rest
    return made
