"""Runs an experiment: compiles its program for a target, reads its ledger, and settles it with the one that theory
predicts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import prod
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from lab.compile.inspection import devices_of, read_program
from lab.compile.xla_dump import CompilerDump, CompileRequest, Refused, dump, held_at_peak, lower
from lab.core.clock import timed
from lab.core.ledger import Ledger
from lab.core.units import exact
from lab.diagnosis.program import Program
from lab.harness import registry
from lab.harness.claims import claims_of
from lab.harness.experiment import Experiment
from lab.harness.numerics import numeric_sizes, numerics
from lab.harness.result import Numerics, Result, Seconds, WrongResults
from lab.hlo.read import read
from lab.meshes.attached import resolve_attached
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError, one_line
from lab.meshes.targets import Target, parse_target
from lab.programs.memory.parts import PartOff, is_off, parts_off
from lab.programs.memory.terms import Terms
from lab.settle import Context, Settlement, named_refusal, settle
from lab.settle.ineffective_sharding import StateShard, not_scattered, state_not_split

# Where a program can be run as well as compiled.
RUNNABLE = ("cpu", "attached")


def run(
    experiment: Experiment, *, target: Target, style: str, axes: Axes | None = None, parameters: Any = None
) -> Result:
    """Compiles and settles one program; on devices that are there, checks its numbers first.

    Args:
      axes: the mesh; by default the one that the experiment has for the target.
      parameters: sizes; by default the experiment's own.
    Raises:
      UsageError: the target, the mesh or the sizes cannot be used. What XLA refuses is a failed result, not an error.
    """
    chosen, parameters = axes, parameters or experiment.parameters
    axes = chosen or experiment.axes(target)
    start = time.perf_counter()
    mesh = make_mesh(target, axes)
    where = context(target, style, axes, mesh)
    try:
        predicted = experiment.predict(parameters, axes)
    except UsageError as refusal:
        lacks = [name for name in experiment.axes(target).names if name not in axes.names]
        if not lacks:
            raise
        needed = f"the {'axis' if len(lacks) == 1 else 'axes'} {', '.join(lacks)}"
        has = ", ".join(axes.names)
        raise UsageError(f"{experiment.name} needs {needed}; the mesh {axes} has {has}") from refusal
    if chosen:
        _check_use(experiment, experiment.build(style, parameters, mesh)[1], predicted, axes)
    held = (
        experiment.memory(style, parameters, axes, resolve_attached(target).memory_bytes) if experiment.memory else None
    )

    def result(compiled: float, read: float, **outcome: Any) -> Result:
        seconds = Seconds(compiled, read, time.perf_counter() - start)
        return Result(
            experiment.name,
            style,
            str(target),
            axes.shape,
            asdict(parameters),
            seconds,
            composition=(
                experiment.composition(parameters, axes, outcome.get("measured")) if experiment.composition else None
            ),
            published=experiment.published(parameters),
            held=held,
            **outcome,
        )

    try:
        checked, unchecked = (
            _numbers(experiment, style, mesh, parameters) if target.platform in RUNNABLE else (None, None)
        )
        compiled, compile_seconds = timed(lambda: _compiled(experiment, style, parameters, target, axes, mesh))
    except (WrongResults, Refused, jax.errors.JaxRuntimeError) as refusal:
        return result(0.0, 0.0, failure=named_refusal(one_line(refusal), where.platform))
    program, read_seconds = timed(lambda: _program(compiled, mesh, axes, target, experiment.name))
    measured = replace(program.ledger, steps=predicted.steps)
    settlement = settle(predicted, measured, where)
    claims = claims_of(experiment, parameters, axes, predicted, measured, settlement)
    failure = ineffective_sharding(experiment, parameters, mesh, compiled, settlement) or not_donated(
        experiment, parameters, mesh, program
    )
    outcome = {
        "off": _parts_off(held, compiled, measured, lambda: lower(experiment.build, style, parameters, mesh)),
        "measured": measured,
        "settlement": settlement,
        "claims": claims,
        "numerics": checked,
        "unchecked": unchecked,
        "failure": failure,
    }
    return result(compile_seconds, read_seconds, **outcome)


def _parts_off(
    held: Terms | None,
    compiled: jax.stages.Compiled | CompilerDump,
    measured: Ledger,
    again: Callable[[], jax.stages.Lowered],
) -> tuple[PartOff, ...]:
    """Where predicted and planned peak are more than 5 % apart; a program for GPUs is compiled once more, for its
    buffers."""
    memory = measured.memory
    if not held or memory is None or not memory.peak or not is_off(held, memory.peak, memory.padding):
        return ()
    at_peak = compiled.at_peak if isinstance(compiled, CompilerDump) else held_at_peak(again())
    return parts_off(held, at_peak, memory.peak)


def _check_use(experiment: Experiment, args: Any, predicted: Ledger, axes: Axes) -> None:
    """Raises UsageError for an axis that no argument is split over and no transfer runs along: its devices would all do
    the same, and the verdict would say nothing of it."""
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(args)]
    entries = [entry for sharding in shardings if isinstance(sharding, NamedSharding) for entry in sharding.spec]
    split = {axis for entry in entries for axis in (entry if isinstance(entry, tuple) else (entry,))}
    used = split | {axis for transfer in predicted.transfers for axis in transfer.axes or ()}
    idle = ",".join(f"{name}={size}" for name, size in axes.shape.items() if size > 1 and name not in used)
    if idle:
        raise UsageError(
            f"{experiment.name} does not use {idle} of the mesh {axes}: all devices along it would do the same work; "
            "drop the axis, or choose an experiment whose layout uses it"
        )


def _numbers(experiment: Experiment, style: str, mesh: Mesh, parameters: Any) -> tuple[Numerics | None, str | None]:
    """Checked, or why not."""
    if experiment.step is None and experiment.reference is None and experiment.compare is None:
        return None, "it rounds on purpose, so that no float32 reference has its numbers"
    try:
        return numerics(experiment, style, mesh, numeric_sizes(experiment, parameters)), None
    except UsageError as reason:
        if parameters == experiment.parameters:
            raise
        return None, str(reason)


def at_hand(measured: Ledger, axes: Axes) -> Mesh | None:
    """The mesh that a program was compiled for, where it is of devices that can run."""
    target = parse_target(measured.target) if measured.target else None
    return make_mesh(target, axes) if target and target.platform in RUNNABLE else None


def _compiled(
    experiment: Experiment, style: str, parameters: Any, target: Target, axes: Axes, mesh: Mesh
) -> jax.stages.Compiled | CompilerDump:
    """What is to be read: for TPUs the compiler's dump, since making their code takes twenty times as long and changes
    nothing in it."""
    if target.platform == "tpu" and registry.is_registered(experiment):
        return dump(CompileRequest(partial(registry.build_of, experiment.name), style, parameters, target, axes))
    return compiled_step(experiment, style, parameters, mesh)


def program_of(experiment: Experiment, style: str, parameters: Any, target: Target, axes: Axes) -> Program:
    """A registered experiment's step, compiled for a target; see `_compiled`."""
    mesh = make_mesh(target, axes)
    return _program(_compiled(experiment, style, parameters, target, axes, mesh), mesh, axes, target, experiment.name)


