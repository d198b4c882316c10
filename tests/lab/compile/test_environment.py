"""Environments of other releases: what they hold, where they are kept, and what pip's refusals come to."""

import os
from contextlib import nullcontext
from importlib.metadata import version

import pytest

from lab.compile import environment
from lab.compile.environment import Requirement, requirements
from lab.meshes.errors import UsageError
from lab.meshes.platforms import Platform

JAX = Requirement.parse("jax==0.11.2")
FAKE = """#!/bin/sh
if [ "$2" = venv ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python"
elif [ "$2" = pip ]; then echo "$@" >> "$PIP_CALLS"; echo "$SAID" >&2; exit $STATUS
fi
"""


def no_stage(_name):
    return nullcontext()


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """The only Python that is found, with a pip of two lines."""
    python = tmp_path / "python3.12"
    python.write_text(FAKE)
    python.chmod(0o755)
    monkeypatch.setattr(environment, "_pythons", lambda: iter([(12, str(python))]))
    for name, value in {
        "XDG_CACHE_HOME": tmp_path / "cache",
        "PIP_CALLS": tmp_path / "calls",
        "SAID": "",
        "STATUS": 0,
    }.items():
        monkeypatch.setenv(name, str(value))
    return tmp_path


def test_an_environment_holds_the_release_and_what_is_installed_here_beside_it():
    found = requirements([JAX], Platform.CPU)
    assert "jax==0.11.2" in found and f"msgspec=={version('msgspec')}" in found
    assert not any(line.startswith(("pytest", "jaxlib", "jax[")) for line in found)


def test_the_compiler_for_gpus_is_that_of_the_release():
    assert "jax[cuda13-local]==0.11.2" in requirements([JAX], Platform.GPU)
    assert "jax[tpu]==0.11.2" in requirements([JAX], Platform.TPU)


def test_what_is_wanted_takes_the_place_of_what_is_installed():
    found = requirements([JAX, Requirement.parse("optax == 0.2.6"), Requirement.parse("Equinox==0.13")], Platform.CPU)
    assert [line for line in found if line.startswith(("optax", "equinox"))] == ["equinox==0.13", "optax==0.2.6"]


@pytest.mark.parametrize("text", ["jax", "jax>=0.11", "./jax", "jax==0.11.2; x"])
def test_a_package_without_a_release_is_refused(text):
    with pytest.raises(UsageError, match=r"expected a package and its release, such as jax==0\.11\.2"):
        Requirement.parse(text)


def test_an_environment_is_made_once_and_another_for_another_release(fake):
    made = [environment.environment([JAX], Platform.CPU, no_stage) for _ in range(2)]
    assert made[0] == made[1] and len((fake / "calls").read_text().splitlines()) == 1
    other = environment.environment([Requirement.parse("jax==0.11.1")], Platform.CPU, no_stage)
    assert other.executable != made[0].executable
    assert os.path.dirname(made[0].executable).startswith(str(fake / "cache" / "sharding-lab"))


def test_an_environment_says_what_it_was_made_of(fake):
    environment.environment([JAX], Platform.CPU, no_stage)
    (made,) = environment.cache().glob("*/made-of.txt")
    assert made.read_text().split() == list(requirements([JAX], Platform.CPU))


def test_the_next_python_is_taken_where_the_first_has_no_wheel_and_found_again_without_pip(fake, monkeypatch):
    old, new = fake / "python3.11", fake / "python3.12"
    old.write_text("#!/bin/sh\necho 'ERROR: No matching distribution found for jax==0.11.2' >&2; exit 1")
    old.chmod(0o755)
    monkeypatch.setattr(environment, "_pythons", lambda: iter([(11, str(old)), (12, str(new))]))
    made = environment.environment([JAX], Platform.CPU, no_stage)
    old.unlink()
    assert "python3.12" in made.executable and environment.environment([JAX], Platform.CPU, no_stage) == made


def test_no_environment_is_left_of_an_installation_that_failed(fake, monkeypatch):
    monkeypatch.setenv("STATUS", "1")
    monkeypatch.setenv("SAID", "ERROR: Could not install packages: no space left")
    with pytest.raises(UsageError, match="pip does not install it: Could not install packages: no space left"):
        environment.environment([JAX], Platform.CPU, no_stage)
    assert not [path for path in environment.cache().iterdir() if path.is_dir()]


def test_a_release_without_a_wheel_for_any_python_that_is_found_names_them(fake, monkeypatch):
    monkeypatch.setenv("STATUS", "1")
    monkeypatch.setenv("SAID", "ERROR: No matching distribution found for jax==0.11.2")
    with pytest.raises(UsageError, match=r"for Python 3\.12, which are all that were found here"):
        environment.environment([JAX], Platform.CPU, no_stage)
