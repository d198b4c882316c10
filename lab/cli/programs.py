"""The programs that a SOURCE of `lab inspect` and `lab diff` names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

from lab.compile import inspection, sources
from lab.compile.other_process import Call, ProcessEnded, Stage
from lab.diagnosis.program import Program
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target, parse_target

T = TypeVar("T")


def programs(
    source: str, mesh: Axes | None, target: Target | None, stage: Stage, call: Call, of: Callable[[Program], T]
) -> list[T]:
    """What `of` makes of them: one of a text or of a function, one a module of a dump's folder. A function is built and
    compiled in another process, with `of`.

    Raises:
      UsageError: a text cannot be read; a function cannot be built or compiled, or ends the process.
    """
    if not source:
        raise UsageError("SOURCE is empty; expected a compiled text, the folder of an XLA dump, or file.py:build")
    if not sources.is_program(source):
        with stage(f"reading {source}"):
            found = inspection.read_texts(Path(source), mesh, target)
        with stage(f"diagnosing {source}"):
            return list(map(of, found))
    if mesh is None:
        raise UsageError(
            "a program needs a mesh; name its axes in the order of mesh.devices, such as --mesh data=2,tensor=4"
        )
    try:
        return [call(_compiled, source, mesh, target or parse_target(f"cpu:{mesh.size}"), of)]
    except ProcessEnded as how:
        raise UsageError(
            f"{source}: its process {how}; expected a program that builds and compiles (what XLA or the program said "
            "last stands above)"
        ) from None


def _compiled(stage: Stage, source: str, mesh: Axes, target: Target, of: Callable[[Program], T]) -> T:
    prepare([target])  # Before the user's code imports JAX.
    with stage(f"building {source}"):
        build = sources.builder(source)
        devices = make_mesh(target, mesh)
        function, args = sources.program(source, build, devices)

    @contextmanager
    def shown(name: str) -> Iterator[None]:
        """Whose an error is depends on the stage; one while reading is the lab's own."""
        whose = {"lowering": sources.users_code(source), "compiling": sources.compiler(source, target)}
        with stage(f"{name} {source}" + f" for {target}" * (name == "compiling")), whose.get(name, nullcontext()):
            yield

    program = inspection.read_program(function, args, devices, target, source=source, stage=shown)
    with stage(f"diagnosing {source}"):
        return of(program)
