"""Who imports whom: arrows that point to a room further down, and circles. `python -m tests.rooms` prints both."""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from lab.rooms import ROOMS
from tests.paths import ROOT

FOLDERS = {"lab": "lab", "meshes": "lab.meshes", "experiments": "lab.experiments"}
"""Folders of the repository, and the packages that they are."""


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module by its name."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            found[".".join((package, *(part for part in parts if part != "__init__")))] = path
    return found


def imported(path: Path) -> Iterator[str]:
    """Every name that a file imports: at the top, inside functions, and for types alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def graph(root: Path = ROOT) -> dict[str, set[str]]:
    """The modules that each module imports."""
    known = modules(root)
    return {name: {found for what in imported(path) if (found := _module(what, known))} for name, path in known.items()}


def _module(name: str, known: dict[str, Path]) -> str | None:
    return next((prefix for prefix in (name, name.rpartition(".")[0]) if prefix in known), None)


def room(module: str) -> int:
    """The place of a module's room in the order."""
    return max(
        (at for at, name in enumerate(ROOMS) if f"{module}.".startswith(f"{name}.")), key=lambda at: len(ROOMS[at])
    )


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
    wrong, cycle = upward(found), circle(found)
    print(
        *wrong,
        " -> ".join(cycle),
        f"{len(found)} modules, {len(wrong)} arrows upward, {bool(cycle):d} circles",
        sep="\n",
    )
    sys.exit(bool(wrong or cycle))
