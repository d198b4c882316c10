"""Ledgers of programs, however they are at hand: functions, lowered or compiled objects, texts. Reading a text imports
no JAX."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

from lab.compile import constraints, offloads, redistributed, sources
from lab.core.known import known
from lab.core.ledger import Ledger, Memory
from lab.diagnosis.program import Change, Given, NarrowValue, Program, Wires
from lab.diagnosis.remarks import Remark, heard
from lab.diagnosis.remedy import NotApplicable, Remedy, remedy_text
from lab.hlo.buffers import LiveBuffer
from lab.hlo.padding import argument_padding
from lab.hlo.placement import Devices
from lab.hlo.read import read
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError, one_line
from lab.meshes.platforms import GPU_LINKS, TPU_LINKS, Platform
from lab.meshes.targets import Target, parse_target


def inspect(program: Any, *args: Any, mesh: Any = None, target: Target | str | None = None) -> Ledger:
    """See `lab.inspect`."""
    return read_one(program, *args, mesh=mesh, target=target).ledger


def read_one(program: Any, *args: Any, mesh: Any = None, target: Target | str | None = None) -> Program:
    """A program as rules see it, however it is at hand; see `lab.diagnose`."""
    target = parse_target(target) if isinstance(target, str) else target
    if isinstance(program, str) and "\n" in program:
        raise UsageError(f"found a text of {len(program):,} characters, expected the path of a file with it")
    if isinstance(program, str | os.PathLike):
        return _only(read_texts(Path(program), _axes(mesh), target), program)
    return read_program(program, args, mesh, target, source=_name(program))


def inspect_texts(path: Path, axes: Axes | None, target: Target | None) -> list[Ledger]:
    """One ledger for a text, one a module for the folder of an XLA dump."""
    return [program.ledger for program in read_texts(path, axes, target)]


def inspect_program(program: Any, args: tuple[Any, ...], mesh: Any, target: Target | None, *, source: str) -> Ledger:
    """Compiles what is not compiled yet, and reads it."""
    return read_program(program, args, mesh, target, source=source).ledger


def read_texts(path: Path, axes: Axes | None, target: Target | None) -> list[Program]:
    """One program for a text, one a module for the folder of an XLA dump, with what a diagnosis needs."""
    return [_of_text(name, text, axes, target) for name, text in sources.texts(path)]


def _of_text(name: str, text: str, axes: Axes | None, target: Target | None) -> Program:
    """With the memory that XLA planned, where a dump has it beside the text (`--xla_dump_hlo_as_proto`)."""
    reading, planned = read(text, source=name, axes=axes, target=target), sources.buffers_beside(Path(name))
    ledger = reading.ledger
    if planned is not None:
        ledger = replace(ledger, memory=planned.memory(argument_padding(text)))
    return Program(
        ledger,
        reading,
        axes,
        target,
        platform=target.platform if target else None,
        held=tuple if planned is None else lambda: planned.at_peak,
    )


_NO_ARRAY = re.compile(
    r"Error interpreting argument to .* The problematic value is of type <class '(.*?)'> and was passed to the "
    r"function at path (.*?)\.\n"
)
_PARTITIONS = re.compile(r"num_partitions=(\d+)")
FINISHED_S = 2.0
"""Machine code for TPUs takes many times as long as all before it, which cannot be stopped: longer programs leave the
process too busy for another."""
Stage = Callable[[str], AbstractContextManager[None]]
"""What goes on around `lowering`, `compiling` and `reading` a program, and what else takes time, by that name."""


def read_program(
    program: Any,
    args: tuple[Any, ...],
    mesh: Any,
    target: Target | None,
    *,
    source: str,
    stage: Stage = lambda _: nullcontext(),
    until_dumped: bool = False,
    traced: Any = None,
) -> Program:
    """The same with what a diagnosis needs: the arguments as they were given, what the compiler said, where the devices
    stand, and how to try a change.

    Args:
      until_dumped: read what XLA dumps for TPUs or GPUs before it makes machine code, which goes on until this process
        ends.
      traced: what `program` was lowered or compiled from, where it is at hand.
    """
    import jax

    from lab.compile import shapes_only

    program = of_jax(program)
    began = time.perf_counter()
    # Group ids count positions of the mesh that the arguments lie on, whatever mesh was offered.
    own, offered = mesh_of((*jax.tree.leaves(args), *_placed(program))), _axes(mesh)
    is_of_others = offered is not None and own is not None and own.size != offered.size
    if args or not (is_of_others or _splits(mesh, own)):
        mesh = own or mesh
    remarks: list[Remark] = []
    with shapes_only.callbacks_compile():
        compiled = _compiled(program, args, mesh, target, remarks, stage, source, until_dumped)
    with stage("reading"):
        read = _read(compiled, args, mesh, target, tuple(remarks), source)
    seconds = time.perf_counter() - began
    found = compiled.stage if traced is None else traced

    def attempt(remedy: Remedy) -> Program:
        with stage(f"trying {remedy_text(remedy)} in"):
            return _changed(found, mesh, target, source, until_dumped, remedy)

    is_busy = until_dumped and seconds > FINISHED_S
    return replace(
        read,
        attempt=attempt,
        seconds=seconds,
        is_tried_elsewhere=is_busy,
        is_of_several=jax.process_count() > 1,
    )


def read_changed(
    program: Any,
    args: tuple[Any, ...],
    mesh: Any,
    target: Target | None,
    remedy: Remedy,
    *,
    source: str,
    until_dumped: bool = False,
    traced: Any = None,
) -> Program:
    """As `read_program`, of the changed program alone.

    Raises:
      NotApplicable: the change cannot be made, or does not compile.
    """
    import jax

    mesh = mesh_of(jax.tree.leaves(args)) or mesh
    found = staged(program, args, mesh, source) if traced is None else traced
    return _changed(found, mesh, target, source, until_dumped, remedy)


def _changed(found: Any, mesh: Any, target: Target | None, source: str, until_dumped: bool, remedy: Remedy) -> Program:
    """A changed program, compiled for the same target by the same road.

    Raises:
      NotApplicable: the change cannot be made, or does not compile.
    """
    from lab.compile import remedies, shapes_only

    if found is None:
        raise NotApplicable("a compiled program cannot be changed; give the function and its arguments")
    remarks: list[Remark] = []
    try:
        with shapes_only.callbacks_compile(), heard(remarks):
            lowered, mesh, options = remedies.changed(found, mesh, remedy)
            compiled = (
                _Compiled.of_dump(lowered, (), target, options)
                if until_dumped
                else _Compiled.of(lowered.compile(options or None))
            )
        if compiled.platform == Platform.GPU and not until_dumped:
            compiled = replace(compiled, held=partial(_compiled_again, lowered, options))
        return _read(compiled, (), mesh, target, tuple(remarks), source)
    except NotApplicable:
        raise
    except Exception as error:  # Whatever JAX or XLA has against a change is no fault of the program.
        cause = type(error).__name__
        # JAX has no public name for the error.
        why = "the shardings in the program's types (axes of type Explicit) do not allow it" * (
            cause == "ShardingTypeError"
        )
        raise NotApplicable(f"{why or cause}: {one_line(error)}") from error


@dataclass(frozen=True)
class _Compiled:
    """What a compilation tells.

    Attributes:
      given: what JAX knows of each argument, in their order.
      placed: the shardings of arguments, then of results; of arguments alone where only a dump is at hand.
      devices: how many it runs on.
      offloaded: what policies of `jax.checkpoint` ask to be moved to the host, by name, with the line that names it.
      replicated: arguments that sharding constraints replicate.
      held: gives the temporaries of the fullest moment.
      traced: the closed jaxpr; None where it is not at hand.
      stage: what it was traced or lowered to before, for changes; None where that is not at hand.
    """

    text: str
    memory: Memory | None
    given: tuple[Any, ...]
    placed: tuple[Any, ...]
    devices: int
    platform: str | None
    offloaded: Mapping[str, str | None] = field(default_factory=dict)
    replicated: tuple[str, ...] = ()
    held: Callable[[], tuple[LiveBuffer, ...]] = tuple
    traced: Any = None
    stage: Any = None

    @classmethod
    def of(cls, compiled: Any) -> _Compiled:
        text, placed = compiled.as_text(), _placed(compiled)
        return cls(
            text,
            _memory(compiled, argument_padding(text)),
            _arguments(compiled),
            placed,
            max((len(each.device_set) for each in placed if each is not None), default=1),
            _platform(compiled),
        )

    @classmethod
    def of_dump(
        cls, lowered: Any, args: tuple[Any, ...], target: Target | None, options: Mapping[str, str | bool] = {}
    ) -> _Compiled:
        import jax

        from lab.compile.xla_dump import dumped

        platform = target.platform if target else Platform.TPU
        found = dumped(lowered, options, platform)
        devices = _PARTITIONS.search(found.text.partition("\n")[0])
        return cls(
            found.text,
            found.memory,
            _arguments(lowered),
            tuple(getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(args)) or _placed(lowered),
            int(devices[1]) if devices else 1,
            platform,
            held=lambda: found.at_peak,
        )


def _placed(program: Any) -> tuple[Any, ...]:
    """Where the arguments of a lowered or compiled program lie, then its results; None for an argument that it does
    without, nothing of a function."""
    import jax

    if isinstance(program, jax.stages.Compiled):
        return tuple(jax.tree.leaves((program.input_shardings, program.output_shardings), is_leaf=lambda x: x is None))
    if not isinstance(program, jax.stages.Lowered):
        return ()
    # JAX tells it in no other way before it compiles.
    given = program._lowering.compile_args
    taken = dict(zip(sorted(given["kept_var_idx"]), given["in_shardings"], strict=True))
    return (*map(taken.get, range(len(_arguments(program)))), *given["out_shardings"])


def _arguments(stage: Any) -> tuple[Any, ...]:
    import jax

    return tuple(jax.tree.leaves(stage.args_info, is_leaf=lambda leaf: hasattr(leaf, "donated")))


def _read(
    compiled: _Compiled,
    args: tuple[Any, ...],
    mesh: Any,
    target: Target | None,
    remarks: tuple[Remark, ...],
    source: str,
) -> Program:
    mesh = mesh if mesh is not None else mesh_of(compiled.placed)
    text, axes = compiled.text, _axes(mesh)
    # A program of one device is no program on the mesh of its arguments.
    axes = None if axes is not None and axes.size > 1 and compiled.devices == 1 else axes
    reading = read(
        text, source=source, axes=axes, target=target if axes else None, devices=devices_of(mesh) if axes else None
    )
    ledger = replace(reading.ledger, memory=compiled.memory)
    return Program(
        ledger,
        reading,
        axes,
        target,
        _given(compiled, args),
        remarks,
        partial(_wires, mesh),
        compiled.platform,
        compiled.offloaded,
        compiled.replicated,
        compiled.held,
        _changes(compiled, axes),
        narrow=partial(_narrow, compiled.traced),
    )


def _narrow(traced: Any, op_name: str, elements: int) -> NarrowValue | None:
    if traced is None:
        return None
    from lab.compile.narrow_sends import narrow_in

    return narrow_in(traced.jaxpr, op_name, elements)


def _changes(compiled: _Compiled, axes: Axes | None) -> tuple[Change, ...]:
    if compiled.traced is None:
        return ()
    count = len(compiled.given)
    return redistributed.changes(compiled.traced, compiled.placed[:count], compiled.placed[count:], axes)


def _compiled(
    program: Any,
    args: tuple[Any, ...],
    mesh: Any,
    target: Target | None,
    remarks: list[Remark],
    stage: Stage,
    source: str,
    until_dumped: bool,
) -> _Compiled:
    import jax

    if isinstance(program, jax.stages.Compiled):
        return _Compiled.of(program)
    # The mesh in force places arguments without a sharding, and gives meaning to a bare PartitionSpec.
    with jax.set_mesh(mesh) if isinstance(mesh, jax.sharding.Mesh) else nullcontext():
        with stage("lowering"):
            found = program if isinstance(program, jax.stages.Lowered) else _traced(program, args, source)
            jaxpr = found.jaxpr if isinstance(found, jax.stages.Traced) else None
            lowered = found.lower() if isinstance(found, jax.stages.Traced) else found
        with stage("compiling"), heard(remarks):
            compiled = _Compiled.of_dump(lowered, args, target) if until_dumped else _Compiled.of(lowered.compile())
        if compiled.platform == Platform.GPU and not until_dumped:
            compiled = replace(compiled, held=partial(_compiled_again, lowered, {}, stage))
        compiled = replace(compiled, stage=found)
        if jaxpr is None:
            return compiled
        replicated = constraints.replicated(jaxpr.jaxpr)
        return replace(compiled, offloaded=offloads.asked(jaxpr.jaxpr), replicated=replicated, traced=jaxpr)


def _compiled_again(
    lowered: Any, options: Mapping[str, str | bool], stage: Stage = lambda _: nullcontext()
) -> tuple[LiveBuffer, ...]:
    """The temporaries of the fullest moment; none where XLA dumps no buffers: a diagnosis then lacks them."""
    import jax

    from lab.compile import shapes_only, xla_dump

    try:
        with stage("looking for the largest buffers of"), heard([]), shapes_only.callbacks_compile():
            return xla_dump.held_at_peak(lowered, options)
    except (StopIteration, ValueError, jax.errors.JaxRuntimeError):
        return ()


def of_jax(stage: Any) -> Any:
    """JAX's own stage of one that `flax.nnx.jit` wraps."""
    return next((getattr(stage, name) for name in ("traced", "lowered", "compiled") if hasattr(stage, name)), stage)


