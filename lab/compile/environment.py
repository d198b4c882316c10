"""Environments of their own for other releases of JAX, made once by `venv` and pip, with the user's configuration of
pip, and kept in the user's cache."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from lab.compile.other_process import Python, Stage
from lab.meshes.errors import UsageError, one_line
from lab.meshes.platforms import Platform

_OWN = "sharding-lab"
_OLDEST_PYTHON = 11
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*)(?P<extras>\[[\w,.-]+\])?\s*(?P<release>==\s*[\w.!+-]+)?", re.ASCII
)
_EXTRA = re.compile(r'extra == "(\w+)"')
_EXTRAS = {Platform.GPU: "gpu", Platform.TPU: "tpu"}
_MADE = "made-of.txt"
"""Written last: what an environment holds."""
_LATER = ("No matching distribution", "ResolutionImpossible")
"""How pip says that a release has no wheel for a Python; out of reach of the index it says the same after
`Retrying`."""


@dataclass(frozen=True)
class Requirement:
    """`jax==0.11.2`, `jax[tpu]==0.11.2`."""

    name: str
    extras: str
    release: str

    @classmethod
    def parse(cls, text: str) -> Requirement:
        """Raises:
        UsageError: it names no release.
        """
        found = _REQUIREMENT.fullmatch(text.strip())
        if found is None or not found["release"]:
            raise UsageError(f"--with {text}: expected a package and its release, such as jax==0.11.2")
        return cls(_normal(found["name"]), found["extras"] or "", found["release"].replace(" ", ""))

    def __str__(self) -> str:
        return f"{self.name}{self.extras}{self.release}"


def requirements(wanted: Sequence[Requirement], platform: Platform) -> tuple[str, ...]:
    """What an environment holds: what is wanted, and for the rest what the lab requires, in the releases that are
    installed here, with the compilers for a platform."""
    given = {each.name: each for each in wanted}
    found: dict[str, str] = {}
    for line in requires(_OWN) or ():
        requirement, _, marker = line.partition(";")
        extra = _EXTRA.search(marker)
        if marker and (extra is None or extra[1] != _EXTRAS.get(platform)):
            continue
        match = _REQUIREMENT.match(requirement)
        if match is None:
            continue
        name, extras = _normal(match["name"]), match["extras"] or ""
        release = given[name].release if name in given else _installed(name) or requirement[match.end() :].strip()
        found[name + extras] = f"{name}{extras}{release}"
    return tuple(sorted({*found.values(), *map(str, wanted)}))


def environment(wanted: Sequence[Requirement], platform: Platform, stage: Stage) -> Python:
    """The Python of an environment with these packages; it is made where there is none yet, with the first Python that
    is found here and that they support: of this one's version, else a newer one.

    Raises:
      UsageError: pip does not install them, or no such Python is found.
    """
    lines = requirements(wanted, platform)
    name = next((str(each) for each in wanted if each.name == "jax"), str(wanted[0]))
    candidates = list(_pythons())
    folders = {_folder(lines, name, minor): python for minor, python in candidates}
    for folder in folders:
        if (folder / _MADE).is_file():
            return _in(folder)
    refusals = []
    for folder, python in folders.items():
        with stage(f"installing {name} into {folder}"), _locked(folder):
            why = None if (folder / _MADE).is_file() else _make(folder, python, lines)
        if why is None:
            return _in(folder)
        if not any(sign in why for sign in _LATER) or "Retrying" in why:
            raise UsageError(f"{name}: pip does not install it: {_last_error(why)}")
        refusals.append(_last_error(why))
    minors = ", ".join(f"3.{minor}" for minor, _ in candidates)
    raise UsageError(
        f"{name}: pip finds no release of it, with what the lab requires, for Python {minors}, which are all that were "
        f"found here ({refusals[0]}); expected another release, or python3.N on PATH of a version that it supports"
    )


def cache() -> Path:
    """Where environments are kept; remove it and they are made anew."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / _OWN / "environments"


def _folder(lines: Iterable[str], name: str, minor: int) -> Path:
    content = "\n".join([f"{_OWN}{_installed(_OWN)}", f"python3.{minor}", *lines])
    return cache() / f"{name}-python3.{minor}-{sha256(content.encode()).hexdigest()[:12]}"


def _pythons() -> Iterator[tuple[int, str]]:
    """Minor versions and executables: this Python's version, then the others from the oldest that the lab runs on."""
    own = sys.version_info.minor
    yield own, getattr(sys, "_base_executable", sys.executable)
    for minor in range(_OLDEST_PYTHON, 20):
        found = next((path for path in _places(minor) if minor != own and _runs(path)), None)
        if found is not None:
            yield minor, found


def _places(minor: int) -> Iterator[str]:
    """On PATH, and where pyenv and uv put them."""
    name = f"python3.{minor}"
    for folder in os.get_exec_path():
        if os.access(path := os.path.join(folder, name), os.X_OK):
            yield path
    for place in (".pyenv/versions", ".local/share/uv/python"):
        yield from map(str, sorted((Path.home() / place).glob(f"*/bin/{name}")))


def _runs(python: str) -> bool:
    """A stand-in of pyenv may not."""
    return subprocess.run([python, "-c", ""], capture_output=True, stdin=subprocess.DEVNULL).returncode == 0


def _make(folder: Path, python: str, lines: Sequence[str]) -> str | None:
    """None, or what stopped it."""
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(_executable(folder)), "-m", "pip", "install", "--disable-pip-version-check", "--only-binary", ":all:"]
    for command in ([python, "-m", "venv", str(folder)], [*pip, *lines]):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
        if done.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            return done.stderr.strip() or done.stdout.strip()
    (folder / _MADE).write_text("\n".join([*lines, ""]))
    return None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process makes it, others wait."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _in(folder: Path) -> Python:
    return Python.of_environment(_executable(folder))


def _executable(folder: Path) -> Path:
    return folder / "bin" / "python"


def _installed(name: str) -> str:
    try:
        return f"=={version(name)}"
    except PackageNotFoundError:
        return ""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _last_error(said: str) -> str:
    errors = [line for line in said.splitlines() if line.startswith("ERROR: ")]
    return one_line(Exception((errors or said.splitlines() or ["it says nothing"])[0].removeprefix("ERROR: ")))
