"""The rooms' rules: who may import whom, and what runs without JAX."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.paths import ROOT

WITHOUT_JAX = ("lab.hlo", "lab.book", "lab.zoo", "lab.core.ledger", "lab.settle", "lab.cli", "lab.guard.pytest_plugin", "lab.meshes.axes", "lab.meshes.targets", "lab.meshes.hardware")


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, at the top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers(room: str, *forbidden: str) -> list[str]:
    """Files of a room that import one of these modules, or something inside them."""
    path = ROOT / room
    files = [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
    assert files, f"no such room: {room}"
    found = [(file.relative_to(ROOT), name) for file in files for name in imports(file)]
    return [f"{file} imports {name}" for file, name in found if any(f"{name}.".startswith(f"{module}.") for module in forbidden)]


def test_meshes_knows_nothing_of_the_lab():
    assert importers("meshes", "lab", "experiments") == []


def test_the_lab_imports_no_experiment():
    assert importers("lab", "experiments") == []


def test_theory_and_measurement_share_no_code():
    assert importers("lab/book", "lab.hlo", "lab.core.ledger", "lab.settle") == []
    assert importers("lab/hlo", "lab.book", "lab.settle", "lab.programs.strategies") == []


def test_settling_knows_no_strategy():
    assert importers("lab/settle", "lab.programs.strategies", "lab.programs.models", "lab.book") == []


@pytest.mark.parametrize("room", ["lab/book", "lab/zoo", "lab/hlo", "lab/core", "lab/__init__.py", "lab/guard"])
def test_texts_and_formulas_need_no_jax(room):
    assert importers(room, "jax", "jaxlib", "flax") == []


def test_private_modules_of_jax_are_reached_in_one_file_only():
    private = ("jax._src", "jax.interpreters", "jaxlib._jax", "jaxlib._hlo", "jaxlib.xla_client")
    found = [line for room in ("lab", "meshes", "experiments") for line in importers(room, *private)]
    assert [line for line in found if not line.startswith("meshes/_jax.py ")] == []


@pytest.mark.parametrize("module", WITHOUT_JAX)
def test_importing_brings_no_jax_along(module):
    program = f"import sys, {module}; print('jax' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout == "False\n", run.stderr
