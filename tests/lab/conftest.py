"""The command line as a function."""

import sys
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import pytest

from lab.cli import main as cli


class Answer(NamedTuple):
    status: int
    out: str
    err: str


@contextmanager
def this_process(stage=lambda _: nullcontext(), python=None, before_forks=None):
    yield lambda function, *args: function(stage, *args)


@pytest.fixture
def lab(capsys, monkeypatch, tmp_path):
    """Runs `lab` with the given arguments inside this process, in an empty folder; programs are compiled here as well,
    where JAX is imported already (tests/lab/cli/test_user_programs.py has those that end their process)."""
    monkeypatch.chdir(tmp_path)
    for command in ("inspect", "time", "diff", "upgrade", "running", "fit", "restart"):
        monkeypatch.setattr(f"lab.cli.{command}.other_process", this_process)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["lab", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Answer(ended.value.code or 0, *capsys.readouterr())

    return run
