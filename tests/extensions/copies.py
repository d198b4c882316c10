"""Copies of the repository to which something is added, and its tests there.

A copy is laid out as an installed package is: `lab.meshes` and `lab.experiments` lie inside `lab`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT

COPIED = ("lab", "meshes", "experiments", "tests", "docs", "pyproject.toml", "README.md", "sharding_lab_pytest.py")
ADDED = Path(__file__).parent / "added"


def copied(folder: Path, added: str | None = None) -> Path:
    """The repository in `folder`, with the files of `added/NAME`."""
    for one in COPIED:
        if (ROOT / one).is_dir():
            shutil.copytree(ROOT / one, folder / one, ignore=shutil.ignore_patterns("data"))
        else:
            shutil.copy2(ROOT / one, folder)
    for inside in ("meshes", "experiments"):
        (folder / "lab" / inside).symlink_to(f"../{inside}")
    if added is not None:
        shutil.copytree(ADDED / added, folder, dirs_exist_ok=True)
    return folder


def add_row(table: Path, row: str, above: str) -> None:
    """Writes a row into a table, above the one place that says `above`."""
    text = table.read_text()
    assert text.count(above) == 1, f"{table.name} has {text.count(above)} times: {above}"
    table.write_text(text.replace(above, f"{row}\n{above}"))


def replace_line(table: Path, line: str, by: str) -> None:
    """Writes a line in place of the one that says `line`."""
    lines = table.read_text().splitlines()
    assert lines.count(line) == 1, f"{table.name} has {lines.count(line)} times: {line}"
    table.write_text("\n".join(by if one == line else one for one in lines) + "\n")


def suite_passes(folder: Path, *tests: str) -> None:
    """Runs ruff, and tests of the suite, there, with the copy's own modules."""
    ruff = Path(sys.executable).with_name("ruff")
    for command in ("check", "format --check") if ruff.exists() else ():
        found = subprocess.run([ruff, *command.split(), "--no-cache"], cwd=folder, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout + found.stderr
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-q", *tests]
    found = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace")
    assert found.returncode == 0 and " passed" in found.stdout, found.stdout + found.stderr
