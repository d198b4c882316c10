"""Ledgers of programs, however they are at hand: functions, lowered or compiled objects, texts. Reading a text imports no JAX."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab import hlo, sources
from lab.hlo.padding import argument_padding
from lab.hlo.placement import Devices
from lab.ledger import Ledger, Memory
from meshes.axes import Axes
from meshes.errors import Unusable
from meshes.targets import Target, parse_target


def inspect(program: Any, *args: Any, mesh: Any = None, target: Target | str | None = None) -> Ledger:
    """See `lab.inspect`."""
    target = parse_target(target) if isinstance(target, str) else target
    if isinstance(program, str | os.PathLike):
        return _only(inspect_texts(Path(program), _axes(mesh), target), program)
    return inspect_program(program, args, mesh, target, source=_name(program))


def inspect_texts(path: Path, axes: Axes | None, target: Target | None) -> list[Ledger]:
    """One ledger for a text, one a module for the folder of an XLA dump."""
    return [hlo.read_text(text, source=name, axes=axes, target=target) for name, text in sources.texts(path)]


def inspect_program(program: Any, args: tuple[Any, ...], mesh: Any, target: Target | None, *, source: str) -> Ledger:
    """Compiles what is not compiled yet, and reads it."""
    import jax

    # Group ids count positions of the mesh that the arguments lie on, whatever mesh was offered.
    own = _mesh(jax.tree.leaves(args))
    mesh = own if isinstance(own, jax.sharding.Mesh) or mesh is None else mesh
    compiled = _compiled(program, args, mesh)
    mesh = mesh if mesh is not None else _mesh(jax.tree.leaves(compiled.input_shardings))
    text = compiled.as_text()
    ledger = hlo.read_text(text, source=source, axes=_axes(mesh), target=target, devices=_devices(mesh))
    return replace(ledger, memory=_memory(compiled, argument_padding(text)))


def _compiled(program: Any, args: tuple[Any, ...], mesh: Any) -> Any:
    import jax

    if isinstance(program, jax.stages.Compiled):
        return program
    if isinstance(program, jax.stages.Lowered):
        return program.compile()
    function = program if hasattr(program, "lower") else jax.jit(program)
    # The mesh in force places arguments without a sharding, and gives meaning to a bare PartitionSpec.
    with jax.set_mesh(mesh) if isinstance(mesh, jax.sharding.Mesh) else nullcontext():
        return function.lower(*args).compile()


def _mesh(leaves: Iterable[Any]) -> Any:
    """The mesh of the first named sharding among arrays or shardings."""
    import jax

    shardings = (getattr(leaf, "sharding", leaf) for leaf in leaves)
    return next((s.mesh for s in shardings if isinstance(s, jax.sharding.NamedSharding)), None)


def _axes(mesh: Any) -> Axes | None:
    """The axes of a JAX mesh, or of what else names them: `data=2,tensor=4` or a mapping.

    Raises:
      Unusable: it is none of these.
    """
    if mesh is None or isinstance(mesh, Axes):
        return mesh
    if isinstance(mesh, str):
        return Axes.parse(mesh)
    shape = getattr(mesh, "shape", mesh)
    if not isinstance(shape, Mapping):
        raise Unusable(f"found a mesh of type {type(mesh).__name__}; expected a jax.sharding.Mesh, meshes.axes.Axes or a text such as data=2,tensor=4")
    return Axes.of(dict(shape))


def _devices(mesh: Any) -> Devices | None:
    """What the devices of a JAX mesh tell of where they stand."""
    devices = list(getattr(getattr(mesh, "devices", None), "flat", ()))
    if not devices:
        return None
    on_tpu = devices[0].platform == "tpu"
    domains = tuple(getattr(device, "slice_index", None) or 0 if on_tpu else device.process_index for device in devices)
    return Devices(domains, ("ici", "dcn") if on_tpu else ("host", "network"), tuple(device.id for device in devices))


def _memory(compiled: Any, padding: int) -> Memory | None:
    found = compiled.memory_analysis()
    if found is None:
        return None
    return Memory(
        arguments=found.argument_size_in_bytes,
        outputs=found.output_size_in_bytes,
        temporaries=found.temp_size_in_bytes,
        aliased=found.alias_size_in_bytes,
        # On CPUs XLA's peak leaves the temporaries out.
        peak=None if _platform(compiled) == "cpu" else found.peak_memory_in_bytes,
        padding=padding,
    )


def _platform(compiled: Any) -> str | None:
    import jax

    shardings = jax.tree.leaves(compiled.output_shardings)
    return next((device.platform for sharding in shardings for device in sharding.device_set), None)


def _only(ledgers: list[Ledger], path: Any) -> Ledger:
    if len(ledgers) > 1:
        raise Unusable(f"{path} holds {len(ledgers)} partitioned modules; give one of their files, such as {ledgers[0].source}")
    return ledgers[0]


def _name(program: Any) -> str:
    return getattr(program, "__qualname__", type(program).__name__)
