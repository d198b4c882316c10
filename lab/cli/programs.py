"""The programs that a SOURCE of `lab inspect` and `lab diff` names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from lab.compile import inspection, sources
from lab.compile.other_process import Call, ProcessEnded, Python, Stage, other_process
from lab.compile.saved import Saved, executable, saved_as
from lab.compile.script import chosen, followed, is_script, note
from lab.core.known import known
from lab.core.note import Note, NoteKind
from lab.core.room import Room
from lab.diagnosis.program import Program
from lab.diagnosis.remedy import NotApplicable, Remedy
from lab.harness.settings import read_value
from lab.meshes.axes import Axes, TypedAxes
from lab.meshes.backends import make_mesh, prepare, target_devices
from lab.meshes.errors import UsageError, no_such, text_of
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target, parse_target

if TYPE_CHECKING:
    from lab.compile.shapes_only import Called

P = ParamSpec("P")
T = TypeVar("T")


class NotAppliedThere(UsageError):
    """NotApplicable, on its way from another process."""


class CompilerEnded(UsageError):
    """A program that builds or compiles has ended the process that it does so in."""


_ABOUT_AXES = re.compile(r"\b(axis|axes|mesh|devices|unpack|KeyError|AssertionError)\b")
"""Errors of what looks for axes in a mesh that has others."""
_NO_MEMORY_KINDS = Note(
    NoteKind.NO_MEMORY_KINDS,
    "the program names memory kinds, and JAX gives GPUs that only compile none: what a sharding places on the host "
    "counts as the device's; a tpu: target, or attached GPUs, tell it apart",
)


@dataclass(frozen=True)
class Script:
    """How to follow a script.

    Attributes:
      arguments: its own.
      functions: of those that it calls on several devices, by name; none: the one that computes most.
      most_calls: after which it is left.
    """

    arguments: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    most_calls: int = 100


def programs(
    source: str,
    mesh: TypedAxes | None,
    target: Target | None,
    stage: Stage,
    call: Call,
    of: Callable[[Program], T],
    script: Script = Script(),
    remedy: Remedy = (),
    which: int | None = None,
    python: Python | None = None,
    keywords: Mapping[str, str] = MappingProxyType({}),
    is_alone: bool = False,
) -> list[T]:
    """What `of` makes of them: one of a text or of a function, one a module of a dump's folder, one a function of a
    script. What is not compiled yet is built and compiled in another process, with `of`.

    Args:
      remedy: changes that are made to a function before it is compiled.
      which: of a script's functions, to see this one alone.
      python: what runs `call`; by default this Python.
      keywords: arguments of a builder behind its mesh, as text.
      is_alone: the process that is called answers nothing else: a script may change what it likes there.
    Raises:
      NotApplicable: no such change can be made.
      UsageError: a text cannot be read; a function cannot be built or compiled, or ends the process.
    """
    if not source:
        raise UsageError("SOURCE is empty; expected a compiled text, the folder of an XLA dump, or file.py:build")
    if is_script(source) and target is not None and mesh is None:
        # A script may change anything.
        with nullcontext(call) if is_alone else other_process(stage, python) as alone:
            return _elsewhere(alone, source, _of_script, source, script, target, of, remedy, which)
    if saved := saved_as(source):
        if remedy:
            raise NotApplicable("it was lowered before; give the function and its arguments")
        how = _of_export if saved == Saved.EXPORT else _of_executable
        return _elsewhere(call, source, how, source, mesh, target, of)
    if not sources.is_program(source):
        with stage(f"reading {source}"):
            found = inspection.read_texts(Path(source), mesh.axes if mesh else None, target)
        with stage(f"diagnosing {source}"):
            return list(map(of, found))
    if mesh is None and target is None:
        raise UsageError(
            "a program needs a mesh; name its axes in the order of mesh.devices, such as --mesh data=2,tensor=4, or "
            "--target alone where it makes its own of jax.devices()"
        )
    return _elsewhere(
        call,
        source,
        _of_builder,
        source,
        mesh,
        target or parse_target(f"cpu:{known(mesh).axes.size}"),
        of,
        remedy,
        dict(keywords),
    )


def _elsewhere(
    call: Call, source: str, function: Callable[Concatenate[Stage, P], list[T]], *args: P.args, **named: P.kwargs
) -> list[T]:
    try:
        return call(function, *args, **named)
    except NotAppliedThere as refusal:
        raise NotApplicable(str(refusal)) from None
    except ProcessEnded as how:
        raise CompilerEnded(
            f"{source}: its process {how}; expected a program that builds and compiles (what XLA or the program said "
            "last stands above)"
        ) from None


def _of_builder(
    stage: Stage,
    source: str,
    given: TypedAxes | None,
    target: Target,
    of: Callable[[Program], T],
    remedy: Remedy,
    keywords: Mapping[str, str],
) -> list[T]:
    prepare([target])  # Before the user's code imports JAX.
    from lab.compile import shapes_only
    from lab.meshes.devices import typed

    devices = target_devices(target)
    # No array can be put on devices that only compile.
    only_compile = target.platform in (Platform.GPU, Platform.TPU)
    following = shapes_only.follow(devices, _usable_bytes(target)) if only_compile else nullcontext()
    with _with_way_round(given, len(devices)), following:
        with stage(f"building {source}"):
            build = sources.builder(source)
            given_keywords = with_settings_of(source, build, keywords)
            axes = given or TypedAxes(Axes.of({"devices": len(devices)}))
            mesh = typed(make_mesh(target, axes.axes), axes.explicit)
            function, args = sources.program(
                source, partial(build, **given_keywords) if given_keywords else build, mesh
            )
        program = read_built(stage, source, function, args, mesh, target, remedy=remedy)
    if target.platform == Platform.GPU and target.chip and sources.names_memory_kinds(build):
        program = replace(program, ledger=replace(program.ledger, notes=(*program.ledger.notes, _NO_MEMORY_KINDS)))
    with stage(f"diagnosing {source}"):
        return [of(program)]


@contextmanager
def _with_way_round(given: TypedAxes | None, count: int) -> Iterator[None]:
    """What to do stands behind errors of a builder that asks for axes where none were named, or for values of arrays
    that have none."""
    try:
        yield
    except UsageError as refusal:
        cause = refusal.__cause__
        if isinstance(cause, sources.ValueNeeded):
            refusal.args = (f"{refusal}: leave the line out, or use the array's shape, dtype or sharding instead",)
        if given is None and cause is not None and _ABOUT_AXES.search(f"{type(cause).__name__} {text_of(cause)}"):
            refusal.args = (
                f"{refusal}; without --mesh the mesh is devices={count}: name the axes that the program asks for, such "
                "as --mesh data=2,tensor=4",
            )
        raise


def with_settings_of(source: str, build: Callable[..., Any], keywords: Mapping[str, str]) -> dict[str, Any]:
    """Read as their defaults are typed.

    Raises:
      UsageError: the builder takes no such argument, or it is no such value.
    """
    taken = list(inspect.signature(build).parameters.values())[1:]
    defaults = {each.name: each.default for each in taken if each.default is not inspect.Parameter.empty}
    for name in keywords:
        if name not in defaults:
            raise no_such(f"argument of {source} with a default,", name, defaults)
    return {name: read_value(name, value, type(defaults[name])) for name, value in keywords.items()}


def _of_export(
    stage: Stage, source: str, given: TypedAxes | None, target: Target | None, of: Callable[[Program], T]
) -> list[T]:
    prepare([target] if target else [])
    from lab.compile.exported import Export
    from lab.meshes.devices import typed

    with stage(f"reading {source}"):
        found = Export.read(source)
        target, axes = found.target(target), found.mesh_axes(given)
    prepare([target])
    mesh = typed(make_mesh(target, axes.axes), axes.explicit) if axes else None
    with sources.compiler(source, target):
        lowered, args = found.lowered(mesh, target_devices(target)[0])
    program = read_built(stage, source, lowered, args, mesh, target)
    with stage(f"diagnosing {source}"):
        return [of(program)]


def _of_executable(
    stage: Stage, source: str, given: TypedAxes | None, target: Target | None, of: Callable[[Program], T]
) -> list[T]:
    if target is None or target.platform in (Platform.GPU, Platform.TPU):
        raise UsageError(
            f"{source} is an executable, which XLA loads where it runs: --target attached, or the fake devices that it "
            "was compiled for, such as --target cpu:8; for another target save what jax.export gives"
        )
    prepare([target])
    with stage(f"loading {source}"):
        loaded = executable(source, target_devices(target))
    program = read_built(stage, source, loaded, (), given.axes if given else None, target)
    with stage(f"diagnosing {source}"):
        return [of(program)]


def _of_script(
    stage: Stage,
    source: str,
    script: Script,
    target: Target,
    of: Callable[[Program], T],
    remedy: Remedy = (),
    which: int | None = None,
) -> list[T]:
    prepare([target])
    with stage(f"following {source}"):
        devices = target_devices(target)
        found = followed(source, script.arguments, devices, _usable_bytes(target), script.most_calls, stage)
    from lab.compile import recompiled

    shown = chosen(source, found, script.functions)
    said = note(found, shown)
    some = shown if which is None else shown[which : which + 1]
    return [
        _called(
            stage,
            f"{source}:{each.name}",
            each,
            (said, *recompiled.notes(found.calls, each)),
            target,
            of,
            remedy,
        )
        for each in some
    ]


def _usable_bytes(target: Target) -> int | None:
    room = Room.of(target)
    return room.usable_bytes if room else None


def _called(
    stage: Stage,
    name: str,
    called: Called,
    said: tuple[str, ...],
    target: Target,
    of: Callable[[Program], T],
    remedy: Remedy,
) -> T:
    # What is changed is not compiled as it was.
    function = called.traced if remedy else called.program
    program = read_built(stage, name, function, called.args, None, target, called.traced, remedy)
    # What it took to compile while it was followed is the time that trying changes may take.
    program = replace(program, seconds=program.seconds + called.compile_s)
    ledger = replace(program.ledger, notes=(*program.ledger.notes, *said))
    with stage(f"diagnosing {name}"):
        return of(replace(program, ledger=ledger, remarks=(*called.remarks, *program.remarks)))


def read_built(
    stage: Stage,
    source: str,
    function: Any,
    args: tuple[Any, ...],
    mesh: Any,
    target: Target | None,
    traced: Any = None,
    remedy: Remedy = (),
) -> Program:
    """Lowers, compiles and reads a program in this process.

    Args:
      traced: what it was lowered or compiled from, where it is at hand.
    Raises:
      UsageError: it raises, or XLA does not compile it.
      NotAppliedThere: the remedy cannot be applied.
    """
    from lab.compile import xla_dump

    until_dumped = target is not None and xla_dump.is_dumped(target.platform)
    if remedy:
        with stage(f"trying a change of {source}"), sources.users_code(source):
            try:
                return inspection.read_changed(
                    function, args, mesh, target, remedy, source=source, until_dumped=until_dumped, traced=traced
                )
            except NotApplicable as refusal:
                raise NotAppliedThere(str(refusal)) from None

    @contextmanager
    def shown(name: str) -> Iterator[None]:
        """Whose an error is depends on the stage; one while reading is the lab's own."""
        whose = {"lowering": sources.users_code(source), "compiling": sources.compiler(source, target)}
        with (
            stage(f"{name} {source}" + f" for {target}" * (name == "compiling" and target is not None)),
            whose.get(name, nullcontext()),
        ):
            yield

    return inspection.read_program(
        function,
        args,
        mesh,
        target,
        source=source,
        stage=shown,
        until_dumped=until_dumped,
        traced=traced,
    )