def compiled_step(experiment: Experiment, style: str, parameters: Any, mesh: Mesh) -> jax.stages.Compiled:
    return lower(experiment.build, style, parameters, mesh).compile()


def _program(
    compiled: jax.stages.Compiled | CompilerDump, mesh: Mesh, axes: Axes, target: Target, source: str
) -> Program:
    if not isinstance(compiled, CompilerDump):
        return read_program(compiled, (), mesh, target, source=source)
    reading = read(compiled.text, source=source, axes=axes, target=target, devices=devices_of(mesh))
    return Program(replace(reading.ledger, memory=compiled.memory), reading, axes, target)


def context(target: Target, style: str, axes: Axes, mesh: Mesh) -> Context:
    platform = mesh.devices.flat[0].platform if target.platform == "attached" else target.platform
    # Types tell the partitioner where arrays lie, as declarations do; what it makes of that is nearly always the same.
    is_typed = style == "typed"
    known = target if target.chip else None
    return Context(platform, "declared" if is_typed else style, axes.shape, is_typed=is_typed, target=known)


def ineffective_sharding(
    experiment: Experiment,
    parameters: Any,
    mesh: Mesh,
    compiled: jax.stages.Compiled | CompilerDump,
    settlement: Settlement,
) -> str | None:
    """The sentence on a declared sharding that did not happen in a compiled program, of state or of gradients; None
    where all did."""
    state = _state_shards(experiment.state(parameters, mesh), compiled) if experiment.state else ()
    return state_not_split(state) or not_scattered(settlement)


def not_donated(experiment: Experiment, parameters: Any, mesh: Mesh, program: Program) -> str | None:
    """The sentence on a state that a compiled step does not update in place: for a moment a device has it twice. None
    where it does, and where the experiment has no state."""
    if experiment.state is None:
        return None
    arrays = jax.tree.leaves(experiment.state(parameters, mesh))
    state = sum(prod(a.sharding.shard_shape(a.shape)) * a.dtype.itemsize for a in arrays)
    in_place = sum(a.local.bytes for a in program.arguments if a.number in program.aliased)
    if in_place >= state:
        return None
    return (
        f"the state is not donated: the compiled step reuses {exact(in_place)} B of {exact(state)} B on each device "
        "for its results (input_output_alias); pass donate_argnums for the state to jax.jit"
    )


def _state_shards(declared: Any, compiled: jax.stages.Compiled | CompilerDump) -> Iterator[StateShard]:
    """The state, a step's first argument and first result, as declared and as compiled."""
    arrays = jax.tree.leaves_with_path(declared)
    for when, entries in _entries(compiled, [array for _, array in arrays]).items():
        for (path, array), held_entries in zip(arrays, entries, strict=True):
            name = jax.tree_util.keystr(path, simple=True, separator="/").removesuffix("/value")
            axes = tuple(
                axis for axes in array.sharding.spec for axis in ((axes,) if isinstance(axes, str) else axes or ())
            )
            yield StateShard(name, when, array.shape, axes, prod(array.sharding.shard_shape(array.shape)), held_entries)


def _entries(
    compiled: jax.stages.Compiled | CompilerDump, arrays: list[jax.ShapeDtypeStruct]
) -> dict[str, Sequence[int]]:
    """How many of each array's a device holds."""
    if isinstance(compiled, CompilerDump):
        return {"taken": compiled.taken[: len(arrays)], "given back": compiled.given_back[: len(arrays)]}
    shardings = {"taken": compiled.input_shardings[0][0], "given back": compiled.output_shardings[0]}
    return {
        when: [prod(s.shard_shape(a.shape)) for s, a in zip(jax.tree.leaves(some), arrays, strict=True)]
        for when, some in shardings.items()
    }
