"""The pytest plugin of sharding-lab: the fixture `communication_snapshot`, and `--update-communication`.

It stands outside of `lab` and imports it only for a test that uses the fixture: pytest loads plugins in every project,
and a project may have a `lab.py` or a folder `lab/` of its own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

if TYPE_CHECKING:
    from lab.core.ledger import Ledger

LONGEST = 180
"""Characters of a file's name that are the test's; longer ones end with a hash of the whole."""
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

    The snapshot is `communication/<file of the test>/<class>/<name of the test>.toml` beside the test, signs other than
    letters, digits and a few as %XX; one a test.
    """
    if other := _other_lab():
        pytest.fail(
            f"communication_snapshot: {other} is imported as `lab` and hides sharding-lab's package; rename it, or run "
            "pytest where it is not on sys.path",
            pytrace=False,
        )
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
        from lab.guard import snapshot

        used.append(inspect(program, *args, mesh=mesh, target=target))
        if failure := snapshot.unreadable(used[0]):
            pytest.fail(f"{request.node.nodeid}: {failure}", pytrace=False)
        if update:
            # Properties of a test reach the process that reports, where tests run in several.
            moved = _moved(request.node, path)
            what = snapshot.write(used[0], path)
            request.node.user_properties.append(
                (UPDATED, f"{'moved' if moved and what == 'unchanged' else what} {path}")
            )
        elif failure := snapshot.compared(used[0], path if path.exists() else _earlier(request.node) or path):
            pytest.fail(f"{request.node.nodeid}: {failure}", pytrace=False)
        return used[0]

    return check


def _other_lab() -> str | None:
    """Where `lab` is imported from, if that is not sharding-lab's."""
    spec = find_spec("lab") if "lab" not in sys.modules else sys.modules["lab"].__spec__
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if any((Path(folder) / "guard" / "snapshot.py").exists() for folder in folders):
        return None
    return next((place for place in (spec and spec.origin, *folders) if place), "nothing")


def _path(test: pytest.Item) -> Path:
    """By the full id, so that no two tests share a file: `TestStep/test_sum[4-a%2Fb].toml` is that of
    `TestStep::test_sum[4-a/b]`."""
    names = [node.name for node in test.listchain() if isinstance(node, pytest.Class)] + [test.name]
    *classes, name = (_file_name(name) for name in names)
    return _folder(test).joinpath(*classes, f"{name}.toml")


def _file_name(name: str) -> str:
    quoted = quote(name, safe="[]=,+")
    if len(quoted) <= LONGEST:
        return quoted
    return f"{quoted[:LONGEST]}%-{sha256(name.encode()).hexdigest()[:16]}"


def _folder(test: pytest.Item) -> Path:
    return test.path.parent / "communication" / test.path.stem


def _earlier(test: pytest.Item) -> Path | None:
    """The file of an earlier release, which several tests could share; None where there is none, or it is that of
    another test."""
    name = re.sub(r"[^A-Za-z0-9_.=-]+", "_", test.name)
    path = _folder(test) / f"{name}.toml"
    is_anothers = hasattr(getattr(test, "module", None), name)
    return path if path != _path(test) and path.exists() and not is_anothers else None


def _moved(test: pytest.Item, path: Path) -> bool:
    """Moves the file of an earlier release to the test's own."""
    if path.exists() or not (earlier := _earlier(test)):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        earlier.replace(path)
    except FileNotFoundError:  # Another process was faster.
        return False
    return True