def staged(program: Any, args: tuple[Any, ...], mesh: Any, source: str) -> Any:
    """JAX's own stage of a program: traced, where it was not lowered or compiled before, or only lowers.

    Raises:
      UsageError: as `read_program`.
    """
    import jax

    mesh = mesh_of(jax.tree.leaves(args)) or mesh
    program = of_jax(program)
    if isinstance(program, jax.stages.Lowered | jax.stages.Compiled):
        return program
    with jax.set_mesh(mesh) if isinstance(mesh, jax.sharding.Mesh) else nullcontext():
        return _traced(program, args, source)


def _traced(function: Any, args: tuple[Any, ...], source: str) -> Any:
    """Traced, or lowered by what only lowers.

    Raises:
      UsageError: an argument is nothing that JAX traces, in place of what JAX says to who called `jit`.
    """
    import jax

    from lab.compile import shapes_only

    bound: dict[str, Any] = {}
    if isinstance(function, partial) and hasattr(function.func, "lower"):
        function, args, bound = function.func, (*function.args, *args), function.keywords
    try:
        jitted = function if hasattr(function, "lower") else jax.jit(function)
        if hasattr(jitted, "trace"):
            return shapes_only.with_names(of_jax(jitted.trace(*args, **bound)))
        # Of a library's own, as `equinox.filter_jit` makes: it traces what is an array, and a shape is none.
        args, bound = jax.tree.map(shapes_only.array_of, (args, bound))
        return of_jax(jitted.lower(*args, **bound))
    except TypeError as error:
        found = _NO_ARRAY.match(str(error))
        if found is None:
            raise
        raise UsageError(
            f"{source}: argument {found[2]}: found a value of type {found[1]}, expected an array or a "
            "jax.ShapeDtypeStruct; bind what is neither with functools.partial"
        ) from None


