"""Who imports whom: arrows that point to a room further down, and circles. `python -m tests.rooms` prints both."""

import ast
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from lab.rooms import ROOMS
from tests.paths import ROOT

FOLDERS = {"lab": "lab", "meshes": "lab.meshes", "experiments": "lab.experiments"}
"""Folders of the repository, and the packages that they are."""
BY_NAME = {("lab.harness.registry", "lab.experiments")}
"""Loads what stands in a folder: experiments are found there, and no room above knows one of them."""


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module by its name."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            found[".".join((package, *(part for part in parts if part != "__init__")))] = path
    return found


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Every name that a file imports: at the top, inside functions, for types alone, and by a string."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and _name(node.func) in ("import_module", "__import__"):
            yield from _beginning(node.args[0])


def _name(function: ast.expr) -> str | None:
    return getattr(function, "attr", getattr(function, "id", None))


def _beginning(text: ast.expr) -> Iterator[str]:
    """What is known of a string: all of it, or how an f-string or a sum of strings begins."""
    while isinstance(text, ast.JoinedStr | ast.BinOp):
        text = text.values[0] if isinstance(text, ast.JoinedStr) else text.left
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        yield text.value.rstrip(".")


def graph(root: Path = ROOT) -> dict[str, set[str]]:
    """The modules that each module imports."""
    known = modules(root)
    return {
        name: {found for what in imported(path) if (found := _module(what, known)) and (name, found) not in BY_NAME}
        for name, path in known.items()
    }


def _module(name: str, known: dict[str, Path]) -> str | None:
    return next((prefix for prefix in (name, name.rpartition(".")[0]) if prefix in known), None)


def room(module: str) -> int:
    """The place of a module's room in the order."""
    return max(
        (at for at, name in enumerate(ROOMS) if f"{module}.".startswith(f"{name}.")), key=lambda at: len(ROOMS[at])
    )


def roomless(names: Iterable[str]) -> list[str]:
    """Modules that stand in no room: beside all of them."""
    return [name for name in names if ROOMS[room(name)] == "lab" and name not in ("lab", "lab.rooms")]


def upward(arrows: dict[str, set[str]]) -> list[str]:
    return [
        f"{one} imports {other}"
        for one, others in arrows.items()
        for other in sorted(others)
        if room(other) > room(one)
    ]


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """One circle, if there is any."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


if __name__ == "__main__":
    found = graph()
    wrong, cycle, loose = upward(found), circle(found), roomless(found)
    print(
        *wrong,
        *(f"{name} is in no room of lab/rooms.py" for name in loose),
        " -> ".join(cycle),
        f"{len(found)} modules, {len(wrong)} arrows upward, {bool(cycle):d} circles",
        sep="\n",
    )
    sys.exit(bool(wrong or cycle or loose))
