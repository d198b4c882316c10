"""The lab as a stranger has it installed, in a project whose own modules have the names of the lab's."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import setuptools

from tests.paths import ROOT

pytestmark = pytest.mark.compiles

STEP = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
import experiments, meshes

def build(mesh):
    assert (experiments.MINE, meshes.MINE) == (1, 2)
    x = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    return jax.jit(lambda x: x.sum(0), out_shardings=NamedSharding(mesh, P())), (x,)
"""
TEST = """
import lab, step

def test_sum(communication_snapshot):
    mesh = lab.mesh("cpu:8", data=8)
    function, args = step.build(mesh)
    communication_snapshot(function, *args)
"""
OWN = """
from lab import MINE

def test_own():
    assert MINE == 3
"""
SNAPSHOT = """
def test_snapshot(communication_snapshot):
    pass
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """What an installation of the wheel puts on the path."""
    site = tmp_path_factory.mktemp("site")
    (site / "lab").mkdir()
    for path in (*(ROOT / "lab").iterdir(), ROOT / "meshes", ROOT / "experiments"):
        (site / "lab" / path.name).symlink_to(path)
    (site / "sharding_lab_pytest.py").symlink_to(ROOT / "sharding_lab_pytest.py")
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ((_, plugin),) = told["entry-points"]["pytest11"].items()
    distribution = site / "sharding_lab-0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: sharding-lab\nVersion: 0\n")
    (distribution / "entry_points.txt").write_text(f"[pytest11]\nsharding_lab = {plugin}\n")
    bin = site / "bin"
    bin.mkdir()
    (bin / "lab").write_text("from lab.cli.main import main\nmain()\n")
    return site


@pytest.fixture
def run(site, tmp_path):
    """Runs Python in the project, with the lab installed."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(site)}
        return subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    return run


@pytest.fixture
def project(tmp_path):
    """With a `meshes.py` and a package `experiments` of its own."""
    (tmp_path / "meshes.py").write_text("MINE = 2\n")
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "__init__.py").write_text("MINE = 1\n")
    (tmp_path / "step.py").write_text(STEP)
    (tmp_path / "test_step.py").write_text(TEST)
    return tmp_path


def test_a_project_with_its_own_meshes_and_experiments_is_inspected(site, project, run):
    answer = run(str(site / "bin" / "lab"), "inspect", "step.py:build", "--mesh", "data=8")
    assert answer.returncode == 0, answer.stderr
    assert "all_reduce" in answer.stdout


@pytest.mark.parametrize("options", [(), ("-p", "lab.guard.pytest_plugin"), ("-p", "sharding_lab")], ids=" ".join)
def test_a_project_with_its_own_meshes_and_experiments_has_the_plugin(project, run, options):
    answer = run("-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "--update-communication")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.count("wrote 1 snapshot; 0 unchanged") == 1
    assert (project / "communication/test_step/test_sum.toml").exists()


@pytest.mark.parametrize("of_its_own", ["lab.py", "lab/__init__.py"])
@pytest.mark.parametrize("pytest_by", [("-m", "pytest"), ("-c", "import sys, pytest; del sys.path[0]; pytest.main()")])
def test_a_project_with_its_own_lab_runs_its_tests(tmp_path, run, of_its_own, pytest_by):
    own_lab(tmp_path, of_its_own)
    (tmp_path / "test_own.py").write_text(OWN)
    answer = run(*pytest_by)
    assert "1 passed" in answer.stdout, answer.stdout + answer.stderr


@pytest.mark.parametrize("of_its_own", ["lab.py", "lab/__init__.py"])
def test_a_fixture_of_a_lab_that_another_hides_says_so_in_a_line(tmp_path, run, of_its_own):
    own_lab(tmp_path, of_its_own)
    (tmp_path / "test_snapshot.py").write_text(SNAPSHOT)
    answer = run("-m", "pytest", "-q", "-p", "no:cacheprovider")
    said = f"communication_snapshot: {tmp_path / of_its_own} is imported as `lab` and hides sharding-lab's package; rename it"
    assert [line for line in answer.stdout.splitlines() if line.startswith(said)]


def test_a_step_that_imports_a_lab_of_its_own_is_told_which_it_gets(site, tmp_path, run):
    own_lab(tmp_path, "lab.py")
    (tmp_path / "step.py").write_text("from lab import MINE\n")
    answer = run(str(site / "bin" / "lab"), "inspect", "step.py:build", "--mesh", "data=8")
    assert answer.returncode == 2
    assert answer.stderr.splitlines()[-1].endswith(
        f"`lab` is sharding-lab's package here, not {tmp_path / 'lab.py'}: rename yours"
    )


def own_lab(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("MINE = 3\n")


def test_the_distribution_has_the_module_that_its_entry_point_names(monkeypatch):
    given = {}
    monkeypatch.setattr(setuptools, "setup", given.update)
    monkeypatch.chdir(ROOT)
    exec((ROOT / "setup.py").read_text(), {})
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = {*told["project"]["entry-points"]["pytest11"].values()}
    assert named <= {*given["py_modules"]}
    assert all((ROOT / f"{name}.py").exists() for name in named)
    assert {"lab", "lab.meshes", "lab.experiments", "lab.guard"} <= {*given["packages"]}
    assert all((ROOT / folder / "__init__.py").exists() for folder in given["package_dir"].values())