def _given(compiled: _Compiled, args: tuple[Any, ...]) -> tuple[Given, ...]:
    """The arguments in their order; as if whole where they are not at hand."""
    import jax

    # What was lowered elsewhere says by its own shardings how its arguments lie.
    leaves = jax.tree.leaves(args) if args else compiled.placed[: len(compiled.given)]
    shardings = [
        getattr(leaf, "sharding", leaf if isinstance(leaf, jax.sharding.Sharding) else None) for leaf in leaves
    ]
    parts = (
        [1 if s is None or s.is_fully_replicated else s.num_devices for s in shardings]
        if len(shardings) == len(compiled.given)
        else [1] * len(compiled.given)
    )
    return tuple(
        Given(tuple(info.shape), info.donated, count) for info, count in zip(compiled.given, parts, strict=True)
    )


def _wires(mesh: Any) -> Wires | None:
    """Where the TPUs of one slice stand, and where JAX would have put them."""
    devices = list(getattr(getattr(mesh, "devices", None), "flat", ()))
    if not devices or devices[0].platform != Platform.TPU or len({getattr(d, "slice_index", 0) for d in devices}) > 1:
        return None
    from lab.meshes.devices import arranged

    try:
        best = arranged(sorted(devices, key=lambda device: device.id), known(_axes(mesh)))
    except (AssertionError, NotImplementedError, ValueError):  # Devices that fill no torus: JAX knows no order of them.
        return None
    torus = tuple(1 + max(along) for along in zip(*(device.coords for device in devices), strict=True))
    return Wires(torus, tuple(tuple(d.coords) for d in devices), tuple(tuple(d.coords) for d in best.flat))


