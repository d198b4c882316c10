"""The rooms' rules: who may import whom, and what runs without JAX."""

import ast
import re
import subprocess
import sys

import pytest

from lab.harness import registry
from tests import rooms
from tests.paths import ROOT

WITHOUT_JAX = (
    "lab.hlo",
    "lab.book",
    "lab.zoo",
    "lab.core.ledger",
    "lab.settle",
    "lab.cli",
    "lab.guard.pytest_plugin",
    "lab.meshes.axes",
    "lab.meshes.targets",
    "lab.meshes.hardware",
)


def importers(room: str, *forbidden: str) -> list[str]:
    """Files of a room that import one of these modules, or something inside them."""
    files = {name: path for name, path in rooms.modules().items() if f"{name}.".startswith(f"{room}.")}
    assert files, f"no such room: {room}"
    found = [(name, other) for name, path in files.items() for other in rooms.imported(path)]
    return [
        f"{name} imports {other}"
        for name, other in found
        if any(f"{other}.".startswith(f"{module}.") for module in forbidden)
    ]


def test_no_arrow_points_upward_and_there_is_no_circle():
    arrows = rooms.graph()
    assert (rooms.upward(arrows), rooms.circle(arrows)) == ([], [])


def test_every_package_is_in_a_room():
    assert rooms.roomless(rooms.modules()) == []
    assert rooms.roomless(["lab", "lab.loose", "lab.core.ledger"]) == ["lab.loose"]


def test_lazy_and_typing_imports_count(tmp_path):
    for folder in ("lab/core", "lab/report", "meshes", "experiments"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "lab/report/tables.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lab.core.ledger import Ledger\n"
    )
    (tmp_path / "lab/core/ledger.py").write_text("def show():\n    from lab.report.tables import text\n")
    arrows = rooms.graph(tmp_path)
    assert rooms.upward(arrows) == ["lab.core.ledger imports lab.report.tables"]
    assert set(rooms.circle(arrows)) == {"lab.core.ledger", "lab.report.tables"}


@pytest.mark.parametrize(
    "load",
    [
        "importlib.import_module('lab.report.tables')",
        "__import__('lab.report.tables')",
        "import_module(f'lab.report.{name}')",
        "import_module('lab.report.' + name)",
    ],
)
def test_imports_by_a_string_count(tmp_path, load):
    for folder in ("lab/core", "lab/report", "meshes", "experiments"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "lab/report/__init__.py").write_text("")
    (tmp_path / "lab/report/tables.py").write_text("")
    (tmp_path / "lab/core/ledger.py").write_text(f"def show(name):\n    return {load}\n")
    (found,) = rooms.upward(rooms.graph(tmp_path))
    assert found.startswith("lab.core.ledger imports lab.report")


def test_no_room_imports_the_tests_or_the_plugin():
    assert importers("lab", "tests") == []
    assert importers("lab", "sharding_lab_pytest") == ["lab.guard.pytest_plugin imports sharding_lab_pytest"]


@pytest.mark.compiles
@pytest.mark.slow
@pytest.mark.parametrize("folder", ["meshes", "experiments"])
def test_nothing_is_importable_twice(folder):
    program = f"import lab.{folder}\ntry:\n    import {folder}\nexcept ImportError as error:\n    print(error)"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.startswith(f"import lab.{folder}: "), run.stderr


def test_meshes_knows_nothing_of_the_lab():
    assert [name for name in importers("lab.meshes", "lab") if "imports lab.meshes" not in name] == []


def test_experiments_alone_import_experiments():
    found = {name for name in importers("lab", "lab.experiments") if not name.startswith("lab.experiments.")}
    assert found == {"lab.harness.registry imports lab.experiments"}


def named_experiments(tree: ast.Module) -> list[str]:
    """Strings, docstrings aside, that hold the name of an experiment or the beginning of one."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in prose]
    return [text for text in strings if isinstance(text, str) and re.search(r"\bch\d\d[a-z]?_", text)]


def test_no_string_of_the_code_holds_the_name_of_an_experiment():
    files = {name: path for name, path in rooms.modules().items() if not name.startswith("lab.experiments")}
    found = {name: named_experiments(ast.parse(path.read_text())) for name, path in files.items()}
    assert {name: strings for name, strings in found.items() if strings} == {}


def test_every_experiment_has_a_name_that_would_be_noticed():
    for name in registry.names():
        for code in (
            f"load({name!r})",
            f"f'{name} {{style}}'",
            f"[n for n in names() if n.startswith({name.partition('_')[0] + '_'!r})]",
        ):
            assert named_experiments(ast.parse(code)), code
        assert named_experiments(ast.parse(f'"""As in {name}."""')) == []


def test_theory_and_measurement_share_no_code():
    assert importers("lab.book", "lab.hlo", "lab.core.ledger", "lab.settle") == []
    assert importers("lab.hlo", "lab.book", "lab.settle", "lab.programs.strategies") == []


def test_settling_knows_no_strategy():
    assert importers("lab.settle", "lab.programs.strategies", "lab.programs.models", "lab.book") == []


@pytest.mark.parametrize("room", ["lab.book", "lab.zoo", "lab.hlo", "lab.core", "lab.settle", "lab.guard"])
def test_texts_and_formulas_need_no_jax(room):
    assert importers(room, "jax", "jaxlib", "flax") == []


@pytest.mark.slow
def test_private_modules_of_jax_are_reached_in_three_files_only():
    private = ("jax._src", "jax.interpreters", "jaxlib._jax", "jaxlib._hlo", "jaxlib.xla_client")
    assert {found.split()[0] for found in importers("lab", *private)} == {
        "lab.compile.shapes_only",
        "lab.compile.xla_flags",
        "lab.meshes.processes",
    }


@pytest.mark.compiles
@pytest.mark.slow
@pytest.mark.parametrize("module", WITHOUT_JAX)
def test_importing_brings_no_jax_along(module):
    program = f"import sys, {module}; print('jax' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout == "False\n", run.stderr
