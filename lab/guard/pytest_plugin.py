"""For pytest: the fixture `communication_snapshot`, and `--update-communication`. Importing it brings no JAX along."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from lab.core.changes import Difference
from lab.core.ledger import Ledger

UPDATED = "communication_snapshot"
"""A property of a test: what became of its snapshot's file, and where it is."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sharding-lab")
    group.addoption(
        "--update-communication", action="store_true", help="Write the snapshots of what programs communicate anew."
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Which snapshots were written."""
    reports = [report for some in terminalreporter.stats.values() for report in some if hasattr(report, "when")]
    updates = [
        value
        for report in reports
        if report.when == "call"
        for name, value in report.user_properties
        if name == UPDATED
    ]
    if not updates:
        return
    written = [update for update in updates if not update.startswith("unchanged ")]
    count = f"wrote {len(written)} snapshot{'' if len(written) == 1 else 's'}"
    terminalreporter.write_sep("=", "communication snapshots")
    terminalreporter.write_line(f"{count}; {len(updates) - len(written)} unchanged")
    for update in sorted(written):
        what, _, path = update.partition(" ")
        terminalreporter.write_line(f"  {what:7}  {_relative(Path(path), config.rootpath)}")


def _relative(path: Path, root: Path) -> Path:
    return path.relative_to(root) if path.is_relative_to(root) else path


@pytest.fixture
def communication_snapshot(request: pytest.FixtureRequest) -> Callable[..., Ledger]:
    """`communication_snapshot(function, *args, mesh=mesh)` fails where the program communicates otherwise than when its
    snapshot was written.

    The snapshot is `communication/<file of the test>/<name of the test>.toml` beside the test; one a test.
    """
    path = _path(request.node)
    update = request.config.getoption("update_communication")
    used: list[Ledger] = []

    def check(program: Any, *args: Any, mesh: Any = None, target: Any = None) -> Ledger:
        __tracebackhide__ = True
        if used:
            pytest.fail(
                "this test has checked its snapshot already; a test has one, so write another test", pytrace=False
            )
        from lab.compile.inspection import inspect

        used.append(inspect(program, *args, mesh=mesh, target=target))
        if failure := compared(used[0], path, request.node.user_properties if update else None):
            pytest.fail(failure, pytrace=False)
        return used[0]

    return check


def compared(ledger: Ledger, path: Path, update: list[tuple[str, object]] | None) -> str | None:
    """Why the test fails, if it does.

    Args:
      update: the properties of a test whose snapshot is to be written; gets what became of it. They reach the process
        that reports where tests run in several.
    """
    from lab.guard import snapshot

    versions = {name: version(name) for name in ("jax", "jaxlib")}
    if not ledger.is_complete:
        return (
            "the compiled program could not be read whole, and nothing can be said of the rest: "
            f"{'; '.join(ledger.notes)}"
        )
    if update is not None:
        update.append((UPDATED, f"{snapshot.write(ledger, versions, path)} {path}"))
        return None
    if not path.exists():
        return (
            f"no snapshot {path}; look at what the program communicates, then write it with "
            f"--update-communication\n\n{ledger}"
        )
    return _difference(*snapshot.read(path), ledger, versions)


def _difference(before: Ledger, written_with: dict[str, str], after: Ledger, versions: dict[str, str]) -> str | None:
    for what in ("devices", "target", "mesh"):
        was, has = getattr(before, what), getattr(after, what)
        if was != has:
            return (
                f"{before.source} was written for {what} {was}; this program has {has}. If it should, run with "
                "--update-communication"
            )
    difference = Difference(before, after)
    if not difference.changes:
        return None
    others = "" if written_with == versions else f" (with {_told(written_with)}; this is {_told(versions)})"
    return (
        f"the program communicates otherwise than {before.source} says{others}; if it should, run with "
        f"--update-communication\n\n{difference}"
    )


def _told(versions: dict[str, str]) -> str:
    return " and ".join(f"{name} {number}" for name, number in versions.items())


def _path(test: pytest.Item) -> Path:
    return test.path.parent / "communication" / test.path.stem / f"{re.sub(r'[^A-Za-z0-9_.=-]+', '_', test.name)}.toml"
