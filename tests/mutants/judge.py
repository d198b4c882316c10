"""Runs what names a changed place, from what takes seconds to what compiles programs, until something fails."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mutants.mutation import Mutation
from tests.paths import ROOT
from tests.rooms import graph, imported, modules

GROUPS = {
    "formulas of the book": ("lab.book",),
    "predictions": ("lab.programs.strategies", "lab.programs.pipelines.prediction", "lab.collectives.cost"),
    "programs": ("lab.programs.models", "lab.programs.pipelines", "lab.collectives", "lab.attention"),
    "rules": ("lab.settle", "lab.core.ledger"),
    "reader": ("lab.hlo",),
    "FLOPs and time": ("lab.hlo.flops", "lab.measure.rates", "lab.measure.schedule", "lab.measure.step_time"),
}
"""What a verdict stands on, and its modules; those of a longer name are not of the shorter one's group."""
VERDICTS = {
    "formulas of the book": ("tests/lab/harness",),
    "predictions": ("tests/experiments/test_settlement.py", "tests/experiments/test_unseen_sizes.py"),
    "programs": ("tests/experiments/test_settlement.py", "tests/lab/programs"),
    "rules": ("tests/lab/settle", "tests/cases", "tests/experiments/test_settlement.py"),
    "reader": ("tests/lab/hlo", "tests/cases", "tests/hlo_corpus"),
    "FLOPs and time": ("tests/lab/measure",),
}
LIMIT_S = 300
_FAILURES = ("FAILED ", "ERROR ")
FAST = ("not compiles and not slow", "slow and not compiles")


class Outcome(StrEnum):
    SEEN = "seen"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"
    UNTESTED = "no test names the module"
    UNDECIDED = "fails without the change as well"


@dataclass(frozen=True)
class Judged:
    """Attributes: by: the test that failed, or why the change is none."""

    mutation: Mutation
    outcome: Outcome
    by: str = ""


def group_of(module: str) -> str | None:
    """The part of the code that a module belongs to."""
    of = {prefix: name for name, prefixes in GROUPS.items() for prefix in prefixes}
    found = [prefix for prefix in of if f"{module}.".startswith(f"{prefix}.")]
    return of[max(found, key=len)] if found else None


def judges_of(module: str) -> list[list[Path]]:
    """Test files that import a module; those that stand where it stands, or import what imports it from its own folder;
    and those that give verdicts on what it is part of."""
    near = {one for one, others in _arrows().items() if module in others and one.startswith(f"{_folder(module)}.")}
    direct = [path for path, names in _imports().items() if module in names]
    there = [path for path, names in _imports().items() if path.parent == _mirrored(module) or near & names]
    verdicts = [ROOT / path for path in VERDICTS[group_of(module) or ""]]
    found: list[list[Path]] = []
    for some in (direct, there, verdicts):
        known = {path for others in found for path in others}
        found.append([path for path in dict.fromkeys(some) if path not in known])
    return found


def _folder(module: str) -> str:
    return module.rpartition(".")[0]


def _mirrored(module: str) -> Path | None:
    """The nearest folder of tests that has some."""
    folders = [ROOT / "tests" / Path(*module.split(".")[:length]) for length in range(module.count("."), 1, -1)]
    return next((folder for folder in folders if any(folder.glob("test_*.py"))), None)


@cache
def _arrows() -> dict[str, set[str]]:
    return graph()


@cache
def _imports() -> dict[Path, set[str]]:
    known = set(modules())
    return {
        path: {part for name in imported(path) for part in (name, name.rpartition(".")[0]) if part in known}
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mutants" not in path.relative_to(ROOT).parts
    }


def judge(mutation: Mutation) -> Judged:
    """A test that fails counts where it passes without the change."""
    if why := equivalents().get(key(mutation)):
        return Judged(mutation, Outcome.EQUIVALENT, why)
    files = judges_of(mutation.module)
    of_fast = [[path for some in files for path in some]]
    for stage, some in [*product(FAST, of_fast), *product(["compiles"], files)]:
        if not some or (failed := _failing(mutation, [str(path) for path in some], stage)) is None:
            continue
        alone = [failed.split(" ", 1)[1].partition(" - ")[0]] if failed.startswith(_FAILURES) else [*map(str, some)]
        return Judged(mutation, Outcome.UNDECIDED if _failing(None, alone, stage) else Outcome.SEEN, failed[:200])
    return Judged(mutation, Outcome.SURVIVED if any(files) else Outcome.UNTESTED)


def _failing(mutation: Mutation | None, tests: list[str], stage: str) -> str | None:
    """The first test that fails, with a change or without; a change that lets nothing be imported, or nothing end, is
    seen as well."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "--tb=no", "-m", stage, "-p", "no:cacheprovider"]
    settings = {}
    if mutation is not None:
        command += ["-p", "tests.mutants.plugin"]
        settings["MUTANT"] = f"{mutation.module}:{mutation.number}"
    with TemporaryDirectory() as examples:  # What one change fails on is not tried first on the next.
        try:
            done = subprocess.run(
                [*command, *tests],
                cwd=ROOT,
                env=os.environ | settings | {"HYPOTHESIS_STORAGE_DIRECTORY": examples},
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"nothing ends within {LIMIT_S} s"
    files = [test.partition("::")[0] for test in tests]
    if done.returncode == 4 and files != tests:  # No such test: a name may hold what separates it from a message.
        return _failing(mutation, files, stage)
    lines = [line for line in done.stdout.splitlines() if line.startswith(_FAILURES)]
    if done.returncode in (0, 5):  # 5: this stage has no test.
        return None
    return (lines or [(done.stdout + done.stderr).strip().splitlines()[-1]])[0]


def key(mutation: Mutation) -> tuple[str, str, str, str]:
    """What stays the same when lines move."""
    return mutation.module, mutation.function, mutation.before, mutation.after


@cache
def equivalents() -> dict[tuple[str, str, str, str], str]:
    """Changes that give the same program, and why."""
    found = tomllib.loads((ROOT / "tests/mutants/equivalent.toml").read_text())
    return {(row["module"], row["function"], row["before"], row["after"]): row["why"] for row in found["mutant"]}