def mesh_of(leaves: Iterable[Any]) -> Any:
    """The mesh of the first named sharding among arrays or shardings that has devices."""
    import jax

    shardings = (getattr(leaf, "sharding", leaf) for leaf in leaves)
    meshes = (s.mesh for s in shardings if isinstance(s, jax.sharding.NamedSharding))
    return next((mesh for mesh in meshes if isinstance(mesh, jax.sharding.Mesh)), None)


def _splits(mesh: Any, own: Any) -> bool:
    """A mesh has the devices of another one in their order, with axes of that one's split into several."""
    import jax

    if not isinstance(mesh, jax.sharding.Mesh) or not isinstance(own, jax.sharding.Mesh):
        return False
    steps, own_steps = (set(accumulate(each.devices.shape, mul)) for each in (mesh, own))
    return own_steps < steps and list(mesh.devices.flat) == list(own.devices.flat)


def _axes(mesh: Any) -> Axes | None:
    """The axes of a JAX mesh, or of what else names them: `data=2,tensor=4` or a mapping.

    Raises:
      UsageError: it is none of these.
    """
    if mesh is None or isinstance(mesh, Axes):
        return mesh
    if isinstance(mesh, str):
        return Axes.parse(mesh)
    shape = getattr(mesh, "shape", mesh)
    if not isinstance(shape, Mapping):
        raise UsageError(
            f"found a mesh of type {type(mesh).__name__}; expected a jax.sharding.Mesh, lab.meshes.axes.Axes or a "
            "string such as data=2,tensor=4"
        )
    return Axes.of(dict(shape))


