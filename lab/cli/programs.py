"""The programs that a SOURCE of `lab inspect` and `lab diff` names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from lab.cli.progress import Stage
from lab.compile import inspection, sources
from lab.diagnosis.program import Program
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target, parse_target


def prepared(mesh: Axes | None, target: Target | None) -> Target:
    """The target of a program, with JAX made ready for it before the user's code imports JAX."""
    if mesh is None:
        raise UsageError(
            "a program needs a mesh; name its axes in the order of mesh.devices, such as --mesh data=2,tensor=4"
        )
    target = target or parse_target(f"cpu:{mesh.size}")
    prepare([target])
    return target


def programs(source: str, mesh: Axes | None, target: Target | None, stage: Stage) -> list[Program]:
    """One of a text or of a function, one a module of a dump's folder."""
    if mesh is None or target is None or not sources.is_program(source):
        with stage(f"reading {source}"):
            return inspection.read_texts(Path(source), mesh, target)
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

    return [inspection.read_program(function, args, devices, target, source=source, stage=shown)]