def devices_of(mesh: Any) -> Devices | None:
    """What the devices of a JAX mesh tell of where they stand."""
    devices = list(getattr(getattr(mesh, "devices", None), "flat", ()))
    if not devices:
        return None
    on_tpu = devices[0].platform == Platform.TPU
    domains = tuple(getattr(device, "slice_index", None) or 0 if on_tpu else device.process_index for device in devices)
    coords = tuple(tuple(device.coords) for device in devices) if on_tpu else None
    return Devices(domains, TPU_LINKS if on_tpu else GPU_LINKS, tuple(device.id for device in devices), coords)


def _memory(compiled: Any, padding: int) -> Memory | None:
    found = compiled.memory_analysis()
    if found is None:
        return None
    held = Memory(
        arguments=found.argument_size_in_bytes,
        outputs=found.output_size_in_bytes,
        temporaries=found.temp_size_in_bytes,
        aliased=found.alias_size_in_bytes,
        # On CPUs XLA's peak leaves the temporaries out.
        peak=None if _platform(compiled) == "cpu" else found.peak_memory_in_bytes,
        padding=padding,
        host_arguments=found.host_argument_size_in_bytes,
        host_outputs=found.host_output_size_in_bytes,
        host_temporaries=found.host_temp_size_in_bytes,
    )
    # XLA's peak is that of the memory in which temporaries are most, be it the host's.
    is_hosts = held.host_temporaries > held.temporaries and held.at_peak > held.temporaries
    return replace(held, peak=held.stays + held.temporaries) if is_hosts else held


def _platform(compiled: Any) -> str | None:
    import jax

    shardings = jax.tree.leaves(compiled.output_shardings)
    return next((device.platform for sharding in shardings for device in sharding.device_set), None)


def _only(programs: list[Program], path: Any) -> Program:
    if len(programs) > 1:
        raise UsageError(
            f"{path} contains {len(programs)} partitioned modules; pass one of their files, such as "
            f"{programs[0].ledger.source}"
        )
    return programs[0]


def _name(program: Any) -> str:
    return getattr(program, "__qualname__", type(program).__name__)
